"""Programs that start their own processes: stopped, killed and ended without one that is left."""

import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from fixture_types import Cli, MonkeyPatch
from waiting import eventually

import nbtools as nt
from nbtools.config import Launch, Slurm
from nbtools.errors import LaunchError
from nbtools.launcher.preflight import preflight
from nbtools.machine.processes import members, outermost
from nbtools.notebook import run_html
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState, waiting_for
from nbtools.script.program import Program
from nbtools.script.script import write_script

from asking import asked

WORKER = """
import os, signal, sys, time
def main(*args):
    {more}
    os.write(1, b"started %d\\n" % os.getpid())  # one line, whatever writes beside it
    time.sleep(600)
"""
SPAWNERS = {
    "mp.spawn": "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(main, nprocs=2)\n",
    "daemons": "import multiprocessing as mp\nif __name__ == '__main__':\n    mp.set_start_method('spawn')\n"
    "    each = [mp.Process(target=main, daemon=True) for _ in range(2)]\n    [p.start() for p in each]\n"
    "    [p.join() for p in each]\n",
    "daemons that are not joined": "import multiprocessing as mp\nif __name__ == '__main__':\n"
    "    [mp.get_context('fork').Process(target=main).start() for _ in range(2)]\n    time.sleep(600)\n",
    "subprocesses in sessions of their own": "import subprocess\nif len(sys.argv) > 1:\n    main()\nelse:\n"
    "    each = [subprocess.Popen([sys.executable, __file__, 'rank'], start_new_session=True) for _ in range(2)]\n"
    "    [p.wait() for p in each]\n",
    "its own torchrun": "import subprocess\nif 'RANK' in os.environ:\n    main()\nelse:\n"
    "    sys.exit(subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', "
    "__file__]).returncode)\n",
}


def started(project: Project, text: str, *, shutdown_timeout_s: int = 10) -> Run:
    script = project.root / "theirs.py"
    script.write_text(text)
    run = nt.launch(script, gpus=(), torchrun=False, shutdown_timeout_s=shutdown_timeout_s)
    eventually(lambda: run.log().count("started") == 2 or run.state.is_final, lambda: run.log())
    assert run.state is RunState.RUNNING, run.log()
    return run


def ranks(run: Run) -> list[psutil.Process]:
    pids = [int(line.split()[1]) for line in run.log().splitlines() if line.startswith("started")]
    return [psutil.Process(pid) for pid in pids]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPAWNERS)
def test_a_stop_ends_every_process_that_a_program_started(cpu_project: Project, name: str) -> None:
    more = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if name == "daemons" else "pass"
    run = started(cpu_project, WORKER.format(more=more) + SPAWNERS[name], shutdown_timeout_s=2)
    found = ranks(run)
    sentence = run.stop()
    assert run.state is RunState.STOPPED, sentence
    assert not [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    eventually(lambda: not list(members(run.files)))  # the supervisor outlives its record for a moment


SAVES_ON_CTRL_C = """
import os, sys, time  # whatever its RANK is
def main(*args):
    try:
        os.write(1, b"started %d\\n" % os.getpid())
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(2)
        os.write(1, b"saved\\n")
"""
CONFIG = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n"
INTERRUPTED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "torchrun": ("main()", {}, {"nproc_per_node": 2}),
    "slurm": ("main()", {}, {"nproc_per_node": 2, "cluster": Slurm(gpus_per_node=0)}),
    "no torchrun": ("from torch.multiprocessing import spawn; spawn(main, nprocs=2)", {}, {"torchrun": False}),
    "accelerate": ("main()", {"accelerate_config": "accelerate.yaml"}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs("slurm") if name == "slurm" else ()) for name in INTERRUPTED]
)
def test_a_program_is_stopped_by_its_signal(cpu_project: Project, name: str, request: pytest.FixtureRequest) -> None:
    if name == "slurm":
        request.getfixturevalue("slurm_cluster")
    body, more, options = INTERRUPTED[name]
    (cpu_project.root / "theirs.py").write_text(f"{SAVES_ON_CTRL_C}if __name__ == '__main__':\n    {body}\n")
    (cpu_project.root / "accelerate.yaml").write_text(CONFIG)
    run = nt.launch(
        Program(script="theirs.py", stop_signal="SIGINT", **more),
        **{"gpus": None if name == "slurm" else (), **options},
    )
    count = 1 if name == "accelerate" else 2
    log = [run.log, lambda: "".join(path.read_text() for path in run.dir.glob("r*/**/stdout.log"))]
    eventually(lambda: sum(text().count("started") for text in log) == count, run.log)
    assert run.stop().startswith("stopped at step 0 on SIGINT; ")
    assert run.state is RunState.STOPPED
    assert sum(text().count("saved") for text in log) == count


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_no_process(cpu_project: Project) -> None:
    run = started(cpu_project, WORKER.format(more="pass") + SPAWNERS["subprocesses in sessions of their own"])
    found = ranks(run)
    script = str(cpu_project.root / "theirs.py")
    program = next(process for process in members(run.files) if process.cmdline()[1:] == [script])
    os.kill(program.pid, signal.SIGKILL)
    assert run.wait(60, check=False) is RunState.FAILED
    assert "SIGKILL" in run.failure.message
    assert "torchrun" not in run.failure.message
    eventually(lambda: not [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])
    eventually(lambda: not list(members(run.files)))  # the supervisor outlives its record for a moment


def test_a_module_that_is_nowhere_names_the_folder_that_has_it(cpu_project: Project, monkeypatch: MonkeyPatch) -> None:
    package, notebooks = cpu_project.root / "src" / "pkg", cpu_project.root / "notebooks"
    package.mkdir(parents=True)
    notebooks.mkdir()
    for name in ("__init__", "train"):
        (package / f"{name}.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.chdir(notebooks)
    module = Program(module="pkg.train")
    with pytest.raises(LaunchError, match=rf"is neither in {notebooks} nor in .*; {package.parent} has it: set cwd="):
        preflight(module, gpus=(), torchrun=False)
    assert preflight(module, gpus=(), torchrun=False, cwd="../src").cwd == package.parent
    for name in ("pkg.trian", "pkg"):  # a package without __main__
        with pytest.raises(LaunchError, match="give the folder that has it as cwd"):
            preflight(Program(module=name, cwd="src"), gpus=(), torchrun=False)
    assert preflight(Program(module="timeit", cwd="src"), gpus=(), torchrun=False).program


TRAIN = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--epochs", type=int, default=10)
p.add_argument("--opt", choices=["sgd", "adam"], default="adam")
args = p.{parse}()
"""


@pytest.mark.parametrize(
    ("args", "parse", "why"),
    [
        ("--lrr 3", "parse_args", ["--lrr: no argument of train.py; did you mean --lr?"]),
        ("--lrr=3 --lr 2", "parse_args", ["--lrr: no argument of train.py; did you mean --lr?"]),
        ("run.yaml", "parse_args", ["run.yaml: no argument of train.py; python train.py --help lists them"]),
        ("--epochs zwei", "parse_args", ["--epochs zwei: takes a whole number such as 1_000"]),
        (
            "--lr zwei --opt sdg",
            "parse_args",
            ["--lr zwei: takes a number such as 5e-4", "--opt sdg: takes one of sgd, adam"],
        ),
        ("--ep 3 --lr -1 --opt=sgd", "parse_args", []),
        ("--lrr 3", "parse_known_args", []),
        ("--epochs zwei --more", "parse_known_args", ["--epochs zwei: takes a whole number such as 1_000"]),
    ],
)
def test_arguments_that_argparse_will_refuse_are_reported_before_the_launch(
    cpu_project: Project, args: str, parse: str, why: list[str], monkeypatch: MonkeyPatch
) -> None:
    script = cpu_project.root / "train.py"
    script.write_text(TRAIN.format(parse=parse))
    monkeypatch.chdir(script.parent)
    assert preflight(script, args=args.split(), gpus=()).warnings == ()  # a launch neither runs nor interprets it
    asked(script)
    found = [finding for finding in preflight(script, args=args.split(), gpus=()).findings if finding.level == "warn"]
    assert [finding.sentence for finding in found] == [f"the program refuses its arguments: {each}" for each in why]
    ended = subprocess.run([sys.executable, script, *args.split()], capture_output=True, check=False)
    assert (ended.returncode == 2) is bool(why)


def test_arguments_are_not_refused_where_the_source_does_not_tell_all(cpu_project: Project) -> None:
    script = cpu_project.root / "train.py"
    more = "import sys\nif len(sys.argv) > 2:\n    p.add_argument('--lrr')\n    p.add_argument('--epochs2', type=int)\n"
    script.write_text(TRAIN.format(parse="parse_args").replace("args = ", f"{more}args = "))
    assert preflight(script, args=["--lrr", "3", "--epochs", "zwei"], gpus=()).warnings == ()


@pytest.mark.parametrize(("args", "found"), [((), 7), (("--epochs", "4"), 4)])
def test_a_launch_records_a_programs_epochs(cpu_project: Project, args: tuple[str, ...], found: int) -> None:
    script = cpu_project.root / "train.py"
    script.write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs', type=int, default=7)\nparser.parse_args()\n"
    )
    run = nt.launch(script, nproc_per_node=1, gpus=(), torchrun=False, args=args)
    run.wait()
    assert run.info["num_epochs"] == found


def test_the_supervisor_of_a_removed_run_ends_at_once_when_it_is_killed(cpu_project: Project) -> None:
    script = cpu_project.root / "train.py"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    run = nt.launch(script, nproc_per_node=1, gpus=(), torchrun=False)
    eventually(lambda: "begun" in run.log())
    run.dir.rename(cpu_project.root / "removed")
    (supervisor,) = outermost(members(run.files))
    supervisor.terminate()
    supervisor.wait(40)  # it would try for a minute to record the end
    assert members(run.files) == []


def test_the_name_of_a_run_tells_the_folder_of_its_program(cpu_project: Project) -> None:
    script = cpu_project.root / "pkg" / "main.py"
    script.parent.mkdir()
    script.write_text("")
    assert preflight(script, gpus=()).name == "pkg_main"
    assert preflight(script, gpus=(), name="small").name == "small"
    with pytest.raises(LaunchError, match="letters A to Z, digits, _ and, not first, -: a_b"):
        preflight(script, gpus=(), name="a/b")
    with pytest.raises(LaunchError, match=r"-: Grosse_5$"):
        preflight(script, gpus=(), name="Größe 5")
    (cpu_project.root / "top.py").write_text("")
    assert preflight(cpu_project.root / "top.py", gpus=()).name == "top"


def test_a_run_shows_its_arguments_and_its_python(cpu_project: Project, cli: Cli, monkeypatch: MonkeyPatch) -> None:
    folder = cpu_project.root / "data"
    folder.mkdir()
    script = cpu_project.root / "theirs.py"
    script.write_text("import os, time\nprint('in', os.getcwd(), flush=True)\ntime.sleep(60)\n")
    monkeypatch.chdir(cpu_project.root)
    options = ("--gpus", "none", "--no-torchrun", "--cwd", "data", "--name", "small")
    run = Run(cli("launch", script, *options, "--", "--lr", "0.1", "--api-key", "0123topsecret").stdout.strip())
    eventually(lambda: f"in {folder}" in run.log(), run.log)
    assert run.id.endswith("_small")
    said = cli("show", run.id).stdout
    for line in (r"arguments +--lr 0.1 --api-key '\*\*\*'", f"folder +{folder}", f"python +{sys.executable}"):
        assert re.search(line, said), said
    assert "theirs.py --lr 0.1" in cli("runs").stdout
    assert str(folder) in run_html.config(run)
    began = time.monotonic()
    assert "STOPPED" in cli("stop", run.id, "--timeout", "5").stdout.upper() and time.monotonic() - began < 50


def test_launcher_scripts_wait_for_each_other(cpu_project: Project) -> None:
    (cpu_project.root / "theirs.py").write_text(
        "import os, sys, time\nprint('argument', sys.argv[1], flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
    )
    paths = [
        write_script(
            Program(script="theirs.py", args=(number,), cwd="."), f"wait_{number}", Launch(torchrun=False, gpus=())
        )
        for number in ("1", "2")
    ]
    first = nt.launch(paths[0])
    second = nt.launch(paths[1], after=first)
    eventually(lambda: "argument 1" in first.log(), first.log)
    assert (first.state, second.state) == (RunState.RUNNING, RunState.QUEUED)
    assert waiting_for(second.records) == "after wait_1"
    (cpu_project.root / "go").touch()
    assert second.wait(60) is RunState.SUCCEEDED
    assert "argument 2" in second.log()
