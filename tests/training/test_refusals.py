"""What every recipe refuses before its first step: bad data, and checkpoints of another model, data or recipe."""

import functools
import re
from typing import Any

import pytest
from fixture_types import Train

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


@pytest.fixture
def trained(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train in this process, with the data of the two recipes of text and of text classification."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for key in ("mlm_pretraining", "text_classification"):
        write_inputs(key, cpu_project)
    return functools.partial(train_here, cpu_project, monkeypatch=monkeypatch)


def tiny(key: str, **changes: Any) -> Any:
    return RECIPES[key].config_class(**{**TINY[key], **changes})


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
