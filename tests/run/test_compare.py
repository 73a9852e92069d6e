"""Comparing runs: what differs, what is equal, best and last values, and which runs are chosen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbtools.config import Launch, Slurm
from nbtools.errors import ConfigError, RunNotFoundError
from nbtools.launcher.launch import create_run
from nbtools.launcher.preflight import check_launch
from nbtools.launcher.request import LaunchRequest
from nbtools.metrics.direction import direction_of
from nbtools.metrics.history import History
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.compare import MOST_RUNS, Comparison, compare_runs
from nbtools.run.curves import ends_of
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.script.program import Program
from nbtools.script.script import write_script

MakeRun = Callable[..., Run]


@pytest.fixture
def make(project: Project) -> MakeRun:
    """Make the records of an ended run, as the launcher and rank 0 write them."""

    def make_run(
        name: str,
        config: dict[str, Any] | None = None,
        *,
        launch: Launch | None = None,
        script: str = "print(1)\n",
        rows: str = "",
        **entries: Any,
    ) -> Run:
        files = RunDir.create(project.runs, name)
        files.lock.touch()
        number = len(list(project.runs.iterdir()))
        content = {"name": name, "launch": (launch or Launch()).model_dump(mode="json"), "time": 1.7e9 + number}
        write_json(files.launch, {**content, "recipe": None, "args": [], "versions": {"torch": "2.5"}, **entries})
        files.script.write_text(script)
        if config is not None:
            write_json(files.config, {"config": config, "derived": {"world_size": 1}})
        files.metrics.write_text(rows)
        write_json(files.finished, {"why": "completed", "step": 1, "metrics": {}})
        return Run(files.path)

    return make_run


def table_of(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {difference.name: difference.values for difference in comparison.differences}


def labels(comparison: Comparison) -> list[str]:
    return [one.label for one in comparison.members]


def test_only_fields_that_differ_are_listed_and_nested_ones_are_flat(make: MakeRun) -> None:
    a = make("a", {"lr": 0.1, "layers": 2, "model": {"width": 8, "heads": 2}})
    b = make("b", {"lr": 0.2, "layers": 2, "model": {"width": 8, "heads": 4}}, launch=Launch(nproc_per_node=2))
    found = compare_runs(a, b)
    assert table_of(found) == {"lr": ("0.1", "0.2"), "model.heads": ("2", "4"), "launch.nproc_per_node": ("1", "2")}
    assert labels(found) == ["a", "b"] and found.notes == []
    assert found.values("layers") == ("2", "2") and found.values("nproc_per_node") == ("1", "2")
    with pytest.raises(ConfigError, match=r"split='lrs': no compared run has such a field; there are lr"):
        found.values("lrs")


JOB = Launch(cluster=Slurm(partition="low", gpus_per_node=0))


@pytest.mark.parametrize(
    ("one", "other", "differences"),
    [
        (
            {"args": ["--lr", "0.1", "--fast", "data"], "script": "x = 1\ny = 2\n", "versions": {"torch": "2.5"}},
            {"args": ["--lr=0.2", "data", "seed=3"], "script": "x = 1\ny = 3\nz = 4\n", "versions": {"torch": "2.6"}},
            {
                "arguments.lr": ("0.1", "0.2"),
                "arguments.fast": ("data", "not given"),
                "arguments.1": ("not given", "data"),
                "arguments.seed": ("not given", "3"),
                "code.script": ("2 lines", "+2 −1 lines"),
                "versions.torch": ("2.5", "2.6"),
            },
        ),
        (
            {"config": {"lr": 0.1, "mask": 0.15}, "recipe": "mlm_pretraining"},
            {"config": {"lr": 0.2, "reward": 1}, "recipe": "llm_gan"},
            {"lr": ("0.1", "0.2"), "code.recipe": ("mlm_pretraining", "llm_gan")},
        ),
        (
            {},
            {"launch": JOB},
            {
                "launch.on": ("this machine", "Slurm"),
                "launch.slurm.partition": ("–", "low"),
                "launch.slurm.gpus_per_node": ("–", "0"),
                "launch.slurm.requeue": ("–", "True"),
            },
        ),
        ({"args": ["--token", "***"]}, {"args": ["--token", "***"]}, {}),
        ({"args": ["--token", "***"]}, {}, {}),
    ],
    ids=["any script", "two recipes", "a job", "hidden arguments", "one hidden argument"],
)
def test_runs_differ_in_arguments_code_versions_common_fields_and_place(
    make: MakeRun, one: dict[str, Any], other: dict[str, Any], differences: dict[str, tuple[str, str]]
) -> None:
    assert table_of(compare_runs(make("a", **one), make("b", **other))) == differences


def test_values_of_a_recipes_script_are_fields_and_no_code(project: Project, make: MakeRun) -> None:
    texts = []
    for rate in (0.1, 0.2):
        config = MLMPretrainingConfig(learning_rate=rate)
        path = write_script(config, "lm", Launch(nproc_per_node=round(rate * 10)), overwrite=True)
        texts.append((path.read_text(), config.model_dump(mode="json")))
    runs = [make("lm", config, script=text, recipe="mlm_pretraining") for text, config in texts]
    assert texts[0][0] != texts[1][0]
    found = compare_runs(*runs)
    assert table_of(found) == {"learning_rate": ("0.1", "0.2")}
    assert labels(found) == ["lm · learning_rate 0.1", "lm · learning_rate 0.2"]


def test_commits_and_uncommitted_changes_are_compared(make: MakeRun) -> None:
    clean = {"commit": "a" * 40, "lines": 0, "sha256": None, "cut": False}
    dirty = {"commit": "a" * 40, "lines": 3, "sha256": "12345678" * 8, "cut": False}
    other = {**dirty, "sha256": "abcdef12" * 8}
    found = table_of(compare_runs(make("a", code=clean), make("b", code=dirty), make("c", code=other)))
    assert found == {"code.uncommitted": ("none", "3 lines (12345678)", "3 lines (abcdef12)")}
    assert compare_runs(make("d"), make("e", code=clean)).differences == []


def test_a_label_prefers_a_value_to_a_path_and_has_the_end_of_a_path(make: MakeRun) -> None:
    place = "/home/someone/a/very/long/path/ckpts"
    two = [make("a", args=["--resume", f"{place}/ckpt_{n}.pt", *more]) for n, more in ((2, []), (4, ["--lr", "2"]))]
    assert labels(compare_runs(*two)) == ["a · lr not given", "a · lr 2"]
    third = make("a", args=["--resume", f"{place}/ckpt_6.pt"], resumed_from={"run": two[0].id, "step": 6})
    assert labels(compare_runs(two[0], third)) == ["a · resume ckpt_2.pt", "a · resume ckpt_6.pt"]


def test_patterns_fit_names_and_ids_oldest_first(project: Project, make: MakeRun) -> None:
    runs = [make(name) for name in ("lr_1", "lr_2", "other")]
    assert [run.id for run in compare_runs("lr_*").runs] == [run.id for run in runs[:2]]
    assert [run.id for run in compare_runs("2*lr_?", runs[2]).runs] == [run.id for run in runs]
    with pytest.raises(RunNotFoundError, match=r"'lrr-\*': fits no name or id .* there are: other, lr_2, lr_1"):
        compare_runs("lrr-*")


def test_a_repeated_an_unreadable_and_a_single_run_are_told(make: MakeRun) -> None:
    a, b, newer = make("a"), make("b"), make("c")
    newer.files.launch.write_text(json.dumps({"format": 99}))
    found = compare_runs([a, b], a.id, newer)
    assert [run.id for run in found.runs] == [a.id, b.id]
    assert found.notes[0] == f"{a.id}: was given twice and is drawn once"
    assert found.notes[1].startswith(f"{newer.id}: left out, it cannot be read:") and "format 99" in found.notes[1]
    with pytest.raises(ConfigError, match=r"1 run to compare, at least 2 are needed; .* was given twice"):
        compare_runs(a, a)
    with pytest.raises(ConfigError, match="3: is no run"):
        compare_runs(a, 3)


def test_at_most_twenty_runs_are_drawn_and_the_others_named(make: MakeRun) -> None:
    runs = [make(f"r{number}") for number in range(MOST_RUNS + 2)]
    found = compare_runs("r*")
    assert [run.id for run in found.runs] == [run.id for run in runs[:MOST_RUNS]]
    assert found.notes == [f"20 of 22 runs are drawn; left out: {runs[20].id}, {runs[21].id}"]


def test_the_sources_of_a_curve_are_the_runs_it_was_resumed_from(make: MakeRun) -> None:
    a = make("a")
    b = make("b", resumed_from={"run": a.id, "checkpoint": "step-000005", "step": 5})
    found = compare_runs(a, b)
    assert [one.sources for one in found.members] == [[], [(a.id, 5)]]
    assert table_of(found)["origin"] == ("from its beginning", f"resumed from {a.id} at step 5")


def test_best_is_the_least_loss_and_the_greatest_accuracy() -> None:
    history = History()
    for step, (loss, accuracy) in enumerate([(3.0, 0.1), (1.0, 0.7), (2.0, 0.5)], 1):
        row = {"step": step, "train/loss": loss, "eval/accuracy": accuracy, "train/learning_rate": 0.1 * step}
        history.extend(f"{json.dumps(row)}\n".encode())
    history.extend(b'{"step": 4, "train/loss": "NaN"}\n')
    found = {name: ends_of(name, history[name]) for name in history}
    assert (found["train/loss"].best, found["train/loss"].best_step) == (1.0, 2)
    assert found["train/loss"].last_step == 4
    assert (found["eval/accuracy"].best, found["eval/accuracy"].best_step) == (0.7, 2)
    assert found["train/learning_rate"].best is None and found["train/learning_rate"].last == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("train/loss", "lower"),
        ("eval_perplexity", "lower"),
        ("eval/f1", "higher"),
        ("acc@5", "higher"),
        ("eval/return_last", "higher"),
        ("train/tokens_per_s", "higher"),
        ("train/seconds_per_step", None),
        ("eval/unigram_loss", None),
        ("train/loss_scale", None),
        ("train/learning_rate", None),
        ("eval/self_bleu", None),
    ],
)
def test_the_better_direction_of_a_metric(name: str, direction: str | None) -> None:
    assert direction_of(name) == direction


def test_a_run_without_records_is_compared_all_the_same(project: Project, make: MakeRun) -> None:
    bare = RunDir.create(project.runs, "bare")
    bare.lock.touch()
    found = compare_runs(make("a"), Path(bare.path))
    assert [(one.label, one.nproc) for one in found.members] == [("a", 1), ("bare", None)]


def test_runs_of_launcher_scripts_differ_in_arguments_and_config(project: Project) -> None:
    (project.root / "train.py").write_text("print('step 1 loss 2.0')\n")
    (project.root / "base.yaml").write_text("lr: 0.1\nsteps: 3\n")
    runs = []
    for name, values, seed in (("a", ("lr=0.5",), "1"), ("b", ("lr=0.25", "steps=4"), "2")):
        words = ("--config", "base.yaml", "--seed", seed)
        program = Program(script="train.py", args=words, cwd=".", config_file="base.yaml", config_values=values)
        path = write_script(program, name, Launch(torchrun=False, gpus=()), project=project)
        runs.append(create_run(check_launch(LaunchRequest(script=path))))
    found = table_of(compare_runs(*(Run(files.path) for files in runs)))
    changed = {name: values for name, values in found.items() if name.startswith(("arguments.", "launch."))}
    steps = {"arguments.config.steps": ("not given", "4")}
    assert changed == {"arguments.seed": ("1", "2"), "arguments.config.lr": ("0.5", "0.25"), **steps}
