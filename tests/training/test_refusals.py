"""What every recipe refuses before its first step: values, data, and checkpoints of another model, data or recipe."""

import functools
import re
from typing import Any

import pytest
from fixture_types import Train

from nbtools.errors import ConfigError
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir

from trainings import OCCUPATIONS, TINY, train_here, write_csv, write_inputs

OTHER_MODELS: dict[str, list[dict[str, Any]]] = {
    "mlm_pretraining": [{"hidden_size": 32}],
    "masked_diffusion": [{"hidden_size": 32}],
    "text_classification": [{"hidden_size": 32}],
    "algorithm_distillation": [{"hidden_size": 32}, {"sequence_length": 12}, {"grid_size": 4}],
    "llm_gan": [{"hidden_size": 32}, {"num_symbols": 9}, {"num_layers": 2}],
}
BAD: list[tuple[str, dict[str, Any], str]] = [
    *((key, {"batch_size": 1000}, "too few for one step") for key in TINY),
    ("mlm_pretraining", {"dataset": "missing"}, "DataError: dataset .*missing"),
    ("mlm_pretraining", {"sequence_length": 2048}, "too few|no full sample"),
    ("mlm_pretraining", {"model_name": "/nowhere"}, "ConfigError: model_name='/nowhere'"),
    ("masked_diffusion", {"dataset": "missing"}, "dataset .*missing"),
    ("masked_diffusion", {"dataset": "missing.jsonl"}, r"missing\.jsonl.*no such file"),
    ("masked_diffusion", {"model_name": "nowhere at all"}, "neither a folder nor a hub id"),
    ("text_classification", {"dataset": "no.csv"}, r"DataError: .*no\.csv.*: no such file"),
    ("text_classification", {"target_cols": ("lang",), "formatter": "hisco"}, "is not a HISCO code"),
    ("text_classification", {"model_name": "/nowhere"}, "ConfigError: model_name='/nowhere'"),
    ("algorithm_distillation", {"dataset": "missing"}, "DataError: .*missing"),
    ("llm_gan", {"dataset": "no.csv"}, r"no\.csv.*: no such file"),
]
VALUES: list[tuple[str, dict[str, Any], str]] = [
    (
        "mlm_pretraining",
        {"model_name": None, "adapter": "lora"},
        r"adapter='lora': adapts a .*; give model_name, or ad",
    ),
    ("mlm_pretraining", {"lora_targets": ()}, "lora_targets: name at least one layer"),
    ("mlm_pretraining", {"tokenizer": "byte_bpe", "vocab_size": 259}, "'byte_bpe': must be >= 260, for 256 bytes"),
    ("masked_diffusion", {"sample_length": 32}, "sample_length=32: must be <= sequence_length=16"),
    ("masked_diffusion", {"sample_block_length": 3}, "sample_block_length=3: must divide the sampled length 8"),
    ("masked_diffusion", {"sample_steps": 3, "sample_block_length": 4}, "sample_steps=3: must be a multiple of the 2"),
    ("masked_diffusion", {"sample_steps": 16}, "<= 8, as a step reveals at least one token"),
    ("masked_diffusion", {"hidden_size": 30}, "multiple of 2 x num_heads = 4"),
    ("masked_diffusion", {"temperature": -1}, "must be >= 0"),
    ("text_classification", {"train_data": ("a.csv",)}, "dataset and train_data"),
    ("text_classification", {"dataset": None, "val_data": "v.csv"}, "needs train_data"),
    ("text_classification", {"target_cols": ()}, "name at least one"),
    ("text_classification", {"val_data": ()}, "name at least one"),
    ("text_classification", {"hidden_size": 20}, "hidden_size=20: must be a multiple of CANINE's 8"),
    ("text_classification", {"num_decoder_heads": 3}, "num_decoder_heads=3: must be a multiple"),
    ("text_classification", {"max_codes": 7}, "must be <= 6"),
    ("text_classification", {"formatter": "isco"}, "formatter"),
    ("llm_gan", {"objective": "likelihood", "freeze_generator": True}, "freeze_generator=True: .* nothing is trained"),
]
_ROOM = {"grid_size": 9, "horizon": 20, "num_episodes": 20, "sequence_length": 80}
VALUES += [
    ("algorithm_distillation", {**_ROOM, **changes}, said)
    for changes, said in (
        ({"test_goals": ("9:0",)}, r"9:0 is outside the grid; .* 0 to 8"),
        ({"test_goals": ("here",)}, "'here' is not a goal; write column:row"),
        ({"test_goals": ("1:1", "1:1")}, "name each goal once"),
        ({"horizon": 7}, r"horizon=7: the goal 0:0 is 8 steps .* must be >= 8"),
        ({"sequence_length": 19}, r"sequence_length=19: must be >= horizon=20"),
        ({"sequence_length": 401}, r"sequence_length=401: .* <= 400"),
        ({"compress_interval": 50}, r"compress_interval=50: must be a multiple of horizon"),
        ({"compress_interval": 220, "sequence_length": 500}, r"compress_interval=220: .* <= 200, as a history of num_"),
        (
            {"compress_interval": 40, "sequence_length": 82},
            "sequence_length=82: must be >= 83, two regions of compress",
        ),
        ({"source_episodes": 19}, r"source_episodes=19: must be >= num_episodes=20"),
    )
]


@pytest.fixture
def trained(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train in this process, with the data of the two recipes of text and of text classification."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for key in ("mlm_pretraining", "text_classification"):
        write_inputs(key, cpu_project)
    return functools.partial(train_here, cpu_project, monkeypatch=monkeypatch)


def tiny(key: str, **changes: Any) -> Any:
    return RECIPES[key].config_class(**{**TINY[key], **changes})


@pytest.mark.parametrize(("key", "changes", "said"), VALUES)
def test_values_that_do_not_fit_together_are_refused(key: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny(key, **changes)


@pytest.mark.parametrize(("key", "changes", "said"), BAD)
def test_bad_data_or_models_end_before_the_first_step(
    trained: Train, cpu_project: Project, key: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        trained(tiny(key, **changes))
    (folder,) = (folder for folder in cpu_project.runs.iterdir() if not folder.name.startswith("."))
    finished = read_json(RunDir(folder).finished) or {}
    assert (finished["why"], finished["step"], finished["failure"]["rank"]) == ("failed", 0, 0)
    assert re.search(said, finished["failure"]["message"])
    assert "Traceback" in finished["failure"]["traceback"]


@pytest.mark.parametrize("key", TINY)
def test_a_checkpoint_of_another_model_or_recipe_is_not_resumed(trained: Train, key: str) -> None:
    path = trained(tiny(key, max_steps=1)).checkpoint(1)
    for changes in OTHER_MODELS[key]:
        with pytest.raises(SystemExit, match="of another model"):
            trained(tiny(key, **changes), path)
    for other in TINY.keys() - {key}:
        with pytest.raises(SystemExit, match=f"is a checkpoint of {key}, not of {other}"):
            trained(tiny(other), path)


def test_a_checkpoint_of_other_words_or_codes_is_not_resumed(trained: Train, cpu_project: Project) -> None:
    path = trained(tiny("mlm_pretraining", max_steps=1)).checkpoint(1)
    (cpu_project.root / "others").mkdir()
    for file in (cpu_project.root / "texts").iterdir():
        (cpu_project.root / "others" / file.name).write_text(file.read_text().replace("w1", "v1"))
    with pytest.raises(SystemExit, match="vocabulary is that of another text"):
        trained(tiny("mlm_pretraining", dataset="others"), path)
    path = trained(tiny("text_classification", max_steps=1)).checkpoint(1)
    with pytest.raises(SystemExit, match="max_codes is 2, not 3"):
        trained(tiny("text_classification", max_codes=3), path)
    rows = [(row.text, row.lang, row.codes) for row in OCCUPATIONS]
    write_csv(cpu_project.root / "more.csv", [*rows, ("astronaut", "en", ("04120",))])
    with pytest.raises(SystemExit, match=r"CheckpointError: .*differ in 04120"):
        trained(tiny("text_classification", dataset="more.csv"), path)
