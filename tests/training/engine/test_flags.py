"""Flags: every field, both spellings, the words of older programs, and clear refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from launched import python

from nbtools.config import TrainConfig
from nbtools.recipes import RECIPES, AlgorithmDistillationConfig, MLMPretrainingConfig, TextClassificationConfig
from nbtools.rundir.json_files import write_json
from nbtools.script.compat.aliases import older
from nbtools.settings import setting
from nbtools.training.engine.flags import parse
from nbtools.training.process import launchers
from nbtools.training.process.device import choose_device

SCRIPTS = Path(__file__).parents[3] / "scripts"
CONFIG = MLMPretrainingConfig(batch_size=4, learning_rate=1e-3)


@pytest.mark.parametrize("given", ["", "--batch-size 4"])
def test_no_flags_or_the_script_s_own_values_override_nothing(given: str) -> None:
    flags = parse(CONFIG, given.split())
    assert (flags.config, flags.overridden, flags.resume_from) == (CONFIG, (), None)


@pytest.mark.promise("guide-A18")
def test_help_has_every_field_with_its_meaning_and_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(CONFIG, ["--help"], prog="mlm_tiny.py")
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "usage: mlm_tiny.py" in text
    assert all(f"--{field.replace('_', '-')}" in text for field in MLMPretrainingConfig.model_fields)
    assert "Sequences per process and forward pass. [sequences per process] (default: 4)" in text
    assert "--resume-from PATH" in text


ANSWERS = """
import runpy, sys
for script in sys.argv[1:]:
    for words in (["--help"], ["--learnign-rate", "1"]):
        sys.argv = [script, *words]
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            print("ended", script, ended.code, {"torch", "transformers"} & set(sys.modules))
"""


def test_a_command_line_is_answered_without_loading_torch() -> None:
    scripts = [SCRIPTS / f"{recipe}.py" for recipe in RECIPES]
    ends = [line for line in python("-c", ANSWERS, *scripts).splitlines() if line.startswith("ended")]
    assert ends == [f"ended {script} {code} set()" for script in scripts for code in (0, 2)]


@pytest.mark.parametrize("alias", older("fields"))
@pytest.mark.parametrize("dash", ["-", "_"])
def test_an_alias_sets_its_field(alias: str, dash: str) -> None:
    field = older("fields")[alias]
    values = {"precision": "bf16", "max_chars": "900", "tokenizer": "byte_bpe", "lr_schedule": "cosine"}
    values |= dict.fromkeys(("compile", "skip_unlabelled"), "True")
    shares = "learning_rate", "gradient_clip", "dropout", "mask_probability", "augmentation", "unknown_lang"
    text = (values | dict.fromkeys((*shares, "validation_share"), "0.5")).get(field, "8")
    configs = (CONFIG, *(recipe.config_class() for recipe in RECIPES.values()))
    config = next(config for config in configs if field in type(config).model_fields)
    if field == "val_data":
        config = config.replace(dataset="a.csv")
    flags = parse(config, [f"--{alias.replace('_', dash)}", text])
    assert flags.overridden == (field,)
    value = getattr(flags.config, field)
    assert str(value[0] if isinstance(value, tuple) else value) == text


OCC = TextClassificationConfig(dataset="a.csv", max_steps=2000)
IN_16_BITS = CONFIG.replace(precision="bf16")
IN_32_BITS = CONFIG.replace(precision="fp32")


@pytest.mark.promise("guide-O2", "guide-O3", "guide-L7")
@pytest.mark.parametrize(
    ("config", "field", "value", "spellings"),
    [
        (CONFIG, "batch_size", 8, ["--batch-size=8", "--batch_size=8", "--batch-size 8", "--batch_size 8"]),
        (CONFIG, "sequence_length", 128, ["--block_size 128"]),
        (CONFIG, "deterministic", True, ["--deterministic", "--deterministic true", "--deterministic=True"]),
        (
            CONFIG.replace(deterministic=True),
            *("deterministic", False, ["--no-deterministic", "--no_deterministic", "--deterministic false"]),
        ),
        (CONFIG, "max_steps", 500_000, ["--max_steps=500k", "--max-steps 500k", "--max-steps 0.5M"]),
        (CONFIG, "max_steps", 5_000_000, ["--max-steps 5M", "--max-steps 5000000"]),
        (CONFIG.replace(max_steps=5), "max_steps", None, ["--max-steps None"]),
        (CONFIG, "dataset", "my_data/a-b.txt", ["--dataset=my_data/a-b.txt"]),
        (IN_16_BITS, "precision", "fp16", ["--fp16", "--fp16 true", "--fp16=1", "--mixed-precision=fp16"]),
        (IN_32_BITS, "precision", "bf16", ["--bf16", "--mixed_precision bf16"]),
        (IN_16_BITS, "precision", "fp32", ["--no_fp16", "--no-fp16", "--fp16 false", "--mixed_precision no"]),
        (OCC, "text_col", "occ", ["--input-col occ"]),
        (OCC, "lang_col", "lang", ["--language-col lang"]),
        (OCC, "validation_share", 0.2, ["--share-val 0.2"]),
        (OCC, "checkpoint_every", 5000, ["--save-interval 5000"]),
        (OCC, "warmup_steps", 1000, ["--warmup-steps 1000", "--num_warmup_steps=1k"]),
        (OCC, "skip_unlabelled", True, ["--drop-bad-labels", "--drop-bad-labels true"]),
        (OCC, "report_to", "wandb", ["--log-wandb"]),
        (OCC, "sequence_length", 128, ["--max-len 128"]),
        (OCC, "val_data", ("a.csv", "b.csv"), ["--val-data a.csv b.csv"]),
        (OCC, "val_data", ("a.csv",), ["--validation_file=a.csv"]),
        (OCC, "dataset", "b.csv", ["--train_file b.csv --do_train --do_eval"]),
        (OCC, "epochs", 3, ["--num_train_epochs 3.0"]),
        (OCC, "model_name", "m", ["--model_name_or_path m"]),
        (OCC, "lr_schedule", "cosine", ["--lr_scheduler_type cosine"]),
        (OCC, "label_separator", ";", ["--label-separator ;"]),
        (OCC, "label_separator", "", ["--label_separator="]),
        (OCC, "missing_labels", ("NA", "?"), ["--missing-labels NA ?"]),
    ],
)
def test_a_flag_in_any_spelling_sets_its_field(
    config: TrainConfig, field: str, value: object, spellings: list[str]
) -> None:
    for given in spellings:
        flags = parse(config, [*given.split(), "--lr", "0.5"])
        assert (getattr(flags.config, field), flags.config.learning_rate) == (value, 0.5), given
        assert {field, "learning_rate"} <= {*flags.overridden}, given


@pytest.mark.promise("guide-O2", "guide-O3")
@pytest.mark.parametrize(
    ("config", "given", "said"),
    [
        (OCC, "--language en", "language: has no field: a column of the data"),
        (OCC, "--block-size 5", "block_size: has no field: it is 5 for HISCO"),
        (OCC, "--freeze-encoder", "freeze_encoder: has no field: adapter='lora'"),
        (OCC, "--only-encoder", "only_encoder: has no field"),
        (OCC, "--use-within-block-sep", "use_within_block_sep: has no field"),
        (OCC, "--initial-checkpoint a", "initial_checkpoint: is no value of the config: give it to the script as"),
        (OCC, "--wandb-project-name x", "the variable WANDB_PROJECT"),
        (OCC, "--num-transformations 3", "num_transformations: has no field"),
        (OCC, "--dataset_name imdb", "hf/OWNER/NAME"),
        (AlgorithmDistillationConfig(), "--train-source-timesteps 9", "num_episodes x horizon, so set num_episodes"),
        (AlgorithmDistillationConfig(), "--use-compressed-context false", "compress_interval says it, and None is"),
        (OCC, "--eval_strategy epoch", "eval_every and checkpoint_every count steps"),
        (CONFIG, "--learning-rate -1", "learning_rate=-1.0: must be > 0"),
        (CONFIG, "--batch-size many", "batch-size"),
        (CONFIG, "--nonsense 3", "--nonsense"),
        (CONFIG, "--hidden-size 7", "multiple of 2 x num_heads"),
        (CONFIG, "--dataset", "--dataset"),
        (CONFIG, "--batch-size --lr 1", "batch-size"),
        (CONFIG, "--max-steps 5X", "max-steps"),
        (CONFIG, "--fp16 --precision no-such", "precision"),
        (CONFIG, "stray", "stray"),
        (TrainConfig(), "--tf_n_embd 64", "toy.py: error: tf_n_embd means hidden_size, which TrainConfig does not"),
    ],
)
def test_a_wrong_flag_ends_with_code_2_and_says_why(
    config: TrainConfig, given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(config, given.split(), prog="toy.py")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.promise("guide-O4")
@pytest.mark.parametrize("rank", ["--local-rank=1", "--local_rank 1", "--local-rank -1", "--local_rank=1", ""])
@pytest.mark.parametrize("switch", ["--distributed", "--distributed true", "--distributed=False", ""])
def test_what_old_launchers_pass_is_ignored_with_a_note(rank: str, switch: str) -> None:
    flags = parse(CONFIG, [*rank.split(), *switch.split(), "--batch-size", "8"])
    assert flags.config == CONFIG.replace(batch_size=8)
    assert ["ignored" in note for note in flags.notes] == [True] * (bool(rank) + bool(switch))


# --- what accelerate says through the environment ---------------------------------------------------


@pytest.mark.promise("guide-A2")
@pytest.mark.parametrize(
    ("asked", "args", "script", "precision"),
    [
        ("bf16", [], "fp32", "bf16"),
        ("fp16", [], "bf16", "fp16"),
        ("no", [], "bf16", "bf16"),
        ("bf16", ["--precision", "fp32"], "fp32", "fp32"),
        ("bf16", ["--fp16"], "fp32", "fp16"),
        ("bf16", ["--batch-size", "8"], "fp32", "bf16"),
    ],
)
def test_a_flag_counts_more_than_accelerate_and_accelerate_more_than_the_script(
    asked: str, args: list[str], script: Any, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", asked)
    flags = parse(CONFIG.replace(precision=script), args)
    assert flags.config.precision == precision
    assert ("precision" in flags.overridden) == (precision != script)
    assert any("accelerate" in note for note in flags.notes) == (asked != "no")


def test_what_accelerate_asks_for_and_nbtools_lacks_is_ignored_with_a_note_or_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    (note,) = parse(CONFIG, []).notes
    assert "FSDP" in note and "ignored" in note
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(SystemExit) as ended:
        parse(CONFIG, [])
    assert ended.value.code == 2
    assert "ACCELERATE_MIXED_PRECISION='fp8': must be no, fp16 or bf16" in capsys.readouterr().err


def test_accelerate_s_cpu_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert choose_device(0) == torch.device("cpu")
    assert not launchers.wants_cpu({"ACCELERATE_USE_CPU": "False"})


def test_resume_from_is_a_path_and_no_override() -> None:
    flags = parse(CONFIG, ["--resume_from", "runs/x/checkpoints/step-000200"])
    assert flags.resume_from == Path("runs/x/checkpoints/step-000200")
    assert flags.overridden == ()


# --- a run that was recorded before a field existed ---


class Later(MLMPretrainingConfig):
    """A recipe that has gained a field, whose default differs from what was done before."""

    cleaning: str = setting("none", "Cleaning of the text.", before="light")


@pytest.mark.parametrize(
    ("config", "given", "recorded", "cleaning"),
    [
        (Later(batch_size=4), ["--batch-size", "8"], CONFIG, "light"),
        (Later(cleaning="none"), [], CONFIG, "none"),
        (Later(), ["--cleaning", "none"], CONFIG, "none"),
        (Later(), [], Later(), "none"),
    ],
)
def test_a_resumed_run_keeps_the_meaning_that_a_new_field_had_unless_a_value_is_given(
    config: Later, given: list[str], recorded: TrainConfig, cleaning: str, tmp_path: Path
) -> None:
    write_json(tmp_path / "config.json", {"recipe": "mlm_pretraining", "config": recorded.model_dump(mode="json")})
    (tmp_path / "checkpoints" / "step-000010").mkdir(parents=True)
    flags = parse(config, ["--resume-from", str(tmp_path / "checkpoints" / "step-000010"), *given])
    assert flags.config.cleaning == cleaning
    assert flags.notes == ("cleaning='light', as in the run that is resumed",) * (cleaning == "light")


# --- epochs and the cap of a preset -----------------------------------------------------------------


@pytest.mark.promise("safety-epochs")
@pytest.mark.parametrize("given", [["--epochs", "5"], ["--epochs=20"], ["--n_epochs", "5"], ["--num-epochs=5"]])
@pytest.mark.parametrize("key", RECIPES)
def test_epochs_without_max_steps_lift_the_cap_of_the_preset(key: str, given: list[str]) -> None:
    config, _ = RECIPES[key].preset("cpu_demo")
    assert config.max_steps is not None
    flags = parse(config, given)
    assert flags.config.max_steps is None
    assert "max_steps" in flags.overridden
    assert f"max_steps={config.max_steps} is lifted" in " ".join(flags.notes)


def test_epochs_with_max_steps_keep_both() -> None:
    flags = parse(CONFIG.replace(max_steps=600), ["--epochs", "5", "--max_steps", "600"])
    assert (flags.config.epochs, flags.config.max_steps, flags.notes) == (5, 600, ())
    assert parse(CONFIG.replace(max_steps=600), ["--batch-size", "2"]).config.max_steps == 600


def test_a_resumed_run_that_was_recorded_with_the_cap_keeps_it(tmp_path: Path) -> None:
    capped = CONFIG.replace(max_steps=600)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    write_json(tmp_path / "run" / "config.json", {"config": capped.replace(epochs=5).model_dump(mode="json")})
    resumed = ["--resume-from", str(checkpoint)]
    assert parse(capped, ["--epochs", "5", *resumed]).config.max_steps == 600
    assert parse(capped, ["--epochs", "9", *resumed]).config.max_steps is None
