"""A run and the notebook it was started from: a real Jupyter server, a real kernel, and everything that ends them."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fixture_types import Start
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import find_connection_file
from jupyter_lab import Lab, running_lab
from waiting import eventually

from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import read_heartbeats

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.fixture
def server(project: Project, tmp_path: Path) -> Iterator[Lab]:
    """A server in a project with a torch-free script."""
    shutil.copy(PROGRAMS / "fake_trainer.py", project.scripts / "toy.py")
    with running_lab(tmp_path / "home", project.root, ["jupyter_server"]) as started:
        yield started


def start_kernel(server: Lab) -> str:
    return str(server.ask("/api/kernels", "POST", {"name": "python3"})["id"])


def execute(server: Lab, kernel: str, code: str) -> str:
    """Run a cell and return what it printed."""
    client = BlockingKernelClient()
    client.load_connection_file(find_connection_file(f"kernel-{kernel}.json", path=[str(server.runtime)]))
    client.start_channels()
    printed: list[str] = []
    try:
        wait_until_ready(client)
        client.execute_interactive(
            code,
            timeout=300,
            output_hook=lambda message: printed.append(
                message["content"].get("text", "") or "\n".join(message["content"].get("traceback", []))
            ),
        )
    finally:
        client.stop_channels()
    return "".join(printed).strip()


def kernel_process(server: Lab, kernel: str) -> psutil.Process:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(process for process in children if any(kernel in part for part in process.cmdline()))


def wait_until_ready(client: BlockingKernelClient) -> None:
    """The client's own waiting takes a kernel for dead that misses one heartbeat, which a busy machine makes it do."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return client.wait_for_ready(timeout=300)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise


ATTACH = """
import json
import nbtools as nt
run = nt.Run.latest()
curve = run.history["train/loss"]
print(json.dumps([run.id, run.state, curve.steps.tolist(), curve.values.tolist()]))
"""


def launch_from(server: Lab, kernel: str, steps: int) -> Run:
    script = server.project / "scripts" / "toy.py"
    run_id = execute(
        server,
        kernel,
        "import nbtools as nt\n"
        f"run = nt.launch({str(script)!r}, nproc_per_node=2, gpus=(), args=['--steps', '{steps}'])\n"
        "print(run.id)",
    )
    run = Run(run_id)
    eventually(lambda: [beat.step >= 2 for beat in read_heartbeats(run.files)] == [True, True])
    return run


def goes_on(run: Run) -> bool:
    seen = run.step
    eventually(lambda: run.step > seen + 2)
    return run.state is RunState.RUNNING


@pytest.mark.promise("fault-5")
def test_a_run_outlives_its_kernel_and_a_fresh_one_sees_it_whole(server: Lab) -> None:
    kernel = start_kernel(server)
    run = launch_from(server, kernel, steps=100_000)

    server.ask(f"/api/kernels/{kernel}/interrupt", "POST")
    assert goes_on(run)
    server.ask(f"/api/kernels/{kernel}/restart", "POST")
    assert goes_on(run)
    kernel_process(server, kernel).kill()
    assert goes_on(run)

    fresh = start_kernel(server)
    name, state, steps, losses = json.loads(execute(server, fresh, ATTACH))
    assert (name, state) == (run.id, "RUNNING")
    assert steps == list(range(1, len(steps) + 1)), "no step is missing, none stands twice"
    here = run.history["train/loss"]
    assert losses == here.values[: len(losses)].tolist(), "the same curve as in a process that looked from the start"
    assert execute(server, fresh, "print(run.stop())").startswith("stopped at step")
    assert run.state is RunState.STOPPED
    *_, steps, losses = json.loads(execute(server, fresh, ATTACH))
    whole = run.history["train/loss"]
    assert (steps, losses) == (whole.steps.tolist(), whole.values.tolist())
    assert steps[-1] == run.step


@pytest.mark.promise("fault-6")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_outlives_the_server(server: Lab, number: signal.Signals) -> None:
    run = launch_from(server, start_kernel(server), steps=100_000)
    kernels = psutil.Process(server.process.pid).children()
    server.process.send_signal(number)
    server.process.wait(timeout=300)
    for kernel in kernels:  # a killed server leaves them behind
        if kernel.is_running():
            kernel.kill()
    assert goes_on(run)
    assert run.stop().startswith("stopped at step")


PANEL = """
import sys, time
from nbtools.notebook.panel.panel import LivePlot
panel = LivePlot(sys.argv[1], refresh_s=0.1)

def wait_for(word):
    while True:
        widgets = [panel.widget]
        for widget in widgets:  # it grows meanwhile
            widgets += getattr(widget, "children", ())
        if any(word in str(getattr(widget, "value", "")).lower() for widget in widgets):
            print(word, flush=True)
            return
        time.sleep(0.05)

wait_for("running")
if sys.stdin.readline() == "stop\\n":
    panel.run.stop(timeout_s=60)
wait_for("stopped")
panel.close()
"""


@pytest.mark.promise("safety-two-panels")
def test_two_kernels_show_one_run_and_the_stop_of_either(supervised: Start) -> None:
    run = supervised(sys.executable, PROGRAMS / "fake_trainer.py", "--steps", "100000", "--step-s", "0.05")
    words = [sys.executable, "-c", PANEL, str(run.dir)]
    kernels = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for kernel in kernels:
            assert kernel.stdout is not None and kernel.stdout.readline() == "running\n"
        for kernel, said in zip(kernels, ("stop\n", "look\n"), strict=True):
            kernel.stdin.write(said)
            kernel.stdin.flush()
        for kernel in kernels:
            said, errors = kernel.communicate(timeout=300)
            assert (kernel.returncode, said, errors) == (0, "stopped\n", "")
        assert run.state is RunState.STOPPED
    finally:
        for kernel in kernels:
            kernel.kill()
            kernel.wait()
