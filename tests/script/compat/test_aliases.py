"""What older programs wrote, on command lines, in `--set` and in YAML files, means the same everywhere."""

import math
from pathlib import Path

import pytest
from fixture_types import Cli
from hypothesis import given
from hypothesis import strategies as st

from nbtools.cli.commands import main
from nbtools.config import TrainConfig
from nbtools.errors import ConfigError
from nbtools.launcher.checks.step_count import schedule
from nbtools.project import Project
from nbtools.recipes import RECIPES, AlgorithmDistillationConfig, MLMPretrainingConfig, TextClassificationConfig
from nbtools.rundir.json_files import read_json
from nbtools.script.compat.aliases import SWITCHES, assigned, counted, older
from nbtools.script.compat.flat_yaml import LARGEST_BYTES, read_flat_yaml
from nbtools.script.script import read_script
from nbtools.settings import setting
from nbtools.training.engine.flags import normalized

from trainings import by_hand, rows

REPOSITORY = Path(__file__).resolve().parents[3]


class SampledConfig(TrainConfig):
    """A config with a count that may be None."""

    max_samples: int | None = setting(None, "Samples.", ge=1)
    streaming: bool = setting(True, "Streaming.")


def test_no_alias_hides_a_field_and_each_means_one_that_some_recipe_has() -> None:
    fields = {name for recipe in RECIPES.values() for name in recipe.config_class.model_fields}
    assert set(older("fields").values()) <= fields
    # `eval_samples` is a field of all recipes but one, where it means `eval_draws`; a field goes before an alias.
    assert {*older("fields"), *SWITCHES, *older("ignored")} & fields == {"eval_samples"}
    assert not {*SWITCHES, *older("ignored")} & {*older("fields")}


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("500k", "500000"),
        ("5M", "5000000"),
        ("1.5K", "1500"),
        ("2G", "2000000000"),
        ("1.0001k", "1.0001k"),
        ("-5k", "-5k"),
    ],
)
def test_a_count_with_a_unit_becomes_digits_and_anything_else_stays(text: str, digits: str) -> None:
    assert counted(text) == digits


@given(st.text())
def test_no_text_breaks_a_count(text: str) -> None:
    assert counted(text) == text or counted(text).isdecimal()


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("lr=1e-4", "learning_rate", 1e-4),
        ("train_batch_size=512", "batch_size", 512),
        ("tf-n-embd=64", "hidden_size", 64),
        ("num_epochs=3", "epochs", 3),
        ("max_steps=5k", "max_steps", 5000),
        ("max_steps=none", "max_steps", None),
        ("mixed_precision=no", "precision", "fp32"),
        ("precision=float16", "precision", "fp16"),
        ("fp16=true", "precision", "fp16"),
        ("bf16=1", "precision", "bf16"),
        ("no_fp16=true", "precision", "fp32"),
        ("save-path=out/5k", "save_dir", "out/5k"),
        ("report_to=none", "report_to", "none"),
        ("deterministic=true", "deterministic", True),
    ],
)
def test_set_understands_the_words_of_older_programs(text: str, field: str, value: object) -> None:
    given = assigned(MLMPretrainingConfig, [text])
    assert given == {field: value}
    assert getattr(MLMPretrainingConfig(**given), field) == value


def test_an_old_name_for_a_field_that_a_recipe_lacks_names_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"data_dir means dataset, which TrainConfig does not have"):
        assigned(TrainConfig, ["data_dir=x"])
    with pytest.raises(ConfigError, match=r"dataset, which SampledConfig .* its own are max_samples, streaming"):
        assigned(SampledConfig, ["data_dir=x"])


def test_a_wrong_word_for_a_precision_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="precision='fp8'"):
        MLMPretrainingConfig(**assigned(MLMPretrainingConfig, ["mixed_precision=fp8"]))
    with pytest.raises(ConfigError, match="precision='maybe'"):
        MLMPretrainingConfig(**assigned(MLMPretrainingConfig, ["fp16=maybe"]))


# --- YAML -------------------------------------------------------------------------------------------

OLD = """\
# of an older program
lr: 1e-4   # the greatest
tf_n_embd: 64
tf_n_layer: 4
compress_interval: 80
local_rank: -1
env:
  size: [9, 9]
  name: "dark\u2028room"
"""


def old(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "old.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("mixed_precision: no", {"precision": "fp32"}),
        ("mixed_precision: 'no'", {"precision": "fp32"}),
        ("fp16: false\nbf16: true", {"precision": "bf16"}),
        ("bf16: yes\nfp16: no", {"precision": "bf16"}),
        ("fp16: false", {"precision": "fp32"}),
        ("max_samples: 500k\nstreaming: off", {"max_samples": 500_000, "streaming": False}),
        ("max_samples: ~", {"max_samples": None}),
        ("max_samples:", {"max_samples": None}),
        ("lr: 3e-5\nlearning-rate: 3.0e-5", {"learning_rate": 3e-5}),
        ("max_steps: 1_000", {"max_steps": 1000}),
        ("save_dir: 007", {"save_dir": "007"}),
        ("", {}),
        ("# only a comment", {}),
    ],
)
def test_values_mean_what_their_writer_meant(tmp_path: Path, text: str, values: dict[str, object]) -> None:
    read = read_flat_yaml(old(tmp_path, text), SampledConfig)
    assert read.values == values
    assert read.remarks == ()


def test_lists_are_for_fields_that_take_several_texts(tmp_path: Path) -> None:
    read = read_flat_yaml(old(tmp_path, "target_cols: [a, 'b c']\ntext_col: 12"), TextClassificationConfig)
    assert read.values == {"target_cols": ("a", "b c"), "text_col": "12"}
    read = read_flat_yaml(old(tmp_path, "epochs: [1, 2]"), TextClassificationConfig)
    assert read.values == {}
    assert "nested" in read.unknown["epochs"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: fast", "old.yaml:1: lr='fast'"),
        ("epochs: 3\nbatch_size: 0", "old.yaml:2: batch_size=0: must be >= 1"),
        ("lr: 1\nlearning_rate: 2", "old.yaml:2: learning_rate and lr both mean learning_rate and differ"),
        ("fp16: true\nbf16: true", "both mean precision"),
        ("epochs: 1\nepochs: 2", "old.yaml:2: 'epochs' is given twice"),
        ("- a\n- b", "no list of"),
        ("just words", "no list of"),
        ("a: [1", "old.yaml:1: not YAML"),
        ("a: 1\n b: 2", "old.yaml:2: not YAML"),
        ("{[1]: 2}", "a key has to be a name"),
        ("a: *nobody", "not YAML"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("a: \0", "not YAML"),
        (b"name: M\xfcller", "byte 7 is not UTF-8"),
        ("[" * 5000, "old.yaml"),
        ("a: " + "x" * LARGEST_BYTES, "larger than"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_flat_yaml(old(tmp_path, text), MLMPretrainingConfig)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_tags_and_aliases_are_never_carried_out(tmp_path: Path) -> None:
    bomb = "a: &a [x, x, x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, *a]\n" for n in range(30))
    path = old(tmp_path, "evil: !!python/object/apply:os.system ['touch pwned']\n" + bomb)
    read = read_flat_yaml(path, MLMPretrainingConfig)
    assert read.values == {}
    assert len(read.unknown) == 32
    assert sum(map(len, read.remarks)) < 5000


@given(st.text(max_size=200))
def test_no_text_makes_anything_but_values_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read = read_flat_yaml(path, MLMPretrainingConfig)
    except ConfigError:
        return
    assert all(line.startswith("#") and len(line.splitlines()) == 1 for line in read.remarks)


def test_new_writes_what_an_old_yaml_says_and_names_the_rest(project: Project, tmp_path: Path, cli: Cli) -> None:
    path = old(tmp_path, OLD)
    words = ["new", "mlm_pretraining", "dark", "--preset", "cpu_demo", "--from-yaml", str(path)]
    said = cli(*words, "--set", "lr=2e-4", "--set", "hidden_size=128")
    script = read_script(project.scripts / "dark.py")
    assert isinstance(script.config, MLMPretrainingConfig)
    assert script.launch.nproc_per_node == 2, "of the preset"
    assert (script.config.sequence_length, script.config.num_layers) == (64, 4), "of the preset, of the file"
    assert (script.config.learning_rate, script.config.hidden_size) == (2e-4, 128), "--set counts most"
    assert "compress_interval: MLMPretrainingConfig has no such field" in said.stderr
    text = (project.scripts / "dark.py").read_text()
    assert text.endswith('#   local_rank: -1\n#   env:\n#     size: [9, 9]\n#     name: "dark\n#   room"\n')
    cli(*words, "--set", "lr=2e-4", "--set", "hidden_size=128")  # the same again changes nothing
    cli(*words, code=2)  # other values are not written over these


DARKROOM = """\
include: config/model/default.yaml
model: AD
use_compressed_context: true
compress_interval: 80
tf_n_embd: 64
tf_n_layer: 4
tf_n_head: 4
tf_n_inner: 128
tf_dropout: 0.1
tf_attn_dropout: 0.1
n_transit: 328
lr: 0.0003
train_batch_size: 512
test_batch_size: 2048
train_source_timesteps: 1000
train_timesteps: 100000
num_warmup_steps: 1000
mixed_precision: 'fp16'
gradient_accumulation_steps: 1
num_workers: 12
"""


@pytest.mark.promise("guide-A5")
def test_the_old_config_of_algorithm_distillation_becomes_a_script_that_trains_as_long(
    project: Project, tmp_path: Path, cli: Cli
) -> None:
    path = tmp_path / "ad_dr_compressed.yaml"
    path.write_text(DARKROOM)
    taken, *said = cli("new", "algorithm_distillation", "dark", "--from-yaml", path).stderr.splitlines()
    config = read_script(project.scripts / "dark.py").config
    assert config == AlgorithmDistillationConfig(
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        dropout=0.1,
        sequence_length=328,
        compress_interval=80,
        learning_rate=0.0003,
        batch_size=512,
        eval_batch_size=2048,
        num_episodes=50,  # of 20 steps
        max_steps=100_000,
        epochs=1_000_000,
        checkpoint_epochs=False,
        warmup_steps=1000,
        precision="fp16",
        gradient_accumulation_steps=1,
        num_workers=12,
    )
    found = schedule(config, 2, root=project.root)
    assert found is not None and found.total_steps == 100_000
    named = ["include", "model", "use_compressed_context", "tf_n_inner", "tf_attn_dropout"]
    assert "took compress_interval, tf_n_embd as hidden_size, tf_n_layer as num_layers, tf_n_head as" in taken
    assert "num_warmup_steps as warmup_steps" in taken
    assert [line.partition(f"{path}: ")[2].partition(":")[0] for line in said] == named
    kept = (project.scripts / "dark.py").read_text().splitlines()[-len(named) :]
    assert kept == [f"#   {line}" for line in DARKROOM.splitlines() if line.partition(":")[0] in named]


@pytest.mark.promise("guide-A5")
@pytest.mark.slow
def test_the_script_of_the_old_config_trains_with_a_compressed_context(cpu_project: Project, tmp_path: Path) -> None:
    path = tmp_path / "ad_dr_compressed.yaml"
    path.write_text(DARKROOM)
    assert main(["new", "algorithm_distillation", "dark", "--from-yaml", str(path)]) == 0
    small = ["--max-steps", "2", "--train-batch-size", "16", "--num-histories", "2", "--num-workers", "0"]
    small += ["--eval-rollouts", "1", "--eval-episodes", "8", "--test-fraction", "0"]
    with by_hand(cpu_project) as start:  # fp16 is 80 times slower than fp32 on a CPU
        run = start.forked(cpu_project.scripts / "dark.py", *small, "--mixed_precision", "no", nproc=1)
    resolved = read_json(run.files.config) or {}
    assert resolved["config"].items() >= {"compress_interval": 80, "sequence_length": 328}.items()
    settings = read_json(run.files.outputs / "model" / "config.json") or {}
    assert (settings["n_layer"], settings["n_head"], settings["n_embd"], settings["attn_pdrop"]) == (4, 4, 64, 0.1)
    losses = [row["train/loss"] for row in rows(run.files) if "train/loss" in row]
    assert losses[-1] == pytest.approx(math.log(5), rel=0.1), "five actions, untrained"


def test_an_old_config_that_turns_compression_off_trains_without_or_is_asked_which(tmp_path: Path) -> None:
    for value in ("false", "no"):
        off = old(tmp_path, f"use_compressed_context: {value}\nn_transit: 80\n")
        assert read_flat_yaml(off, AlgorithmDistillationConfig).values == {
            "compress_interval": None,
            "sequence_length": 80,
        }
    both = old(tmp_path, "compress_interval: 80\nuse_compressed_context: false\n")
    with pytest.raises(ConfigError, match="use_compressed_context and compress_interval both mean compress_interval"):
        read_flat_yaml(both, AlgorithmDistillationConfig)
    alone = old(tmp_path, "use_compressed_context: true\n")
    with pytest.raises(ConfigError, match=r"use_compressed_context needs compress_interval, which is not there; add"):
        read_flat_yaml(alone, AlgorithmDistillationConfig)
    assert "compress_interval says it" in read_flat_yaml(alone, MLMPretrainingConfig).unknown["use_compressed_context"]


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("num-warmup-steps: 1_000\nmax_steps: 10k", {"max_steps": 10_000, "warmup_steps": 1000}, ""),
        ("train_source_timesteps: few", {}, "is no whole number"),
        ("train_source_timesteps: [1]", {}, "is no whole number"),
        ("train_source_timesteps: 600\nhorizon: 30", {"horizon": 30, "num_episodes": 20}, ""),
        ("train_source_timesteps: 1010", {}, "means num_episodes x horizon, and is no multiple of horizon=20"),
        ("train_timesteps: 500\nepochs: 3", {"max_steps": 500, "epochs": 3, "checkpoint_epochs": False}, ""),
    ],
)
def test_a_number_that_means_two_fields_is_divided_by_the_one_that_is_known(
    tmp_path: Path, text: str, values: dict[str, object], said: str
) -> None:
    read = read_flat_yaml(old(tmp_path, text), AlgorithmDistillationConfig)
    assert read.values == values
    assert [why.startswith(said) for why in read.unknown.values()] == ([True] if said else [])


@pytest.mark.promise("guide-A5")
@pytest.mark.parametrize(
    ("text", "values", "refused"),
    [
        ("max_seq_len: 256", {"sequence_length": 256}, {}),
        (
            '{"n_layer": 4, "max_seq_len": 256, "context_len": 80}',
            {"num_layers": 4, "sequence_length": 80},
            {"max_seq_len": "is taken for the size of a table of positions, as context_len is there"},
        ),
        (
            "n_steps: 80\nbatch_size: 50\nn_epochs: 20\nlr: 0.1\ntrain_batch_size: 512\nclip_range: 0.2",
            {"learning_rate": 0.1, "batch_size": 512},
            {
                "batch_size": "may be a value of the reinforcement learning that clip_range is of; not taken",
                "n_epochs": "may be a value of the reinforcement learning",
            },
        ),
        ("n_steps: 80\nn_epochs: 20", {}, {"n_epochs": "may be a value of the reinforcement learning that n_steps is"}),
        ("n_steps: 80\nbatch_size: 20", {"batch_size": 20}, {}),
        (
            "tf_n_layer: 2\ntf_n_layers: 3\ndropout: 0.1\nattn_dropout: 0.1\nnum_heats: 3",
            {"num_layers": 2, "dropout": 0.1},
            {"num_heats": "AlgorithmDistillationConfig has no such field; did you mean num_heads?"},
        ),
    ],
)
def test_a_key_that_means_another_thing_beside_others_is_not_taken_and_told(
    tmp_path: Path, text: str, values: dict[str, object], refused: dict[str, str]
) -> None:
    read = read_flat_yaml(old(tmp_path, text), AlgorithmDistillationConfig)
    assert read.values == values
    assert len(read.taken) == len(values)
    for key, why in refused.items():
        assert read.unknown[key].startswith(why)
    for why in read.unknown.values():
        near = why.partition("did you mean ")[2].rstrip("?")
        assert not near or (near in AlgorithmDistillationConfig.model_fields and near not in values)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_packing_is_refused_with_the_reason(recipe: str, project: Project, cli: Cli) -> None:
    assert "packing: is no choice: documents fill" in cli("new", recipe, "x", "--set", "packing=True", code=2).stderr
    with pytest.raises(ConfigError, match="pairs share none"):
        normalized(["--packing", "true"], RECIPES[recipe].config_class)
