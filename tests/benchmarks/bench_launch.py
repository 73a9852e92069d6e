"""CPU seconds from the launch to the first all-reduce of two ranks: `nbtools.launch` against plain torchrun.

    python tests/benchmarks/bench_launch.py [rounds]

The same program either way. After the all-reduce rank 0 adds up the CPU time of every process between it and the
launcher (ranks, torchrun's agent, the supervisor). Goal: at most 0.3 s more than `torchrun --standalone`; and the call
itself, which is what a notebook's cell waits for, returns within 0.3 s.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbtools

GOAL_S = 0.3

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
    agent = psutil.Process().parent()
    above = agent.parent()
    tree = [agent, *agent.children(recursive=True)]
    if "nbtools.launcher.supervisor" in " ".join(above.cmdline()):
        tree.append(above)
    cpu = sum(sum(process.cpu_times()[:2]) for process in tree)
    Path(sys.argv[1] + ".part").write_text(json.dumps({"time": reached, "cpu": cpu, "processes": len(tree)}))
    os.replace(sys.argv[1] + ".part", sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


def main(rounds: int = 5) -> None:
    """Print both times and their difference."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "scripts").mkdir()
        (root / "runs").mkdir()
        os.environ["NBTOOLS_ROOT"] = folder
        script = root / "scripts" / "first_all_reduce.py"
        script.write_text(PROGRAM)
        rows: dict[str, list[tuple[float, float]]] = {"torchrun --standalone": [], "nbtools.launch": []}
        returned: list[float] = []
        for number in range(rounds + 1):
            for name in sorted(rows, reverse=number % 2 == 0):
                measured = root / f"{number}-{name[:3]}.json"
                wall, cpu = time.time(), time.process_time()
                if name == "nbtools.launch":
                    run = nbtools.launch(script, nproc_per_node=2, gpus=(), args=[str(measured)])
                    cpu = time.process_time() - cpu
                    returned.append(time.time() - wall)
                    run.wait()
                else:
                    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
                    started = subprocess.Popen([*command, str(script), str(measured)])
                    cpu = time.process_time() - cpu
                    started.wait()
                result = json.loads(measured.read_text())
                if number:  # the first round warms the disk's cache
                    rows[name].append((result["cpu"] + cpu, result["time"] - wall))
    medians = {}
    for name, values in rows.items():
        medians[name] = statistics.median(cpu for cpu, _ in values)
        print(
            f"{name:<22} CPU median {medians[name]:.2f} s  least {min(cpu for cpu, _ in values):.2f} s  "
            f"wall least {min(wall for _, wall in values):.2f} s"
        )
    slowest = max(returned)
    print(f"nbtools.launch returns after {1000 * statistics.median(returned):.0f} ms (slowest {1000 * slowest:.0f} ms)")
    extra = medians["nbtools.launch"] - medians["torchrun --standalone"]
    print(
        f"nbtools costs {extra:+.2f} CPU s, ratio {medians['nbtools.launch'] / medians['torchrun --standalone']:.2f} "
        f"(goal <= {GOAL_S} s more): {'reached' if extra <= GOAL_S else 'MISSED'}"
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
