"""Flags: every field, both spellings, the words of older programs, and clear refusals."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nbtools.config import TrainConfig
from nbtools.recipes import RECIPES, AlgorithmDistillationConfig, MLMPretrainingConfig, TextClassificationConfig
from nbtools.rundir.json_files import write_json
from nbtools.script.compat.aliases import ALIASES
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


@pytest.mark.parametrize("given", ["--batch-size=8", "--batch_size=8", "--batch-size 8", "--batch_size 8"])
def test_dashes_and_underscores_are_the_same(given: str) -> None:
    flags = parse(CONFIG, given.split())
    assert (flags.config, flags.overridden) == (CONFIG.replace(batch_size=8), ("batch_size",))


@pytest.mark.promise("guide-A18")
@pytest.mark.parametrize("field", MLMPretrainingConfig.model_fields)
def test_every_field_of_the_config_is_a_flag(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(CONFIG, ["--help"])
    assert ended.value.code == 0
    assert f"--{field.replace('_', '-')}" in capsys.readouterr().out


def test_help_says_meaning_unit_and_the_checkpoint_to_resume_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(CONFIG, ["--help"], prog="mlm_tiny.py")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "usage: mlm_tiny.py" in text
    assert "Sequences per process and forward pass. [sequences per process] (default: 4)" in text
    assert "--resume-from PATH" in text


@pytest.mark.parametrize("words", [["--help"], ["--learnign-rate", "1"]])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_command_line_is_answered_without_loading_torch(recipe: str, words: list[str]) -> None:
    program = (
        "import runpy, sys\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: print('loaded', {'torch', 'transformers'} & set(sys.modules))\n"
    )
    run = f"import sys\nsys.argv = {[str(SCRIPTS / f'{recipe}.py'), *words]}\n{program}"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (0 if words == ["--help"] else 2), done.stderr
    assert done.stdout.endswith("loaded set()\n")


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("dash", ["-", "_"])
def test_an_alias_sets_its_field(alias: str, dash: str) -> None:
    field = ALIASES[alias]
    values = {"precision": "bf16", "max_chars": "900", "tokenizer": "words", "lr_schedule": "cosine"}
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


@pytest.mark.promise("guide-O2", "guide-O3")
@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ("--input-col occ", "text_col", "occ"),
        ("--language-col lang", "lang_col", "lang"),
        ("--share-val 0.2", "validation_share", 0.2),
        ("--save-interval 5000", "checkpoint_every", 5000),
        ("--warmup-steps 1000", "warmup_ratio", 0.5),
        ("--warmup_steps=0", "warmup_ratio", 0.0),
        ("--warmup-steps 1k --max-steps 4000", "warmup_ratio", 0.25),
        ("--drop-bad-labels", "skip_unlabelled", True),
        ("--drop-bad-labels true", "skip_unlabelled", True),
        ("--log-wandb", "report_to", "wandb"),
        ("--max-len 128", "sequence_length", 128),
        ("--val-data a.csv b.csv", "val_data", ("a.csv", "b.csv")),
        ("--validation_file=a.csv", "val_data", ("a.csv",)),
        ("--train_file b.csv --do_train --do_eval", "dataset", "b.csv"),
        ("--num_train_epochs 3.0", "epochs", 3),
        ("--model_name_or_path m", "model_name", "m"),
        ("--lr_scheduler_type cosine", "lr_schedule", "cosine"),
        ("--label-separator ;", "label_separator", ";"),
        ("--label_separator=", "label_separator", ""),
        ("--missing-labels NA ?", "missing_labels", ("NA", "?")),
    ],
)
def test_flags_of_occcanine_and_of_hugging_face_set_their_field(given: str, field: str, value: object) -> None:
    assert getattr(parse(OCC, given.split()).config, field) == value


@pytest.mark.promise("guide-O2", "guide-O3")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--language en", "language: has no field: a column of the data"),
        ("--block-size 5", "block_size: has no field: it is 5 for HISCO"),
        ("--freeze-encoder", "freeze_encoder: has no field: adapter='lora'"),
        ("--only-encoder", "only_encoder: has no field"),
        ("--use-within-block-sep", "use_within_block_sep: has no field"),
        (
            "--initial-checkpoint last.bin",
            "initial_checkpoint: is no value of the config: give it to the script as --res",
        ),
        ("--wandb-project-name x", "the variable WANDB_PROJECT"),
        ("--num-transformations 3", "num_transformations: has no field"),
        (
            "--epochs 5 --warmup-steps 100",
            "--warmup-steps 100: means warmup_ratio x max_steps, and max_steps is not given",
        ),
        ("--warmup-steps few", "--warmup-steps few: is no whole number"),
        ("--dataset_name imdb", "hf/OWNER/NAME"),
        ("--eval_strategy epoch", "eval_every and checkpoint_every count steps"),
    ],
)
def test_a_flag_of_another_program_without_a_field_is_refused_with_the_reason(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(OCC, given.split())
    assert said in capsys.readouterr().err


def test_block_size_is_the_length_of_sequences_where_codes_have_no_blocks() -> None:
    assert parse(CONFIG, ["--block_size", "128"]).config.sequence_length == 128


@pytest.mark.promise("guide-O4")
@pytest.mark.parametrize("rank", ["--local-rank=1", "--local_rank 1", "--local-rank -1", "--local_rank=1", ""])
@pytest.mark.parametrize("switch", ["--distributed", "--distributed true", "--distributed=False", ""])
def test_what_old_launchers_pass_is_ignored_with_a_note(rank: str, switch: str) -> None:
    flags = parse(CONFIG, [*rank.split(), *switch.split(), "--batch-size", "8"])
    assert flags.config == CONFIG.replace(batch_size=8)
    assert ["ignored" in note for note in flags.notes] == [True] * (bool(rank) + bool(switch))


@pytest.mark.promise("guide-L7")
@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("fp16", ("--fp16", "--fp16 true", "--fp16=1", "--mixed-precision=fp16")),
        ("bf16", ("--bf16", "--mixed_precision bf16")),
        ("fp32", ("--no_fp16", "--no-fp16", "--fp16 false", "--mixed_precision no", "--precision fp32")),
    ],
)
def test_older_words_for_a_precision(precision: str, words: tuple[str, ...]) -> None:
    started = CONFIG.replace(precision="bf16" if precision != "bf16" else "fp32")
    for given in words:
        flags = parse(started, [*given.split(), "--lr", "0.5"])
        assert (flags.config.precision, flags.config.learning_rate) == (precision, 0.5), given


@pytest.mark.parametrize(("given", "number"), [("500k", 500_000), ("5M", 5_000_000), ("0.5G", 500_000_000), ("7", 7)])
@pytest.mark.parametrize("joined", [True, False])
def test_counts_take_units(given: str, number: int, joined: bool) -> None:
    flags = parse(CONFIG, [f"--max_steps={given}"] if joined else ["--max-steps", given])
    assert flags.config.max_steps == number


def test_a_name_that_stands_for_a_field_of_another_recipe_says_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(TrainConfig(), ["--tf_n_embd", "64"], prog="toy.py")
    assert ended.value.code == 2
    assert "toy.py: error: tf_n_embd means hidden_size, which TrainConfig does not have" in capsys.readouterr().err


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
    asked: str, args: list[str], script: Any, precision: str
) -> None:
    flags = parse(CONFIG.replace(precision=script), args, environment={"ACCELERATE_MIXED_PRECISION": asked})
    assert flags.config.precision == precision
    assert ("precision" in flags.overridden) == (precision != script)
    assert any("accelerate" in note for note in flags.notes) == (asked != "no")


def test_a_precision_of_accelerate_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(CONFIG, [], environment={"ACCELERATE_MIXED_PRECISION": "fp8"})
    assert ended.value.code == 2
    assert "ACCELERATE_MIXED_PRECISION='fp8': must be no, fp16 or bf16" in capsys.readouterr().err


def test_a_switch_of_compression_agrees_with_its_interval_or_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    plain = AlgorithmDistillationConfig()
    compressed = plain.replace(compress_interval=40, sequence_length=100)
    switch = "--use-compressed-context"
    assert parse(plain, [switch, "--compress-interval", "40", "--n_transit", "100"]).config == compressed
    assert parse(compressed, [f"{switch}=true"]).config == compressed
    for off in ([switch, "false"], ["--no-use-compressed-context"], ["--no_use_compressed_context"]):
        assert parse(compressed, off).config.compress_interval is None
    (note,) = parse(CONFIG, ["--no-use-compressed-context"]).notes
    assert note.startswith(f"{switch} is ignored")
    for args, said in (
        ([switch, "false", "--compress-interval", "40"], f"{switch} and --compress-interval differ; keep one"),
        ([switch], f"{switch}: needs --compress-interval N"),
    ):
        with pytest.raises(SystemExit):
            parse(plain, args)
        assert said in capsys.readouterr().err


def test_sharding_that_accelerate_asks_for_is_said_to_be_ignored() -> None:
    (note,) = parse(CONFIG, [], environment={"ACCELERATE_USE_FSDP": "true"}).notes
    assert "FSDP" in note and "ignored" in note


@pytest.mark.parametrize(
    ("environment", "args", "name"),
    [
        ({}, [], "python"),
        ({"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, [], "torchrun"),
        ({"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, ["--local-rank=0"], "torch.distributed.launch"),
        ({"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "ACCELERATE_MIXED_PRECISION": "no"}, [], "accelerate launch"),
        ({"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "NBTOOLS_RUN_DIR": "/r"}, [], "nbtools launch"),
        ({"WORLD_SIZE": "2"}, [], "a launcher that sets WORLD_SIZE"),
    ],
)
def test_what_started_a_process_is_recognised(environment: dict[str, str], args: list[str], name: str) -> None:
    assert launchers.name(environment, args) == name


def test_accelerate_s_cpu_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert choose_device(0) == torch.device("cpu")
    assert not launchers.wants_cpu({"ACCELERATE_USE_CPU": "False"})


@pytest.mark.parametrize("given", ["--{}", "--{} true", "--{}=True", "--no-{}", "--no_{}", "--{} false"])
def test_truth_values_take_words_too(given: str) -> None:
    expected = "no" not in given and "false" not in given
    flags = parse(CONFIG.replace(deterministic=not expected), given.format("deterministic").split())
    assert flags.config.deterministic is expected


def test_none_and_paths_with_underscores_and_dashes_arrive_unchanged() -> None:
    flags = parse(CONFIG.replace(max_steps=5), ["--max-steps", "None", "--dataset=my_data/a-b.txt"])
    assert flags.config.max_steps is None
    assert flags.config.dataset == "my_data/a-b.txt"


def test_resume_from_is_a_path_and_no_override() -> None:
    flags = parse(CONFIG, ["--resume_from", "runs/x/checkpoints/step-000200"])
    assert flags.resume_from == Path("runs/x/checkpoints/step-000200")
    assert flags.overridden == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--learning-rate -1", "learning_rate=-1.0: must be > 0"),
        ("--batch-size many", "batch-size"),
        ("--nonsense 3", "--nonsense"),
        ("--hidden-size 7", "multiple of 2 x num_heads"),
        ("--dataset", "--dataset"),
        ("--batch-size --lr 1", "batch-size"),
        ("--max-steps 5X", "max-steps"),
        ("--fp16 --precision no-such", "precision"),
        ("stray", "stray"),
    ],
)
def test_a_wrong_flag_ends_with_code_2_and_names_itself(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(CONFIG, given.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# --- a run that was recorded before a field existed ---


class Later(MLMPretrainingConfig):
    """A recipe that has gained a field, whose default differs from what was done before."""

    cleaning: str = setting("none", "Cleaning of the text.", before="light")


@pytest.fixture
def checkpoint_before(tmp_path: Path) -> Path:
    """A checkpoint of a run whose config.json does not know the field."""
    write_json(tmp_path / "config.json", {"recipe": "mlm_pretraining", "config": CONFIG.model_dump(mode="json")})
    (tmp_path / "checkpoints" / "step-000010").mkdir(parents=True)
    return tmp_path / "checkpoints" / "step-000010"


def test_a_resumed_run_keeps_the_meaning_that_a_new_field_had_then(checkpoint_before: Path) -> None:
    flags = parse(Later(batch_size=4), ["--resume-from", str(checkpoint_before), "--batch-size", "8"])
    assert (flags.config.cleaning, flags.config.batch_size) == ("light", 8)
    assert flags.notes == ("cleaning='light', as in the run that is resumed",)
    assert parse(Later(batch_size=4), []).config.cleaning == "none"


@pytest.mark.parametrize(("config", "flags"), [(Later(cleaning="none"), []), (Later(), ["--cleaning", "none"])])
def test_a_value_that_the_user_gave_counts_more_than_the_record(
    config: Later, flags: list[str], checkpoint_before: Path
) -> None:
    assert parse(config, ["--resume-from", str(checkpoint_before), *flags]).config.cleaning == "none"


def test_a_record_that_knows_the_field_is_left_to_the_script(checkpoint_before: Path) -> None:
    content = {"recipe": "mlm_pretraining", "config": Later().model_dump(mode="json")}
    write_json(checkpoint_before.parent.parent / "config.json", content)
    assert parse(Later(), ["--resume-from", str(checkpoint_before)]).config.cleaning == "none"


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
