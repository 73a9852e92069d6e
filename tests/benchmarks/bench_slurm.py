"""What nbtools costs on a Slurm cluster up to the first step of a job.

    python tests/benchmarks/bench_slurm.py [rounds]

Starts a Slurm of its own (root; Debian's slurm-wlm and munge). CPU seconds from the submission to the first all-reduce
of two ranks: `nbtools.launch` with a cluster against a job script with torchrun written by hand, in turn. Counted are
the call, sbatch, and every process of the job below Slurm's own. Goal: at most 0.5 s more.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rounds import Cost, print_costs, so_far

from nbtools.config import Slurm
from nbtools.launcher.launch import start
from nbtools.launcher.preflight import check_launch
from nbtools.launcher.request import LaunchRequest

from slurm_cluster import SlurmCluster, running_cluster

GOAL_S = 0.5
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


def main(rounds: int = 5) -> None:
    """Print all figures."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, running_cluster() as cluster:
        root = Path(folder)
        (root / "scripts").mkdir()
        (root / "runs").mkdir()
        os.environ |= {"NBTOOLS_ROOT": folder, "SLURM_CONF": str(cluster.conf)}
        until_first_step(root, cluster, rounds)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
