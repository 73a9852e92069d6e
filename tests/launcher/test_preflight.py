"""The preflight: what it finds out before anything starts, how it shows that, and what it refuses."""

import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_types import Cli, MonkeyPatch
from gpu_machine import find_gpus, stand_in

import nbtools as nt
from nbtools.errors import LaunchError
from nbtools.launcher import placement, preflight, recipe_checks
from nbtools.launcher.checks import sizes
from nbtools.launcher.checks.findings import Finding, epochs, ok, problem, render_html, size, warn
from nbtools.launcher.checks.sizes import check_size, checkpoint_bytes, num_checkpoints_kept, precision_of
from nbtools.launcher.checks.step_count import Schedule
from nbtools.launcher.request import LaunchRequest, Preflight
from nbtools.machine.devices import Device, Holder
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import write_script

MLM = RECIPES["mlm_pretraining"]


def written(project: Project, name: str = "tiny", nproc_per_node: int = 2, **changes: Any) -> Path:
    config = MLM.preset("cpu_demo")[0].replace(**changes)
    return write_script(config, name, nt.Launch(nproc_per_node=nproc_per_node, gpus=()), project=project)


def check(path: Path) -> Preflight:
    return preflight.check_launch(LaunchRequest(script=path))


def found(checked: Preflight, subject: str) -> Finding:
    return next(finding for finding in checked.findings if finding.subject == subject)


# --- what it says ---------------------------------------------------------------------------------


@pytest.mark.promise("guide-O6")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [(100, "0.032 epochs"), (3125, "1 epoch"), (6250, "2 epochs"), (7000, "2.2 epochs"), (31_250_000, "10,000 epochs")],
)
def test_the_number_of_epochs_is_told_as_one_would_write_it(steps: int, expected: str) -> None:
    counted = Schedule(100_000, 10, 32, 3125, steps, 10)
    assert epochs(counted) == f"3,125 per epoch, {expected}"


def test_it_says_everything_that_a_launch_means(project: Project) -> None:
    checked = nt.preflight(written(project))
    subjects = ["devices", "torch", "disk", "batch", "parameters", "memory", "dataset", "steps", "command"]
    assert [finding.subject for finding in checked.findings] == subjects
    assert {finding.level for finding in checked.findings} == {"ok"}
    assert found(checked, "devices").text.startswith("CPU: 2 processes with ")
    assert found(checked, "batch").text == "32 samples per step: 16 × 2 processes"
    assert re.match(r"the English text that ships with Python, [\d,]+ training samples", found(checked, "dataset").text)
    assert re.fullmatch(r"600: \d+ per epoch, [\d.]+ epochs", found(checked, "steps").text)
    assert "runs/ID/script.py" in found(checked, "command").text
    assert str(project.root) not in repr(checked), "a notebook is shown to others"
    assert list(project.runs.iterdir()) == []


def test_too_few_cpu_cores_are_a_warning(project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("nbtools.launcher.placement.num_cores", lambda: 4)
    many, path = written(project, "many", nproc_per_node=5), written(project)
    assert found(check(many), "cores").sentence == (
        "5 processes on 4 CPU cores, so they slow each other down: lower nproc_per_node"
    )
    held = []
    for number, log in enumerate(("rank0.log", "rank0.log", "")):  # the last one waits
        run = RunDir(RunDir.create(project.runs, f"other_{number}").path)
        held.append(acquire_lock(run.lock))
        write_json(run.launch, {"launch": {"nproc_per_node": 1 + number}})
        write_json(run.process, ProcessIdentity.of(os.getpid()).to_json())
        if log:
            (run.path / log).touch()
        assert len(check(path).warnings) == (number > 0)
    second = sorted(project.runs.iterdir())[1].name
    said = found(check(path), "cores taken").sentence
    assert said == f"3 processes of 2 active runs on 4 CPU cores: after='{second}' (--after {second}) waits"
    assert check(written(project, "small", nproc_per_node=1)).warnings == ()
    for lock in held:
        os.close(lock or 0)
    assert check(path).warnings == ()


def test_it_says_it_in_lines_of_text_and_as_a_table(project: Project) -> None:
    checked = nt.preflight(written(project, hidden_size=512, keep_last=1_000_000, max_steps=None))
    (warning,) = checked.warnings
    assert "free in runs/, 1,000,002 checkpoints of about " in warning
    lines = repr(checked).splitlines()
    assert lines[0] == "tiny.py: ready to launch, 1 warning"
    assert any(line.startswith("warn     disk ") for line in lines)
    assert any(line.strip().startswith("-> nbtools clean frees some") for line in lines)
    table = checked._repr_html_()
    assert table.count("<tr>") == len(checked.findings)
    assert table.count("<b>!</b> warn") == 1


def test_flags_count_as_they_will_for_the_training(project: Project) -> None:
    checked = nt.preflight(written(project), args=["--max-steps", "7", "--batch_size=4", "--hidden-size", "64"])
    assert found(checked, "batch").text == "8 samples per step: 4 × 2 processes"
    assert found(checked, "steps").text.startswith("7: ")
    assert checked.config == MLM.preset("cpu_demo")[0].replace(max_steps=7, batch_size=4, hidden_size=64)
    assert found(checked, "command").text.endswith("--max-steps 7 --batch_size=4 --hidden-size 64")


@pytest.mark.promise("guide-A8")
def test_accumulation_is_part_of_the_batch(project: Project) -> None:
    checked = nt.preflight(written(project, gradient_accumulation_steps=3, nproc_per_node=1))
    assert found(checked, "batch").text == "48 samples per step: 16 × 3 accumulated × 1 process"


def test_a_script_of_somebody_else_has_devices_disk_and_a_command(project: Project) -> None:
    path = project.scripts / "train.py"
    path.write_text("pass\n")
    checked = nt.preflight(path, gpus=())
    assert [finding.subject for finding in checked.findings] == ["program", "devices", "torch", "disk", "command"]
    where = f"'scripts/train.py', started in {Path.cwd()}; its run is kept in {project.runs}"
    assert found(checked, "program").text == where
    assert "not known" in found(checked, "disk").text
    assert found(checked, "command").text.endswith(f" {path}")
    assert checked.config is None


def test_a_misspelled_keyword_names_the_nearest_one(project: Project) -> None:
    with pytest.raises(
        LaunchError, match=r"^'nproc_per_nod': Launch has no such field; did you mean nproc_per_node\?$"
    ):
        nt.preflight(written(project), nproc_per_nod=1)


def test_a_launch_warns_of_what_the_preflight_found(project: Project) -> None:
    path = project.scripts / "computed.py"
    path.write_text("import nbtools.recipes\nfor number in (1, 2):\n    pass\n")
    checked = nt.preflight(path, gpus=(), torchrun=False)
    with pytest.warns(UserWarning, match="launch settings") as warned:
        run = nt.launch(path, gpus=(), torchrun=False)
    run.wait(timeout_s=300)
    assert [str(warning.message) for warning in warned] == list(checked.warnings)
    assert checked.recipe is None and f"{path}:1" in checked.warnings[0]
    assert "launch settings are not read: give nproc_per_node" in checked.warnings[0]


# --- data -----------------------------------------------------------------------------------------

TEXT = "".join(f"one two three four five six seven {number}\n\n" for number in range(40))


def test_a_dataset_is_told_with_its_files_and_samples(project: Project) -> None:
    folder = project.root / "data"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.txt").write_text(TEXT.replace("one", name))
    checked = nt.preflight(written(project, dataset="data", sequence_length=8, batch_size=1))
    said = re.fullmatch(
        r"data: 3 files, 4\.2 KiB, (\d+) training samples, (\d+) evaluation samples: the lowest eval/loss chooses "
        r"the best checkpoint, and \d+ test samples measure it",
        found(checked, "dataset").text,
    )
    assert said, found(checked, "dataset")
    assert int(said[1]) > int(said[2]) > 0


def test_a_dataset_that_takes_long_to_count_is_left_to_the_training(project: Project) -> None:
    large = project.root / "large.txt"
    large.touch()
    os.truncate(large, recipe_checks._COUNTED_BYTES + 1)
    checked = nt.preflight(written(project, dataset="large.txt", max_steps=50, epochs=2))
    assert found(checked, "dataset").text == (
        "large.txt: 1 file, 4.0 MiB; the training counts its samples; evaluations measure at most 2,000 held-out "
        "samples; the lowest eval/loss chooses the best checkpoint"
    )
    assert found(checked, "steps").text == "known once the training has read the data: 2 epochs, at most 50"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TEXT, "training samples are too few for one step of 16 per process"),
        ("\xe9" * 3, "is not UTF-8"),
        ("", "choose another dataset"),
    ],
    ids=["short", "latin1", "empty"],
)
def test_data_that_cannot_be_trained_on_is_refused(project: Project, content: str, said: str) -> None:
    (project.root / "text.txt").write_text(content, encoding="latin1")
    (problem,) = nt.preflight(written(project, dataset="text.txt")).problems
    assert said in problem
    assert problem.startswith(str(project.scripts / "tiny.py"))


def test_a_file_that_cannot_be_read_is_refused_by_name(project: Project, monkeypatch: MonkeyPatch) -> None:
    (project.root / "text.txt").write_text(TEXT)
    access = os.access  # whoever runs the tests as root may read everything
    monkeypatch.setattr(
        recipe_checks.os, "access", lambda path, mode: Path(path).name != "text.txt" and access(path, mode)
    )
    with pytest.raises(LaunchError, match=r"dataset 'text\.txt': .*text\.txt cannot be read; change its permissions"):
        check(written(project, dataset="text.txt"))


# --- disk -----------------------------------------------------------------------------------------


def with_free(monkeypatch: MonkeyPatch, num_bytes: int) -> None:
    usage = SimpleNamespace(total=2**40, used=0, free=num_bytes)
    monkeypatch.setattr(sizes.shutil, "disk_usage", lambda path: usage)


@pytest.mark.promise("guide-M7")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_disk_has_to_hold_what_a_run_keeps(strategy: str, project: Project, monkeypatch: MonkeyPatch) -> None:
    """The model in outputs/ is a hard link to a checkpoint's, except of shards, which are merged there."""
    path = written(project, keep_last=2, keep_best=1, max_steps=None, strategy=strategy)
    config = check(path).config
    assert config is not None
    each = checkpoint_bytes(config)
    assert each is not None
    whole = each // 3 if strategy == "fsdp" else 0
    needed = num_checkpoints_kept(config) * each + whole
    with_free(monkeypatch, needed)
    assert found(check(path), "disk").level == "ok"
    with_free(monkeypatch, needed - 1)
    short = found(check(path), "disk")
    assert short.level == "warn"
    also = f", and {size(whole)} for outputs/model" if whole else ""
    assert f"4 checkpoints of about {size(each)} at once{also}: {size(needed)}" in short.text
    assert "nbtools clean" in short.next_step
    with_free(monkeypatch, each)
    check(path)
    with_free(monkeypatch, each - 1)
    with pytest.raises(LaunchError, match=rf"a checkpoint of this model takes about {size(each)}: nbtools clean"):
        check(path)


def test_the_free_bytes_are_those_of_the_file_system_of_the_runs(project: Project) -> None:
    project.runs.rmdir()  # it is made by the first launch
    said = found(nt.preflight(written(project)), "disk").text
    free = shutil.disk_usage(project.root).free
    number, unit = said.split()[:2]
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(free, rel=0.5)


def test_a_downloaded_model_has_a_size_that_only_the_training_knows(project: Project) -> None:
    checked = nt.preflight(written(project, model_name="somewhere/model"))
    assert "the size of this training's checkpoints is not known" in found(checked, "disk").text
    assert found(checked, "parameters").text == "known once the model is loaded"


# --- GPUs -----------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch: MonkeyPatch, tmp_path: Path) -> list[Device]:
    """A machine with two GPUs, the second of them in use, and a build of torch for CUDA 12.8."""
    holders = (
        Holder(7, "<img src=x onerror=alert(1)>\x1b[2J", "alice", 2**30),
        Holder(os.getpid(), "python", "me", 2**29),
        Holder(8, "python", "me", None, "2026-01-31_142233_tiny"),
    )
    machine = [stand_in(0), stand_in(1, *holders)]
    find_gpus(monkeypatch, tmp_path, machine)
    return machine


@pytest.fixture
def script(project: Project) -> Path:
    path = project.scripts / "train.py"
    path.write_text("import os\nos.environ['RANK']\n")
    return path


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [([], "fp32"), ([(9, 0), (8, 0)], "bf16"), ([(9, 0), (7, 5)], "fp32"), ([(9, 0), None], "auto")],
)
def test_auto_is_the_precision_of_the_gpus(capabilities: list[tuple[int, int] | None], precision: str) -> None:
    gpus = [Device(0, "GPU-0", "a GPU", 80 * 2**30, 0, (), "0", capability) for capability in capabilities]
    said = {finding.subject: finding.text for finding in check_size(MLM.config_class(), 1, gpus)}
    assert said["parameters"].endswith(f"trained in {precision}")
    assert precision_of(MLM.config_class(precision="fp16"), gpus) == "fp16"


def test_whoever_holds_memory_is_named_with_what_to_do(gpus: list[Device], script: Path) -> None:
    checked = nt.preflight(script, gpus=(0, 1), nproc_per_node=2)
    (held,) = [finding for finding in checked.findings if finding.level == "warn"]
    for said in ("alice, 1.0 GiB", "this process", "another run of nbtools: 2026-01-31_142233_tiny"):
        assert said in held.text
    assert held.next_step == "restart this kernel to free it, or choose other GPUs"
    assert found(checked, "devices").text.startswith("GPU 0,1 (Stand-in 9000): 2 processes with ")
    assert found(checked, "devices").text.endswith(", 154.0 GiB free")


def test_a_hostile_name_is_shown_literally_and_moves_no_cursor(gpus: list[Device], script: Path) -> None:
    checked = nt.preflight(script, gpus=(1,))
    assert "\x1b" not in repr(checked)
    table = checked._repr_html_()
    assert "tex2jax_ignore" in table
    assert "<img" not in table
    assert "&lt;img src=x" in table


@pytest.mark.parametrize(
    ("newest", "fits"), [((12, 2), True), ((12, 8), True), ((13, 0), True), (None, True), ((11, 8), False)]
)
def test_a_build_of_torch_runs_on_drivers_of_its_major_version(
    gpus: list[Device], script: Path, monkeypatch: MonkeyPatch, newest: tuple[int, int] | None, fits: bool
) -> None:
    monkeypatch.setattr(placement, "cuda_version", lambda: newest)
    if fits:
        said = found(nt.preflight(script, gpus=(0,)), "torch").text
        assert "(CUDA 12.8 build), driver 570.1" in said
        return
    (problem,) = nt.preflight(script, gpus=(0,)).problems
    for part in ("is built for CUDA 12.8", "driver 570.1 supports CUDA 11.8", "CUDA 11, or select the CPU"):
        assert part in problem
    assert nt.preflight(script, gpus=()).problems == ()


def test_idle_gpus_are_told(gpus: list[Device], script: Path) -> None:
    assert "nproc_per_node=1 leaves GPU 1 idle" in nt.preflight(script, gpus=(0, 1)).warnings[-1]


# --- command line ---------------------------------------------------------------------------------


def test_the_command_prints_the_same_or_json(project: Project, cli: Cli) -> None:
    path = str(written(project))
    lines = cli("launch", "--dry-run", path, "--", "--max-steps", "7").stdout.splitlines()
    assert lines[0] == "tiny.py: ready to launch"
    assert any(line.startswith("ok       steps        7: ") for line in lines)
    facts = json.loads(cli("launch", "--dry-run", path, "--nproc-per-node", "1", "--json").stdout)
    assert {fact["subject"]: fact["text"] for fact in facts}["batch"] == "16 samples per step: 16 × 1 process"
    assert {fact["level"] for fact in facts} == {"ok"}


def test_the_command_refuses_with_exit_code_2(project: Project, cli: Cli) -> None:
    path = str(written(project, dataset="none.txt"))
    done = cli("launch", "--dry-run", path, code=2)
    assert done.stderr == "nbtools: tiny.py: cannot be launched, 1 problem\n"
    assert "none.txt" in done.stdout
    assert "none.txt" in cli("launch", path, code=2).stderr
    assert list(project.runs.iterdir()) == []
    assert "--oops" in cli("launch", "--dry-run", str(written(project)), "--", "--oops", code=2).stderr


def test_a_dry_run_shows_what_is_behind_a_problem(project: Project, cli: Cli, monkeypatch: MonkeyPatch) -> None:
    with_free(monkeypatch, 1)
    path = written(project, dataset="none.txt", nproc_per_node=2)
    facts = json.loads(cli("launch", "--dry-run", path, "--gpus", "0,1", "--json", code=2).stdout)
    levels = {fact["subject"]: fact["level"] for fact in facts}
    assert levels == dict.fromkeys(("dataset", "devices", "disk"), "problem") | dict.fromkeys(
        ("batch", "parameters", "memory"), "ok"
    )
    with pytest.raises(LaunchError, match=r"none\.txt"):
        check(path)


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1.5 * 2**30, "1.5 GiB"), (5000 * 2**40, "5,000.0 TiB")],
)
def test_sizes_in_words(num_bytes: float, words: str) -> None:
    assert size(num_bytes) == words


def test_every_level_has_a_sign_and_a_finding_is_plain_values() -> None:
    findings = [ok("a", "x"), warn("b", "y", "do"), problem("c", "z", "stop")]
    table = render_html("<t>", findings)
    assert [sign in table for sign in "✓!✕"] == [True] * 3
    assert "&lt;t&gt;" in table
    assert asdict(findings[1]) == {"level": "warn", "subject": "b", "text": "y", "next_step": "do"}
    assert [finding.sentence for finding in findings] == ["x", "y: do", "z: stop"]
