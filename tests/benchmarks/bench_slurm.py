"""What nbtools costs on a Slurm cluster: a job up to its first step, and the polling of many runs.

    python tests/benchmarks/bench_slurm.py [rounds]

Starts a Slurm of its own (root; Debian's slurm-wlm and munge). First, CPU seconds from the submission to the first
all-reduce of two ranks: `nbtools.launch` with a cluster against a job script with torchrun written by hand, in turn.
Counted are the call, sbatch, and every process of the job below Slurm's own. Goal: at most 0.5 s more. Then the CPU
time of a minute in which the states of 20 submitted runs are asked every two seconds, as panels do, without drawing: at
most 0.3 s and 6 calls of squeue. And the CPU time of reading an answer with 5,000 jobs: at most 0.1 s.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rounds import Cost, print_costs, so_far

from nbtools.config import Slurm
from nbtools.launcher.launch import start
from nbtools.launcher.preflight import check_launch
from nbtools.launcher.request import LaunchRequest
from nbtools.machine import slurm

from slurm_cluster import SlurmCluster, running_cluster

GOAL_S, GOAL_POLLING_S, GOAL_CALLS = 0.5, 0.3, 6
RUNS, MINUTE_S, EVERY_S = 20, 60, 2
HAND, OURS = "sbatch, torchrun by hand", "nbtools.launch"

PROGRAM = """\
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
reached = time.time()
if dist.get_rank() == 0:
    import psutil
    top = psutil.Process()
    while not (top.parent().name().startswith("slurmstepd") or top.parent().pid == 1):
        top = top.parent()
    tree = [top, *top.children(recursive=True)]
    cpu = sum(sum(process.cpu_times()[:4]) for process in tree)
    Path(sys.argv[1] + ".part").write_text(json.dumps({"time": reached, "cpu": cpu, "processes": len(tree)}))
    os.replace(sys.argv[1] + ".part", sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""

BY_HAND = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=4 --time=10 --output={log}
export OMP_NUM_THREADS=1
{python} -m torch.distributed.run --standalone --nproc-per-node=2 {script} {measured}
"""


@contextmanager
def counted() -> Iterator[list[str]]:
    """Note the commands of Slurm that are called meanwhile."""
    calls: list[str] = []
    real = slurm._called

    def called(*command: str, **options: object) -> object:
        calls.append(command[0])
        return real(*command, **options)  # type: ignore[arg-type]

    slurm._called = called  # type: ignore[assignment]
    try:
        yield calls
    finally:
        slurm._called = real


def until_first_step(root: Path, cluster: SlurmCluster, rounds: int) -> None:
    """Print the CPU and wall time from the submission to the first all-reduce, either way."""
    script = root / "scripts" / "first_all_reduce.py"
    script.write_text(PROGRAM)
    asked = Slurm(gpus_per_node=0, cpus_per_task=4, time_limit="10")
    rows: dict[str, list[Cost]] = {HAND: [], OURS: []}
    for number in range(rounds + 1):
        for name in sorted(rows, reverse=number % 2 == 0):
            measured, log = root / f"{number}-{name[:2]}.json", root / "by_hand.log"
            wall, cpu = time.time(), so_far().cpu_s
            if name == OURS:
                run = start(
                    check_launch(
                        LaunchRequest(
                            script=script, args=[str(measured)], settings={"nproc_per_node": 2, "cluster": asked}
                        )
                    )
                )
                cpu = so_far().cpu_s - cpu
                run.wait()
            else:
                text = BY_HAND.format(log=log, python=sys.executable, script=script, measured=measured)
                (root / "by_hand.sbatch").write_text(text)
                job = int(cluster.call("sbatch", "--parsable", str(root / "by_hand.sbatch")))
                cpu = so_far().cpu_s - cpu
                cluster.wait_until(job, "COMPLETED", "FAILED", within_s=300)
            result = json.loads(measured.read_text())
            if number:  # the first round warms the disk's cache
                rows[name].append(Cost(result["time"] - wall, result["cpu"] + cpu))
    print_costs(rows)
    pairs = [ours.cpu_s - hand.cpu_s for ours, hand in zip(rows[OURS], rows[HAND], strict=True)]
    extra = statistics.median(pairs)
    print(
        f"nbtools costs {extra:+.2f} CPU s in the median pair ({', '.join(f'{pair:+.2f}' for pair in pairs)}), ", end=""
    )
    print(f"goal <= {GOAL_S}: {'reached' if extra <= GOAL_S else 'MISSED'}")


def a_minute_of_polling(root: Path, cluster: SlurmCluster) -> None:
    """Print the CPU time and the calls of squeue of a minute in which the states of pending runs are asked."""
    before = cluster.submit("sleep 3600", "--partition=high", "--nodes=2", "--exclusive")
    cluster.wait_until(before, "RUNNING")
    script = root / "scripts" / "waits.py"
    script.write_text("")
    asked = Slurm(gpus_per_node=0)
    runs = [start(check_launch(LaunchRequest(script=script, settings={"cluster": asked}))) for _ in range(RUNS)]
    states = {run.state for run in runs}
    with counted() as calls:
        cpu, ends = so_far().cpu_s, time.monotonic() + MINUTE_S
        while time.monotonic() < ends:
            states |= {run.state for run in runs}
            time.sleep(EVERY_S)
        cpu = so_far().cpu_s - cpu
    for run in runs:
        run.stop()
        shutil.rmtree(run.dir)
    reached = cpu <= GOAL_POLLING_S and len(calls) <= GOAL_CALLS
    print(
        f"a minute of {RUNS} runs ({', '.join(sorted(states))}): {cpu:.2f} CPU s, {len(calls)} calls of squeue ", end=""
    )
    print(f"(goal <= {GOAL_POLLING_S} s, {GOAL_CALLS}): {'reached' if reached else 'MISSED'}")


def main(rounds: int = 5) -> None:
    """Print all figures."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, running_cluster() as cluster:
        root = Path(folder)
        (root / "scripts").mkdir()
        (root / "runs").mkdir()
        os.environ |= {"NBTOOLS_ROOT": folder, "SLURM_CONF": str(cluster.conf)}
        if rounds:
            until_first_step(root, cluster, rounds)
        a_minute_of_polling(root, cluster)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
