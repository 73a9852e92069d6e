"""What every test runs under: no settings of a surrounding run, and no silent skips where CI forbids them."""

import faulthandler
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from nbtools.machine import gpu_queue, slurm
from nbtools.machine.processes import members, sweep_processes
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.json_files import reserve, write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir

from capabilities import lacking, listed, skip_what_is_lacking
from slurm_cluster import SlurmCluster, running_cluster

# In the background of a shell without job control SIGINT is ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of OpenMP that wait for each other sleep: beside other tests, two that spin take three times the CPU time of a
# training of one process. torch reads this when it is imported, and launched processes inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# An example may take long on a machine with much else to do. Where CI is set, hypothesis does the same by itself, and
# takes fixed examples.
hypothesis.settings.register_profile(
    "shared machine",
    hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("shared machine")

NO_SKIP = bool(os.environ.get("NBTOOLS_NO_SKIP"))
_COST_OF_SLOW = 60
"""Time of a test marked slow, relative to that of another one."""
GPU_TESTS_ON_CPU = bool(os.environ.get("NBTOOLS_GPU_TESTS_ON_CPU"))


@pytest.fixture(autouse=True)
def _no_surrounding_run(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Take away what torchrun, the launcher or a shell would set, so that a test sees only what it sets itself."""
    for name in list(os.environ):
        if (name.startswith("NBTOOLS_") and name != "NBTOOLS_NO_SKIP") or name.startswith(
            ("TORCHELASTIC_", "ACCELERATE_", "SLURM_")
        ):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path_factory.getbasetemp() / "user_config" / os.urandom(8).hex()))
    monkeypatch.setenv("NBTOOLS_NO_PICTURE", "1")  # a second for each of hundreds of trainings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests for which the machine lacks what they need, or a CUDA device where they are marked `gpu`.

    torch is imported only if there are any of the latter. With NBTOOLS_GPU_TESTS_ON_CPU those marked `gpu(on_cpu=True)`
    run on the CPU then, to try the tests themselves.
    """
    skip_what_is_lacking(items)
    _order_by_cost(items)
    gpu_items = [
        item
        for item in items
        if (marker := item.get_closest_marker("gpu")) and not (GPU_TESTS_ON_CPU and marker.kwargs.get("on_cpu"))
    ]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _order_by_cost(items: list[pytest.Item]) -> None:
    """Put the files that take longest first: workers of pytest-xdist take files in this order, and so end together."""
    cost: Counter[Path] = Counter()
    for item in items:
        cost[item.path] += _COST_OF_SLOW if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -cost[item.path])


def _forbid_skip(report: Any) -> None:
    """Turn a skip into a failure; an expected failure (xfail) is reported as skipped too and stays what it is."""
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid}: only tests marked gpu, or for a capability that they need and the machine lacks, may be "
            f"skipped here (NBTOOLS_NO_SKIP): {reason}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if NO_SKIP and item.get_closest_marker("gpu") is None and not lacking(item):
        _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if NO_SKIP:
        _forbid_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Add the skipped tests to the file that NBTOOLS_SKIPPED names: scripts/test.sh prints it at its end."""
    path = os.environ.get("NBTOOLS_SKIPPED")
    if path and not hasattr(config, "workerinput"):  # xdist's workers report to the process that started them
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(listed(terminalreporter.stats.get("skipped", [])))
    path = os.environ.get("NBTOOLS_DURATIONS")
    if path and not hasattr(config, "workerinput"):
        reports = [report for group in terminalreporter.stats.values() for report in group]
        terminalreporter.write(write_durations(Path(path), reports))


_HANGS_AFTER_S = 1_500
"""More than the longest timeout of a test."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart() -> None:
    """End a process of the tests with its tracebacks if its test hangs where pytest-timeout's signal ends nothing."""
    faulthandler.dump_traceback_later(_HANGS_AFTER_S, exit=True, file=sys.__stderr__)


def pytest_runtest_logfinish() -> None:
    faulthandler.cancel_dump_traceback_later()  # a worker may wait long for the files of the others


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure at once, where pytest-xdist shows a letter until all tests have ended."""
    if report.failed and os.environ.get("NBTOOLS_DURATIONS") and "PYTEST_XDIST_WORKER" not in os.environ:
        what = "\n".join(line for line in report.longreprtext.splitlines() if line.startswith("E  "))
        print(f"\nFAILED ({report.when}) {report.nodeid}\n{what[:2000]}", flush=True)


_MOST_FILES = 15


def write_durations(path: Path, reports: Sequence[Any]) -> str:
    """Write the seconds of every test, the longest first, and return where the minutes go, by folder and by file."""
    seconds: Counter[str] = Counter()
    for report in reports:
        if isinstance(report, pytest.TestReport):  # of set-up, call and tear-down
            seconds[report.nodeid] += report.duration
    path.write_text("".join(f"{taken:.3f}\t{name}\n" for name, taken in seconds.most_common()), encoding="utf-8")
    files: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for name, taken in seconds.items():
        file = name.partition("::")[0]
        files[file] += taken
        folders["/".join(file.split("/")[:2])] += taken
    total = max(sum(seconds.values()), 1e-9)
    lines = [f"{taken / 60:6.1f} min {taken / total:4.0%}  {name}" for name, taken in folders.most_common()]
    lines += ["of which:", *(f"{taken / 60:6.1f} min  {name}" for name, taken in files.most_common(_MOST_FILES))]
    return "\n".join(["", f"{total / 60:.1f} min of tests, each in {path}:", *lines, ""])


# --- what Python reports to an auditor ------------------------------------------------------------

Event = tuple[str, tuple[Any, ...]]


@functools.cache
def _watchers() -> list[Callable[[Event], None]]:
    """Install an audit hook that does nothing until somebody watches: it can never be removed again."""
    watchers: list[Callable[[Event], None]] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        for watch in watchers:
            watch((event, arguments))

    sys.addaudithook(hook)
    return watchers


@pytest.fixture(scope="session")
def audited() -> Callable[[], AbstractContextManager[list[Event]]]:
    """Note every event that Python reports to an auditor meanwhile: code that runs, files, processes, connections."""

    @contextmanager
    def watch() -> Iterator[list[Event]]:
        happened: list[Event] = []
        _watchers().append(happened.append)
        try:
            yield happened
        finally:
            _watchers().remove(happened.append)

    return watch


# --- runs on torch-free programs ------------------------------------------------------------------

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Make a project of the test's own; afterwards no process of any run in it is alive."""
    for name in ("scripts", "runs"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("NBTOOLS_ROOT", str(tmp_path))
    monkeypatch.setenv("NBTOOLS_QUEUE_DIR", str(tmp_path / "queue"))
    yield Project(tmp_path)
    for folder in tmp_path.glob("runs/*"):
        sweep_processes(functools.partial(members, RunDir(folder)), grace_s=0)


@pytest.fixture
def supervised(project: Project) -> Iterator[Callable[..., Run]]:
    """Start any command under the real supervisor, as the launcher does, from a launch.json made by hand."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *argv: str | Path,
        name: str = "fake",
        shutdown_timeout_s: float = 5,
        gpus: Sequence[int] = (),
        on_end: Sequence[str] = (),
        notify_with: Sequence[str] = (),
        **more: Any,
    ) -> Run:
        run = RunDir(RunDir.create(project.runs, name).path.resolve())
        lock = acquire_lock(run.lock)
        assert lock is not None
        reserve(run.exit)
        held = [lock]
        if gpus:
            ticket, descriptor = gpu_queue.take(run, gpus, [f"GPU-{index}" for index in gpus])
            held.append(descriptor)
            more["ticket"] = str(ticket)
        content = {"name": name, "argv": [str(part) for part in argv], "cwd": str(project.root), "time": time.time()}
        settings = {"shutdown_timeout_s": shutdown_timeout_s, **more.pop("launch", {})}
        write_json(run.launch, {**content, "launch": settings, **more})
        with run.supervisor_log.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "nbtools.launcher.supervisor", str(run.path), "--launched"],
                env={**os.environ, "NBTOOLS_RUN_ID": run.id, "NBTOOLS_RUN_DIR": str(run.path)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=held,
                start_new_session=True,
            )
        assert supervisor.stdin is not None
        with supervisor.stdin as words:
            told = {"on_end": on_end, "notify_with": notify_with, "held": held}
            words.write(f"{json.dumps(told)}\n".encode())
        for descriptor in held:
            os.close(descriptor)
        started.append(supervisor)
        threading.Thread(target=supervisor.wait, daemon=True).start()
        return Run(run.path)

    yield start
    for supervisor in started:
        supervisor.kill()
        supervisor.wait()


@pytest.fixture
def injected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let every Python process that is started next, with further variables, import a module of this code first."""

    def inject(code: str, name: str = "sitecustomize.py", **variables: object) -> None:
        (tmp_path / "injected").mkdir()
        (tmp_path / "injected" / name).write_text(code)
        for variable, value in {"PYTHONPATH": tmp_path / "injected", **variables}.items():
            monkeypatch.setenv(variable, str(value))

    return inject


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that belongs to no run; SIGTERM and SIGUSR2 would end it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Take the right to write from folders, and give it back afterwards."""
    locked: list[Path] = []

    def lock(path: Path) -> None:
        locked.append(path)
        path.chmod(0o555)

    yield lock
    for path in locked:
        path.chmod(0o755)


# --- Slurm ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _running_slurm() -> Iterator[SlurmCluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _running_hosts() -> Iterator[SlurmCluster]:
    with running_cluster(hosts=True) as cluster:
        yield cluster


@contextmanager
def _without_jobs(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    cluster.reset()
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    slurm.forget()
    yield cluster
    cluster.reset()
    slurm.forget()


@pytest.fixture
def slurm_cluster(_running_slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A real Slurm of two nodes that is this test's only one, without jobs; for tests marked `needs("slurm")`."""
    with _without_jobs(_running_slurm, monkeypatch) as cluster:
        yield cluster


@pytest.fixture
def slurm_hosts(_running_hosts: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The same with two hosts that have names and addresses: `needs("slurm", "network namespaces")`."""
    with _without_jobs(_running_hosts, monkeypatch) as cluster:
        yield cluster


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `nbtools WORDS` in this process, without a terminal; an exception that is no exit fails the test."""
    from nbtools.cli.commands import main

    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def call(*words: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        try:
            returned = main([str(word) for word in words])
        except SystemExit as ended:
            returned = int(ended.code or 0)
        done = subprocess.CompletedProcess(words, returned, *capsys.readouterr())
        assert code is None or returned == code, done
        return done

    return call


@pytest.fixture
def everything_shown(cli: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[[Run], str]:
    """Return all that the command line, a panel and the library show of a run."""
    from nbtools.notebook.panel.panel import LivePlot

    def show(run: Run) -> str:
        answers = [cli(*words) for words in (["show", run.id, "--json"], ["show", run.id], ["runs", "--json"])]
        answers.append(cli("log", run.id))
        assert all(run.id in answer.stdout for answer in answers[:3])
        panel = LivePlot(run.dir)
        panel.refresh()
        widgets: list[Any] = [panel.widget]
        for widget in widgets:  # it grows meanwhile
            widgets += getattr(widget, "children", ())
        states = [*(repr(widget.get_state()) for widget in widgets), repr(panel._outputs()), repr(run.info)]
        panel.close()
        return "".join([*(answer.stdout + answer.stderr for answer in answers), *states])

    return show


# --- a browser --------------------------------------------------------------------------------------

QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--force-color-profile=srgb"),
]


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium or Chrome."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium: install it with `apt-get install chromium` (or google-chrome)")


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """Headless Chromium, closed at the end of a file: Playwright admits one per process, no event loop beside it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, headless=True, args=QUIET)
        yield started
        started.close()


# --- trainings of a second --------------------------------------------------------------------------


@pytest.fixture
def cpu_project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose trainings find no GPU, and one core each."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return project


@pytest.fixture
def tiny_config() -> Callable[..., Any]:
    """Return a maker of configs for a masked language model of some thousand weights, on the folder `texts`."""
    from tiny_mlm import tiny_mlm

    return tiny_mlm


@pytest.fixture
def texts(cpu_project: Project) -> Project:
    """Make a project with 30 small documents, on the CPU."""
    from tiny_mlm import write_texts

    write_texts(cpu_project.root / "texts")
    return cpu_project


@pytest.fixture
def tiny_training(
    texts: Project, tiny_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RunDir]:
    """Train `tiny_config` in this process, in a run directory as the launcher makes it."""
    from trainings import train_here

    def start(resume_from: Path | None = None, files: RunDir | None = None, attempt: int = 1, **changes: Any) -> RunDir:
        monkeypatch.setenv("NBTOOLS_ATTEMPT", str(attempt))
        return train_here(texts, tiny_config(**changes), resume_from, files, monkeypatch=monkeypatch)

    return start
