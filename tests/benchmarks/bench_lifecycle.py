"""How fast a run's life goes: stop, a dead rank, re-attaching.

    python tests/benchmarks/bench_lifecycle.py [rounds]

The same two-rank program under `nbtools.launch` and under plain `torchrun --standalone`, one after the other. Goals:
from a stop to "no process left" at most 2 s when ranks cooperate and `shutdown_timeout` + 2 s when they do not; a
killed rank seen within 5 s; the panel drawn in a fresh kernel within 2 s of its imports.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import nbtools
from nbtools.machine.processes import living, members

PROGRAM = """\
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
stopping = []
if sys.argv[1] == "cooperates":
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
while True:
    step += 1
    wish = torch.tensor([len(stopping)])
    dist.all_reduce(wish)
    if rank == 0:
        print(f"step {step} loss {1 / step:.4f}", flush=True)
    if step == 5:
        Path(sys.argv[2], str(rank)).write_text(str(os.getpid()))
    if wish.item():
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""
ATTACH = """\
import sys, time
import nbtools as nt
nt.LivePlot, nt.Run
import nbtools.notebook.panel.panel
began = time.monotonic()
panel = nt.LivePlot(sys.argv[1])
panel.refresh()
assert panel._png
print(time.monotonic() - began)
"""
SHUTDOWN_TIMEOUT_S = 3


def ranks_of(folder: Path) -> list[psutil.Process]:
    """Wait until both ranks have trained a few steps."""
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.02)
    return [psutil.Process(int((folder / str(rank)).read_text())) for rank in range(2)]


def seconds_until(is_over: Callable[[], bool]) -> float:
    """Poll every 5 ms."""
    began = time.monotonic()
    while not is_over():
        time.sleep(0.005)
    return time.monotonic() - began


def ours(script: Path, how: str, folder: Path, act: str) -> float:
    """Launch with nbtools, act, and time until it is over."""
    run = nbtools.launch(
        script, nproc_per_node=2, gpus=(), args=[how, str(folder)], shutdown_timeout_s=SHUTDOWN_TIMEOUT_S
    )
    ranks = ranks_of(folder)
    family = members(run.files)
    began = time.monotonic()
    if act == "stop":
        run.stop()
        seconds_until(lambda: not living(family))
    else:
        ranks[1].kill()
        seconds_until(lambda: run.state.is_final)
        assert run.failure is not None
        assert run.failure.rank == 1
    return time.monotonic() - began


def plain(script: Path, how: str, folder: Path, act: str) -> float:
    """Start plain torchrun, act, and time until it is over."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}", str(script), how, str(folder)]
    agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ranks = ranks_of(folder)
    began = time.monotonic()
    if act == "stop":
        agent.send_signal(signal.SIGTERM)
    else:
        ranks[1].kill()
    agent.wait()
    seconds_until(lambda: not living(ranks))
    return time.monotonic() - began


def verdict(is_reached: bool) -> str:
    """What a goal came to."""
    return "reached" if is_reached else "MISSED"


def main(rounds: int = 3) -> None:
    """Print every figure beside its goal and beside the plain way."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "scripts").mkdir()
        (root / "runs").mkdir()
        os.environ["NBTOOLS_ROOT"] = name
        script = root / "scripts" / "steps.py"
        script.write_text(PROGRAM)
        goals = {
            ("cooperates", "stop"): ("stop, ranks cooperate", 2.0),
            ("ignores", "stop"): (f"stop, ranks ignore it ({SHUTDOWN_TIMEOUT_S} s granted)", SHUTDOWN_TIMEOUT_S + 2.0),
            ("cooperates", "kill"): ("a killed rank is seen", 5.0),
        }
        for (how, act), (title, goal_s) in goals.items():
            medians = {}
            for way in (ours, plain):
                times = []
                for _ in range(rounds):
                    with tempfile.TemporaryDirectory() as folder:
                        times.append(way(script, how, Path(folder), act))
                medians[way.__name__] = statistics.median(times)
            own, other = medians["ours"], medians["plain"]
            print(
                f"{title:<45} nbtools {own:.2f} s  torchrun {other:.2f} s  ratio {own / other:.2f}  "
                f"(goal <= {goal_s:g} s): {verdict(own <= goal_s)}"
            )
        attach = [
            float(subprocess.run([sys.executable, "-c", ATTACH, "latest"], check=True, capture_output=True).stdout)
            for _ in range(rounds)
        ]
        median = statistics.median(attach)
        print(f"re-attached in a fresh kernel, curves drawn    {median:.2f} s  (goal <= 2 s): {verdict(median <= 2)}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
