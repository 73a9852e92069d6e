"""Launching: the command, the checks before it, and real torchrun on torch-free scripts."""

import contextlib
import importlib
import inspect
import json
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import Cli, Inject, MonkeyPatch
from gpu_machine import find_gpus, stand_in
from launched import at_step, processes_of
from waiting import eventually

import nbtools
from nbtools.config import Launch
from nbtools.errors import LaunchError
from nbtools.launcher import placement
from nbtools.launcher.launch import child_environment, launch, launch_once
from nbtools.launcher.preflight import preflight
from nbtools.machine import interpreter
from nbtools.machine.devices import Holder
from nbtools.machine.processes import members
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.state import RunState
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.script.program import Program
from nbtools.script.script import write_script

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.fixture
def script(project: Project) -> Path:
    """A torch-free script in the project."""
    return Path(shutil.copy(PROGRAMS / "fake_trainer.py", project.scripts / "toy.py"))


# --- the command -------------------------------------------------------------------------------------


def test_every_argument_of_launch_reaches_its_request(monkeypatch: MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("nbtools.launcher.launch.launch_request", lambda *given: asked.extend(given))
    parameters = inspect.signature(launch).parameters
    launch(**{name: name for name in parameters})  # type: ignore[arg-type]
    request, after = asked
    assert request.settings == {name: name for name in Launch.model_fields}
    assert request.program == {"cwd": "cwd", "stop_signal": "stop_signal"}
    others = (request.script, request.args, request.name, request.queue, after)
    assert others == ("script", "args", "name", "queue", "after")
    assert all(f"        {name}: " in str(launch.__doc__) for name in parameters)


def test_the_command_needs_no_shell_and_no_port() -> None:
    placed = placement.place(Launch(nproc_per_node=3, gpus=(), shutdown_timeout_s=90))
    assert placed.command(["/p/a b.py"], Path("/p/runs/2026_x"), ["--name", "$(touch p) 'q'", "-x"]) == [
        *(sys.executable, "-P", "-m", "torch.distributed.run"),
        *("--nnodes=1", "--nproc-per-node=3", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
        *("--local-addr=127.0.0.1", "--rdzv-id=2026_x", "--max-restarts=0", "--shutdown-timeout=90"),
        *("--log-dir=/p/runs/2026_x/ranks", "--redirects=1:3,2:3"),
        *("--", "/p/a b.py", "--name", "$(touch p) 'q'", "-x"),
    ]
    alone = placement.place(Launch(gpus=())).command(["a.py"], Path("/r"), ())
    assert not [word for word in alone if word.startswith("--redirects")]


@pytest.mark.slow
def test_no_word_of_a_program_is_read_by_torchrun_or_accelerate(project: Project) -> None:
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    (project.root / "a.py").write_text("")
    for program in (Program(script="a.py"), Program(module="pkg.train")):
        by_accelerate = program.replace(accelerate_config="c.yaml").words(project.root, Launch())
        placed = placement.place(Launch(gpus=()))
        by_torchrun = placed.command(program.words(project.root, Launch()), Path("/r"), ())
        for parser, command in (get_args_parser(), by_torchrun[4:]), (launch_command_parser(), by_accelerate[2:]):
            options = parser._option_string_actions
            prefixes = sorted({option[:end] for option in options for end in range(2, len(option) + 1)})
            for first in ([], ["--"]):
                args = [*first, *(part for word in prefixes for part in (f"{word}=1", word, "1", "--", word))]
                read = parser.parse_args([*command, *args])
                assert (read.training_script_args, bool(read.module)) == (args, program.module is not None)
                assert read.training_script in (program.module, str(project.root / "a.py"))


def test_the_environment_loses_what_a_kernel_and_an_outer_torchrun_leak() -> None:
    ranks = ("RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "JPY_PARENT_PID", "FORCE_COLOR")
    leaked = dict.fromkeys(ranks, "1") | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    leaked["NBTOOLS_RUN_ID"] = "outer"
    kept = {"PATH": "/bin", "HF_TOKEN": "secret", "PYTHONPATH": "/mine", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = child_environment({**leaked, **kept}, {"OMP_NUM_THREADS": "1", "NBTOOLS_RUN_ID": "id"})
    assert environment == {**kept, "OMP_NUM_THREADS": "1", "NBTOOLS_RUN_ID": "id"}
    assert child_environment({"MPLBACKEND": "agg"}, {})["MPLBACKEND"] == "agg"


# --- what is refused ---------------------------------------------------------------------------------


def refused(script: object, **options: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        launch(script, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_scripts_that_cannot_run_are_refused_and_nothing_is_left(project: Project) -> None:
    (project.scripts / "binary.py").write_bytes(b"\0\xff")
    assert "no such file" in refused(project.scripts / "none.py")
    assert "is a folder" in refused(project.scripts)
    assert "no such file" in refused("a\0b.py")
    assert "not Python" in refused(project.scripts / "binary.py")
    assert list(project.runs.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node=0: must be >= 1"),
        ({"nproc_per_node": 3, "gpus": (0, 1)}, "at most one process per GPU"),
        ({"gpus": (0, 0)}, "may appear once"),
        ({"args": "--steps 3"}, "must be a list of strings"),
        ({"args": ["--steps", 3]}, "3 is a int"),
        ({"args": ["a\0b"]}, "null character"),
        ({"args": ["\ud800"]}, "cannot be encoded"),
        ({"shutdown_timeout_s": 0}, "shutdown_timeout_s=0"),
    ],
)
def test_wrong_options_leave_nothing(script: Path, project: Project, options: dict[str, Any], said: str) -> None:
    assert said in refused(script, **options)
    assert list(project.runs.iterdir()) == []


def test_a_wrong_value_in_a_script_of_ours_is_refused_by_file_and_line(project: Project) -> None:
    config, wanted = RECIPES["mlm_pretraining"].preset(next(iter(RECIPES["mlm_pretraining"].presets)))
    path = write_script(config, "wrong", wanted, project=project)
    lines = path.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "batch_size=" in line)
    lines[number - 1] = "    batch_size=-1,"
    path.write_text("\n".join(lines) + "\n")
    said = refused(path)
    assert said.startswith(f"{path}:{number}: batch_size=-1")


def test_an_unwritable_runs_folder_is_refused(script: Path, project: Project) -> None:
    project.runs.rmdir()
    project.runs.write_text("a file where the folder should be")
    assert "cannot be written" in refused(script)


def test_torch_that_is_not_installed_is_refused(script: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.importlib.util, "find_spec", lambda name: None)
    assert "torch is not installed" in refused(script)


# --- GPUs --------------------------------------------------------------------------------------------


@pytest.fixture
def four_gpus(monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    """A machine with four GPUs, the last of them in use, and a CUDA build of torch."""
    used = stand_in(3, Holder(7, "python", "alice", 2**30))
    find_gpus(monkeypatch, tmp_path, [stand_in(0), stand_in(1), stand_in(2), used])


@pytest.mark.promise("guide-L2", "guide-A1", "guide-O1", "guide-G4", "safety-gpu-count")
@pytest.mark.parametrize(
    ("asked", "gpus", "number"),
    [
        ({"nproc_per_node": 2}, (0, 1), 2),
        ({"nproc_per_node": 2, "gpus": (3, 1)}, (3, 1), 2),
        ({"nproc_per_node": 8, "gpus": ()}, (), 8),
        ({"nproc_per_node": "gpu"}, (0, 1, 2, 3), 4),
        ({"nproc_per_node": "gpu", "gpus": (1, 3)}, (1, 3), 2),
        ({"nproc_per_node": "gpu", "gpus": ()}, (), 1),
    ],
)
def test_processes_are_placed_on_the_first_or_the_named_gpus(
    script: Path, four_gpus: None, asked: dict[str, Any], gpus: tuple[int, ...], number: int
) -> None:
    checked = preflight(script, **asked)
    assert (checked.launch.gpus, checked.launch.nproc_per_node) == (gpus, number)
    assert checked.placement.environment["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, gpus))
    assert checked.placement.environment.get("CUDA_DEVICE_ORDER") == ("PCI_BUS_ID" if gpus else None)
    held = ["GPU 3 (Stand-in 9000) is in use: python (pid 7, alice, 1.0 GiB)"] * (3 in gpus)
    assert [warning for warning in checked.warnings if "GPU" in warning] == held


def test_runs_on_several_gpus_record_their_collectives(script: Path, four_gpus: None) -> None:
    run = RunDir("/runs/r")
    names = preflight(script, nproc_per_node=2).placement.variables(run)
    assert names["TORCH_FR_DUMP_TEMP_FILE"] == f"{run.ranks}/nccl_trace_rank_"
    for alone in (preflight(script, nproc_per_node=1), preflight(script, nproc_per_node=2, gpus=())):
        assert not any(name.startswith("TORCH_") for name in alone.placement.variables(run))


def test_gpus_that_are_not_there_are_refused_with_those_that_are(script: Path, four_gpus: None) -> None:
    assert "there is no GPU 7; usable GPUs: 0, 1, 2, 3" in refused(script, gpus=(7,))
    assert "usable GPUs are 0, 1, 2, 3; lower nproc_per_node" in refused(script, nproc_per_node=5)


def test_a_machine_without_gpus_refuses_named_ones(script: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "devices", list)
    assert "usable GPUs: none" in refused(script, gpus=(0,))
    assert "CUDA_VISIBLE_DEVICES" not in preflight(script, nproc_per_node=4).placement.environment
    assert preflight(script, nproc_per_node="gpu").launch.nproc_per_node == 1


def test_gpus_that_torch_cannot_use_are_a_refusal(script: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    find_gpus(monkeypatch, tmp_path, [stand_in(0)], cuda="None")
    said = refused(script)
    assert "CPU build" in said
    assert "driver 570.1" in said
    preflight(script, gpus=())


@pytest.mark.parametrize(("nproc", "threads"), [(1, "8"), (3, "2"), (16, "1")])
def test_cores_are_shared_by_the_processes(script: Path, monkeypatch: MonkeyPatch, nproc: int, threads: str) -> None:
    monkeypatch.setattr(placement, "num_cores", lambda: 8)
    assert preflight(script, nproc_per_node=nproc, gpus=()).placement.environment["OMP_NUM_THREADS"] == threads
    assert preflight(script, gpus=(), omp_num_threads=5).placement.environment["OMP_NUM_THREADS"] == "5"


def test_ranks_on_one_machine_use_the_loopback_or_the_users_interface(script: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert preflight(script, nproc_per_node=2, gpus=()).placement.environment["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
    assert "GLOO_SOCKET_IFNAME" not in preflight(script, gpus=()).placement.environment
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert "GLOO_SOCKET_IFNAME" not in preflight(script, nproc_per_node=2, gpus=()).placement.environment


# --- where and under which name ----------------------------------------------------------------------


@pytest.mark.promise("guide-A20")
def test_a_foreign_script_runs_where_it_is_launched(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    path = tmp_path / "lonely" / "träin $(x).py"
    path.parent.mkdir()
    path.write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    checked = preflight(path, gpus=())
    assert (checked.cwd, checked.project.runs) == (tmp_path, tmp_path / "runs"), "as torchrun has it"
    assert checked.name == "lonely_train_x"
    assert not checked.project.runs.exists()


def test_a_plain_script_of_ours_runs_from_its_copy(project: Project, script: Path) -> None:
    config, wanted = RECIPES["mlm_pretraining"].preset(next(iter(RECIPES["mlm_pretraining"].presets)))
    ours = preflight(write_script(config, "ours", wanted.replace(gpus=()), project=project))
    assert (ours.recipe, ours.name) == ("mlm_pretraining", "ours")
    assert preflight(shutil.copy(ours.script, project.scripts / "copy.py")).name == "copy"
    assert str(project.runs / "ID" / "script.py") in ours.command(project.runs / "ID")
    assert str(script) in preflight(script, gpus=()).command(project.runs / "ID")


def test_the_calls_values_win_over_the_scripts(project: Project) -> None:
    config, _ = RECIPES["mlm_pretraining"].preset(next(iter(RECIPES["mlm_pretraining"].presets)))
    path = write_script(config, "two", Launch(nproc_per_node=2, gpus=(), shutdown_timeout_s=30), project=project)
    assert preflight(path).launch.nproc_per_node == 2
    checked = preflight(path, nproc_per_node=1)
    assert (checked.launch.nproc_per_node, checked.launch.shutdown_timeout_s) == (1, 30)


def test_the_package_gives_the_function_whatever_was_imported_before() -> None:
    importlib.import_module("nbtools.launcher.launch")
    assert nbtools.launch is launch
    assert nbtools.preflight is preflight


def test_launching_imports_no_torch(script: Path, project: Project) -> None:
    program = (
        f"import sys, nbtools as nt; repr(nt.preflight({str(script)!r}, gpus=())._repr_html_()); "
        f"run = nt.launch({str(script)!r}, gpus=(), args=['--steps', '1']); "
        "print({'torch', 'ipywidgets'} & {*sys.modules}); run.stop()"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


def test_a_supervisor_that_cannot_start_leaves_none(script: Path, project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "/no/such/python" in refused(script)
    assert list(project.runs.iterdir()) == []


# --- real torchrun -----------------------------------------------------------------------------------


@pytest.mark.promise("guide-A9", "guide-M8", "fault-20", "guide-L10")
@pytest.mark.slow
def test_a_run_is_recorded_whole_although_torchruns_usual_ports_are_taken(script: Path) -> None:
    with contextlib.ExitStack() as taken:
        for port in (29500, 29501, 29400, 29401):
            listener = taken.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # another program has it: just as taken
                listener.bind(("", port))
                listener.listen()
        run = launch(script, nproc_per_node=2, gpus=(), args=["--steps", "5"])
        assert run.state in (RunState.QUEUED, RunState.RUNNING)
        assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert run.returncode == 0
    assert run.history["train/loss"].steps.tolist() == [1, 2, 3, 4, 5]
    assert "rank 0 step 5" in run.log()
    assert "rank 1" not in run.log()
    assert any("rank 1 step 5" in path.read_text() for path in run.files.rank_logs(1))
    assert run.files.script.read_bytes() == script.read_bytes()
    written = json.loads(run.files.launch.read_text())
    assert written["format"] == 1
    assert written["launch"]["nproc_per_node"] == 2
    assert run.files.supervisor_log.read_text() == ""


@pytest.mark.promise("fault-1")
@pytest.mark.slow
def test_torchrun_a_killed_rank_is_named_and_no_other_is_left(script: Path) -> None:
    run = launch(script, nproc_per_node=2, gpus=())
    at_step(run, 3)
    processes_of(run)["1"].kill()
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert (run.failure.rank, run.failure.host, run.failure.signal) == (1, socket.gethostname(), "SIGKILL")
    assert f"killed by SIGKILL at step {run.failure.step}: " in run.failure.headline
    assert [other["rank"] for other in run.failure.others] == [0]
    eventually(lambda: not members(run.files))


def test_a_script_is_found_from_the_project_and_through_links(project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("NBTOOLS_ROOT")
    elsewhere = project.root / "notebooks"
    elsewhere.mkdir()
    (project.scripts / "train_1.py").write_text("pass\n")
    link = project.root.parent / f"{project.root.name}-link"
    link.symlink_to(project.root)
    monkeypatch.chdir(elsewhere)
    for given in ("scripts/train_1.py", "../scripts/train_1.py", link / "scripts" / "train_1.py"):
        checked = preflight(given)
        assert (checked.script, checked.cwd) == (project.scripts / "train_1.py", elsewhere)
    outside = project.root.parent / f"{project.root.name}-outside.py"
    outside.write_text("pass\n")
    (project.scripts / "linked.py").symlink_to(outside)
    assert preflight(project.scripts / "linked.py").project == project


# --- launches that are given up ---------------------------------------------------------------------


@pytest.mark.promise("safety-supervisor")
def test_a_supervisor_that_ends_at_once_is_an_error(script: Path, project: Project, injected: Inject) -> None:
    injected("raise ImportError('psutil was built for another Python')\n", "psutil.py")
    assert "psutil was built for another Python" in refused(script, gpus=())
    assert list(project.runs.iterdir()) == []


@pytest.mark.promise("safety-interrupt")
@pytest.mark.parametrize("when", ["as it starts", "as it is awaited"])
def test_an_interrupt_as_the_supervisor_starts_leaves_nothing(
    script: Path, project: Project, monkeypatch: MonkeyPatch, when: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(*args: Any, **options: Any) -> None:
        started.append(subprocess.Popen(*args, **options))
        raise KeyboardInterrupt

    def awaited(run: RunDir, supervisor: subprocess.Popen[bytes]) -> None:
        started.append(supervisor)
        eventually(run.log.exists)
        raise KeyboardInterrupt

    module = importlib.import_module("nbtools.launcher.launch")
    if when == "as it starts":
        monkeypatch.setattr(module, "subprocess", type("module", (), {**vars(subprocess), "Popen": interrupted}))
    else:
        monkeypatch.setattr(module, "_wait_for_record", awaited)
    with pytest.raises(KeyboardInterrupt):
        launch(script, gpus=(), args=["--steps", "100000"])
    assert list(project.runs.iterdir()) == []
    with started[0] as supervisor:  # closes its pipe
        assert supervisor.wait(timeout=10) is not None
    assert not [found for found in psutil.process_iter(["cmdline"]) if str(project.runs) in str(found.info["cmdline"])]


def test_help_is_printed_and_starts_nothing(project: Project, cli: Cli) -> None:
    config, _ = RECIPES["mlm_pretraining"].preset("cpu_demo")
    path = write_script(config, "first", Launch(gpus=()), project=project)
    said = cli("launch", path, "--", "--help").stdout
    assert "--batch-size" in said
    assert "usage: first.py" in said
    assert "trains nothing" in refused(path, args=["-h"])
    foreign = project.scripts / "toy.py"
    foreign.write_text("import argparse; argparse.ArgumentParser().parse_args()\n")
    assert f"python {foreign} --help" in cli("launch", foreign, "--", "--help", code=2).stderr
    assert list(project.runs.iterdir()) == []


@pytest.mark.promise("safety-double-launch")
def test_two_callers_that_launch_a_script_once_share_its_run(script: Path, project: Project) -> None:
    script.write_text("import time\ntime.sleep(600)\n")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: launch_once(script), range(3)))
    try:
        assert len({run.id for run, _ in found}) == 1
        assert sorted(is_new for _, is_new in found) == [False, False, True]
        assert len(run_folders(project.runs)) == 1
    finally:
        found[0][0].stop(timeout_s=20)
    with pytest.raises(LaunchError, match="no such file"):
        launch_once(project.scripts / "none.py")
