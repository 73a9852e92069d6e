"""Run directories of another user, made to harm the user who looks at them: links, pipes, forged records and names."""

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
import types
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import Audited, Cli, Event

import nbtools as nt
from nbtools.cli import output
from nbtools.cli.parser import parser
from nbtools.errors import NbtoolsError
from nbtools.machine import gpu_queue
from nbtools.machine.ownership import belongs_to, survives
from nbtools.machine.processes import family_of, leader_of, members
from nbtools.project import Project
from nbtools.run.ranks import stacks
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.atomic import append_descriptor, open_descriptor
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock, is_locked
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir, foreign_owner

from capabilities import ANOTHER_UID

Check = Callable[[int, bool, bool], dict[str, float]]

NAME = "2026-01-01_000000_x\nSUCCEEDED forged line\x1b[2J\x1b]0;title\x07\u202egnp\u2066\r\x9b1A"
"""A run's name with line feeds, terminal escapes and characters that reorder text."""


@pytest.fixture
def victims(tmp_path: Path) -> Path:
    """Files of the user, to which links lead."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in (".bashrc", "lock", "launch.json", "thesis.txt"):
        (folder / name).write_text("precious")
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything below a folder, with mode, size, inode and time of change; links are not followed."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        is_folder = stat.S_ISDIR(status.st_mode)
        found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, 0 if is_folder else status.st_size)
    return found


def give_away(folder: Path) -> None:
    """Make a folder and its content another user's."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, ANOTHER_UID, ANOTHER_UID, follow_symlinks=False)


def signalled(happened: list[Event]) -> list[tuple[Any, ...]]:
    """The signals that were sent; signal 0 only asks."""
    return [
        arguments
        for event, arguments in happened
        if event in ("os.kill", "os.killpg") and arguments[1] not in (0, None)
    ]


def forged(run: RunDir, pid: int, role: str = "supervisor") -> None:
    """Write what the world may read of a process as the process of a run."""
    identity = ProcessIdentity.of(pid).to_json()
    write_json(run.process, {"role": role, **identity})
    beat = {"rank": 0, "step": 3, "phase": "forward", "time": time.time() - 600, "stacks_signal": int(signal.SIGUSR2)}
    write_json(run.heartbeat(0), {**beat, **identity})


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.promise("safety-signals")
@pytest.mark.parametrize("role", ["supervisor", "torchrun", "worker"])
def test_a_forged_record_of_a_living_process_gets_no_signal(
    project: Project, stranger: subprocess.Popen[bytes], audited: Audited, role: str
) -> None:
    for pid in (stranger.pid, os.getppid(), os.getpid(), 1):
        run = RunDir.create(project.runs, "toy")
        run.log.touch()
        lock = acquire_lock(run.lock)
        assert lock is not None
        write_json(run.launch, {"name": "toy", "launch": {"shutdown_timeout_s": 0}})
        forged(run, pid, role)
        with audited() as happened:
            for is_held in (True, False):
                if not is_held:
                    os.close(lock)
                with contextlib.suppress(NbtoolsError):
                    Run(run.path).stop(timeout_s=0.1)
                found = stacks.take_stacks(run)
                assert [item.has_stacks for item in found] == [False]
        assert signalled(happened) == []
        assert not any(event == "subprocess.Popen" for event, _ in happened), "py-spy reads no stranger"
    assert stranger.poll() is None


def test_a_process_that_only_reads_files_of_a_run_is_not_its(project: Project) -> None:
    run = RunDir.create(project.runs, "toy")
    run.log.touch()
    run.lock.touch()
    reads = "import fcntl, sys, time; a = [open(path) for path in sys.argv[1:]]; fcntl.flock(a[0], fcntl.LOCK_SH)"
    program = f"{reads}; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, run.lock, run.log], stdout=subprocess.PIPE) as reader:
        try:
            assert reader.stdout is not None and reader.stdout.readline()
            assert not belongs_to(psutil.Process(reader.pid), run)
        finally:
            reader.kill()


HOLDS = """
import fcntl, os, sys, time
lock = open(sys.argv[1], "a")
if sys.argv[1].endswith("lock"):
    fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("name", ["lock", "rank0.log"])
def test_a_process_without_marks_belongs_to_the_run_it_holds_open(project: Project, name: str) -> None:
    """A training by hand has no marks; without locks on the file system, it has the log open."""
    run = RunDir.create(project.runs, "toy")
    agent = "import os, subprocess, sys; os.environ['TORCHELASTIC_RUN_ID'] = 'x'; subprocess.run(sys.argv[1:])"
    words = [sys.executable, "-c", HOLDS, str(run.path / name)]
    with subprocess.Popen([sys.executable, "-c", agent, *words], stdout=subprocess.PIPE) as torchrun:
        try:
            assert torchrun.stdout is not None and torchrun.stdout.readline()
            rank = psutil.Process(torchrun.pid).children()[0]
            assert belongs_to(rank, run)
            assert belongs_to(psutil.Process(torchrun.pid), run), "the parent of such a rank"
            assert not belongs_to(psutil.Process(os.getpid()), run)
            assert family_of(run, leader_of(run, ProcessIdentity.of(torchrun.pid))) == {
                rank,
                psutil.Process(torchrun.pid),
            }
            link = project.root / "second name"
            link.hardlink_to(run.path / name)  # any file that the process writes could be given this name
            assert not belongs_to(rank, run)
            link.unlink()
        finally:
            for process in [*psutil.Process(torchrun.pid).children(), torchrun]:
                process.kill()


def test_only_a_process_with_a_handler_survives_a_signal(stranger: subprocess.Popen[bytes]) -> None:
    assert not survives(psutil.Process(stranger.pid), signal.SIGUSR2)
    program = "import signal; signal.signal(signal.SIGUSR2, lambda *_: None); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as ready:
        try:
            assert ready.stdout is not None and ready.stdout.readline()
            assert survives(psutil.Process(ready.pid), signal.SIGUSR2)
        finally:
            ready.kill()


@pytest.mark.needs("another user")
@pytest.mark.promise("safety-signals")
def test_a_process_of_another_user_with_the_marks_of_a_run_gets_no_signal(project: Project, audited: Audited) -> None:
    run = RunDir.create(project.runs, "toy")
    run.lock.touch()
    write_json(run.launch, {"name": "toy"})
    marks = {"NBTOOLS_RUN_ID": run.id, "NBTOOLS_RUN_DIR": str(run.path)}
    with subprocess.Popen(["/bin/sleep", "600"], env=marks, user=ANOTHER_UID) as other:
        try:
            while not psutil.Process(other.pid).environ():  # until exec is complete
                time.sleep(0.01)
            assert members(run) == []
            forged(run, other.pid)
            lock = acquire_lock(run.lock)
            assert lock is not None
            with audited() as happened:
                with pytest.raises(NbtoolsError, match="only they can stop it"):
                    Run(run.path).stop(timeout_s=0.1)
                os.close(lock)
                assert all(not found.has_stacks for found in stacks.take_stacks(run))
            assert signalled(happened) == []
            assert other.poll() is None
        finally:
            other.kill()


# --- what is opened -------------------------------------------------------------------------------


def special_files(folder: Path) -> Iterator[Path]:
    """A pipe, a socket and a link to a terminal device."""
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "pipe")
    yield folder / "pipe"
    (folder / "device").symlink_to("/dev/ptmx")
    yield folder / "device"
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(folder):
        listening.bind("socket")
        yield folder / "socket"


@pytest.mark.promise("safety-special-files")
def test_no_special_file_is_opened(tmp_path: Path, audited: Audited) -> None:
    for path in special_files(tmp_path / "special"):
        with audited() as happened:
            for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
                with pytest.raises(OSError, match="not a regular file"):
                    open_descriptor(path, flags)
            with pytest.raises(OSError, match="not a regular file"):
                append_descriptor(path)
            with pytest.raises(OSError, match="not a regular file"):
                acquire_lock(path)
            assert not is_locked(path)
        assert not any(event == "open" for event, _ in happened)


def test_a_file_is_not_appended_to_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        append_descriptor(tmp_path / "link")
    assert not (tmp_path / "target").exists()


@pytest.mark.promise("safety-special-files")
def test_a_pipe_for_every_file_of_a_run_blocks_no_verb(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    for name in FILES:
        run = RunDir.create(project.runs, "toy")
        write_json(run.launch, {"name": "toy"})
        run.lock.touch()
        path = run.path / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        try_verbs(cli, run.id)
    cli("runs", code=None)
    cli("clean", code=None)


@pytest.mark.promise("safety-special-files")
def test_a_pipe_in_the_queue_and_tickets_of_a_newer_format_hold_up_no_launch(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.root / "queue"
    folder.mkdir()
    folder.chmod(0o1777)
    run = RunDir.create(project.runs, "toy")
    os.mkfifo(folder / "000000001.json")
    (folder / "000000002.json").write_text('{"format": 9}')
    held = (folder / "000000003.json").open("w+")
    held.write('{"format": 9, "run": "/r", "gpus": [0], "devices": ["GPU-0"]}')
    held.flush()
    fcntl.flock(held, fcntl.LOCK_EX)
    path, descriptor = gpu_queue.take(run, [0], ["GPU-0"])
    assert gpu_queue.ahead(path) == []
    held.close()
    os.close(descriptor)


# --- text -----------------------------------------------------------------------------------------

ESCAPES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
VISIBLE = "\n\t\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Characters of these categories that may be printed: ends of lines, and signs of Arabic, Syriac and Kaithi."""


def check_text(text: str) -> None:
    """No character of a text controls the terminal, and no line of it is a file's."""
    assert not {unicodedata.category(character) for character in text if character not in VISIBLE} & ESCAPES, text
    assert not any(line.startswith("SUCCEEDED forged") for line in text.split("\n")), text


VERBS = [
    *(["show", "RUN"], ["show", "RUN", "--json"], ["show", "RUN", "--media"], ["show", "RUN", "--stacks"]),
    *(["log", "RUN"], ["wait", "RUN", "--timeout", "0.01"], ["stop", "RUN"], ["resume", "RUN"]),
    *(["log", "RUN", "-f"], ["watch", "RUN"], ["plot", "RUN", "-o", "plot.png"], ["launch", "--dry-run", "RUN"]),
    *(["export", "RUN"], ["predict", "RUN", "the [MASK] was open"], ["steer", "RUN", "save", "--timeout", "0.01"]),
    *(["resume", "RUN", "--set", "max_steps=3"], ["clean", "RUN"], ["clean", "RUN", "--checkpoints"]),
]
"""The verbs that read one run. Ctrl-C ends `log -f` and `watch` where they would wait."""
WITHOUT_A_RUN = {"recipes", "new", "prepare", "runs", "doctor"}
LONGEST_VERB_S = 20.0
"""Every verb takes a fraction of a second; the machine of a test may be under load."""


def test_every_verb_that_reads_a_run_is_among_them() -> None:
    (verbs,) = (action.choices for action in parser("")._actions if isinstance(action.choices, dict))
    assert {words[0] for words in VERBS} | WITHOUT_A_RUN == set(verbs)


@pytest.fixture(autouse=True)
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C where `log -f` and `watch` wait."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "time", types.SimpleNamespace(**{**vars(time), "sleep": interrupt}))


def try_verbs(cli: Cli, ref: str) -> None:
    for words in VERBS:
        began = time.monotonic()
        done = cli(*(ref if word == "RUN" else word for word in words), code=None)
        assert time.monotonic() - began < LONGEST_VERB_S, words
        assert "Traceback" not in done.stderr, done.stderr
        check_text(done.stdout)
        check_text(done.stderr)


@pytest.mark.promise("safety-terminal")
@pytest.mark.parametrize("state", ["lost", "running", "ended", "queued"])
def test_a_hostile_name_reaches_no_terminal_from_any_verb(
    project: Project, cli: Cli, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.chdir(project.root)
    run = RunDir(project.runs / NAME)
    for folder in (run.path, run.ranks, run.checkpoints):
        folder.mkdir()
    after = project.runs / f"{NAME} again"
    after.mkdir()
    held = [acquire_lock(after / "lock")]
    more = {"after": str(after), "ticket": None} if state == "queued" else {}
    write_json(run.launch, {"name": NAME, "script": NAME, "recipe": NAME, "launch": {"shutdown_timeout_s": 0}, **more})
    if state in ("running", "queued"):
        held.append(acquire_lock(run.lock))
    if state != "queued":
        run.log.write_text(f"{NAME}\n")
        run.metrics.write_text(json.dumps({"step": 1, "time": 1e9, NAME: 2.0}) + "\n")
        write_json(run.heartbeat(0), {"rank": 0, "pid": 1, "host": NAME, "step": 1, "phase": NAME, "time": 1e9})
    if state == "ended":
        failure = {"rank": 0, "host": NAME, "exitcode": 1, "signal": None, "message": NAME, "traceback": NAME}
        write_json(run.exit, {"returncode": 1, "stopped": False, "failure": failure, "time": 1e9})
    states = {"lost": RunState.LOST, "running": RunState.RUNNING, "ended": RunState.FAILED, "queued": RunState.QUEUED}
    assert Run(run.path).state is states[state]
    try_verbs(cli, str(run.path))
    try_verbs(cli, "2026-01-01_0")  # two runs have this prefix
    for words in (["runs"], ["runs", "--json"], ["clean"], ["launch", "scripts/a.py", "--after", "2026-01-01_0"]):
        done = cli(*words, code=None)
        check_text(done.stdout)
        check_text(done.stderr)
    for descriptor in held:
        assert descriptor is not None
        os.close(descriptor)


@pytest.mark.promise("safety-terminal")
def test_the_name_of_a_run_that_is_ahead_in_the_queue_is_one_clean_line() -> None:
    check_text(str(gpu_queue.Ticket(1, Path("/runs") / NAME, (0,), frozenset())))
    assert "\n" not in str(gpu_queue.Ticket(1, Path("/runs") / NAME, (0,), frozenset()))
    assert len(str(gpu_queue.Ticket(1, Path("/runs") / ("x" * 100_000), (0,), frozenset()))) < 250


# --- another user's run ---------------------------------------------------------------------------


@pytest.mark.promise("safety-foreign-run")
@pytest.mark.parametrize("gives", [pytest.param(True, marks=pytest.mark.needs("another user")), False])
def test_nothing_is_written_into_a_run_of_another_user(
    project: Project, cli: Cli, victims: Path, monkeypatch: pytest.MonkeyPatch, gives: bool
) -> None:
    """The files are another user's, or this process is, as far as it can tell."""
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.root / "cache"))
    run = RunDir.create(project.runs, "toy")
    write_json(run.launch, {"name": "toy", "recipe": "mlm_pretraining", "launch": {"shutdown_timeout_s": 0}})
    run.log.write_text("hello\n")
    if not gives:
        monkeypatch.setattr(os, "geteuid", lambda: project.root.stat().st_uid + 1)
    for is_held in (False, True):
        with contextlib.ExitStack() as held:
            if is_held:
                lock = held.enter_context((run.path / "lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            if gives:
                give_away(run.path)
            before = snapshot(run.path)
            try_verbs(cli, run.id)
            assert "seen by me" in cli("show", run.id, "--note", "seen by me", "--tags", "theirs").stdout
            panel = nt.LivePlot(run.path)
            panel.close()
            assert foreign_owner(run.path)
            assert snapshot(run.path) == before
    done = cli("clean", run.id, "--yes", code=None)
    assert "only the owner may remove it" in done.stdout
    assert snapshot(run.path) == before
    if gives:
        link = project.runs / "2026-01-01_000000_link"
        link.symlink_to(victims)
        os.chown(link, ANOTHER_UID, ANOTHER_UID, follow_symlinks=False)
        before = snapshot(victims)
        assert foreign_owner(link), "the folder is this user's, and the link is not"
        try_verbs(cli, link.name)
        assert snapshot(victims) == before


@pytest.mark.needs("another user")
@pytest.mark.promise("safety-foreign-run", "safety-signals")
def test_another_users_link_to_a_run_of_this_user_does_not_stop_it(project: Project, cli: Cli) -> None:
    own = RunDir.create(project.root, "own")
    own.log.touch()
    write_json(own.launch, {"name": "own", "launch": {"shutdown_timeout_s": 0}})
    link = project.runs / "2026-01-01_000000_link"
    link.symlink_to(own.path)
    marks = {"NBTOOLS_RUN_ID": own.id, "NBTOOLS_RUN_DIR": str(own.path)}
    words = [sys.executable, "-c", HOLDS, str(own.lock)]
    with subprocess.Popen(words, env=os.environ | marks, stdout=subprocess.PIPE) as training:
        try:
            assert training.stdout is not None and training.stdout.readline()
            assert Run(own.path).state is RunState.RUNNING
            os.chown(link, ANOTHER_UID, ANOTHER_UID, follow_symlinks=False)
            (listed,) = nt.runs()
            stops: list[Callable[[], object]] = [Run(link).stop, Run(str(link)).stop, Run(link.name).stop, listed.stop]
            for stop in stops:
                with pytest.raises(NbtoolsError, match="only they can stop it"):
                    stop()
            for ref in (link.name, str(link)):
                assert "only they can stop it" in cli("stop", ref, code=None).stderr
            assert training.poll() is None
            os.chown(link, os.geteuid(), os.getegid(), follow_symlinks=False)
            assert Run(link).dir == own.path, "an own link is followed"
            Run(link).stop(timeout_s=0.1)
            assert training.wait(timeout=300) != 0
        finally:
            training.kill()


# --- many of them ---------------------------------------------------------------------------------

FILES = [
    *(
        *("launch.json", "config.json", "labels.json", "process.json", "exit.json"),
        *("finished.json", "lock", "rank0.log", "script.py"),
    ),
    *("metrics.jsonl", "system.jsonl", "attempts.jsonl", "ranks/0.heartbeat.json", "ranks/0.stacks.txt"),
    *("ranks/error.json", "ranks/supervisor.log", "media/sample.jsonl", "checkpoints/step-000001/manifest.json"),
]
"""The files of a run that a reader opens."""


def attacks(random: random.Random, stranger: int, victims: Path, planted: int) -> dict[str, Callable[[Path], object]]:
    """Ways to write one file of a run so that it harms its reader, by name."""
    identity = ProcessIdentity.of(stranger).to_json()
    deep = "[" * 100_000
    jsons = [
        {"role": "supervisor", **identity, "rank": 0, "step": 1, "phase": "x", "time": 1e9, "stacks_signal": 9},
        {"role": "worker", **identity, "rank": 0, "step": 1, "phase": "x", "time": 1e9, "stacks_signal": 12},
        {"role": "torchrun", **identity, "pid": 1},
        {"role": "supervisor", **identity, "pid": -1, "rank": -1},
        {"role": "supervisor", **identity, "pid": 0},
        {"role": "supervisor", **identity, "pid": 10**30, "rank": 10**30, "step": 10**30, "time": 1e300},
        {"name": NAME, "script": NAME, "ticket": str(victims / ".bashrc"), "after": str(victims), "flock": False},
        {"launch": [], "args": {}, "env": 3, "argv": "x", "recipe": [], "time": "x", "resumed_from": {"run": "../.."}},
        {"resumed_from": {"run": NAME, "checkpoint": "../..", "step": -1, "changes": {NAME: [NAME, NAME]}}},
        {"returncode": 10**40, "stopped": NAME, "failure": {"message": NAME, "host": NAME}, "time": -1e300},
        {"files": {"../../../home/thesis.txt": {"bytes": 8, "sha256": "0"}}, "step": 1, "metrics": {NAME: 1}},
        {"format": 10**6},
    ]

    def as_json(path: Path) -> None:
        path.write_text(json.dumps(random.choice(jsons)) + "\n")

    def link_in_every_name(path: Path) -> None:
        """As an attacker without a random name to guess would: one for each process that may come."""
        for pid in [*range(os.getpid() - planted // 10, os.getpid() + planted), *range(1, planted // 4)]:
            for name in (f".{path.name}.{pid}.tmp", f"{path.name}.{pid}.tmp", f"{path.name}.tmp", f".{path.name}.tmp"):
                with contextlib.suppress(FileExistsError):
                    (path.parent / name).symlink_to(victims / ".bashrc")

    return {
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to(victims / random.choice([".bashrc", "thesis.txt", "absent"])),
        "link to a folder": lambda path: path.symlink_to(random.choice([victims, Path("/"), path.parent])),
        "device": lambda path: path.symlink_to(random.choice(["/dev/zero", "/dev/ptmx", "/dev/full"])),
        "folder": lambda path: path.mkdir(),
        "json": as_json,
        "deep": lambda path: path.write_text(random.choice([deep, '{"a":' * 100_000, deep + "]" * 100_000])),
        "huge": lambda path: os.truncate(path, 40 << 20) if path.touch() is None else None,
        "bytes": lambda path: path.write_bytes(random.randbytes(2000) + NAME.encode() + b"\n\0\n"),
        "planted": link_in_every_name,
    }


def hostile_run(runs: Path, number: int, rng: random.Random, ways: dict[str, Callable[[Path], object]]) -> Path:
    name = f"2026-01-01_{number:06d}_" + rng.choice(["toy", NAME[18:], "$(touch x)", "-rf", "<img src=x>"])
    folder = runs / name
    for part in ("ranks", "media", "checkpoints/step-000001"):
        (folder / part).mkdir(parents=True)
    for file in rng.sample(FILES, rng.randint(3, len(FILES))):
        with contextlib.suppress(FileExistsError, IsADirectoryError):
            rng.choice(list(ways.values()))(folder / file)
    if not (folder / "lock").exists() and not (folder / "lock").is_symlink():
        (folder / "lock").touch()
    return folder


@pytest.fixture
def check_hostile_runs(
    project: Project,
    cli: Cli,
    audited: Audited,
    victims: Path,
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Check:
    """Try all verbs and the panel on generated run directories, or the next verb on each; return the longest times."""
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.root / "cache"))

    def check(count: int, gives_away: bool, tries_all: bool) -> dict[str, float]:
        rng = random.Random(count)
        ways = attacks(rng, stranger.pid, victims, planted=200 if tries_all else 12)
        folders = [hostile_run(project.runs, number, rng, ways) for number in range(count)]
        if gives_away:
            for folder in folders:
                give_away(folder)
        before, kept = snapshot(victims), snapshot(project.runs)
        longest: dict[str, float] = {}
        with audited() as happened:
            verbs = [words for words in VERBS if words[0] != "clean"]  # it looks at all runs each time
            calls = [
                [str(folder) if word == "RUN" else word for word in words]
                for number, folder in enumerate(folders)
                for words in (verbs if tries_all else [verbs[number % len(verbs)]])
            ]
            for words in [*calls, ["runs"], ["runs", "--json"], ["clean"], ["clean", "--state", "LOST"]]:
                began = time.monotonic()
                done = cli(*words, code=None)
                took = time.monotonic() - began
                verb = " ".join(word for word in words if not word.startswith("/"))
                longest[verb] = max(longest.get(verb, 0), took)
                assert "Traceback" not in done.stderr, (words, done.stderr)
                check_text(done.stdout)
                check_text(done.stderr)
            for folder in folders if tries_all else folders[:: len(verbs)]:
                began = time.monotonic()
                with contextlib.suppress(NbtoolsError, OSError):
                    panel = nt.LivePlot(folder)
                    panel.close()
                longest["panel"] = max(longest.get("panel", 0), time.monotonic() - began)
            check_text(repr(nt.runs()))
            for shown in (nt.runs()._repr_html_(), *(run._repr_html_() for run in nt.runs())):
                assert "<img" not in shown
        own = {os.getpid()}
        assert [call for call in signalled(happened) if call[0] not in own] == []
        assert stranger.poll() is None
        assert snapshot(victims) == before
        assert snapshot(project.runs) == kept
        return longest

    return check


@pytest.mark.needs("another user")
@pytest.mark.slow
@pytest.mark.promise("safety-foreign-run", "safety-signals", "safety-special-files", "safety-terminal")
def test_many_hostile_runs_touch_no_file_and_hold_up_no_verb(check_hostile_runs: Check) -> None:
    longest = check_hostile_runs(int(os.environ.get("HOSTILE_RUNS", "60")), True, False)
    print({verb: round(took, 2) for verb, took in sorted(longest.items())})
    assert max(longest.values()) < 3 * LONGEST_VERB_S


@pytest.mark.promise("safety-signals")
def test_hostile_runs_that_were_copied_do_no_harm_either(check_hostile_runs: Check) -> None:
    """As unpacked from an archive."""
    check_hostile_runs(6, False, True)
