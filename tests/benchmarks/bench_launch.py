"""CPU seconds from the launch to the first all-reduce of two ranks: `nbtools.launch` against plain torchrun.

    python tests/benchmarks/bench_launch.py [rounds] [nodes]

The same program either way. After the all-reduce the first rank of each node adds up the CPU time of every process
between it and the launcher (ranks, torchrun's agent, the supervisor). Goal: at most 0.3 s more per node than torchrun;
and the call itself, which is what a notebook's cell waits for, returns within 0.3 s. Two nodes are on this machine,
with one rank each.
"""

import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import Cost, cpu_medians, print_costs

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
if os.environ["LOCAL_RANK"] == "0":
    import psutil
    agent = psutil.Process().parent()
    above = agent.parent()
    tree = [agent, *agent.children(recursive=True)]
    if "nbtools" in " ".join(above.cmdline()[:6]):
        tree.append(above)
    cpu = sum(sum(process.cpu_times()[:2]) for process in tree)
    path = Path(f"{sys.argv[1]}.{dist.get_rank()}")
    path.write_text(json.dumps({"time": reached, "cpu": cpu, "processes": len(tree)}))
dist.barrier()
dist.destroy_process_group()
"""


def by_torchrun(script: Path, measured: Path, nodes: int) -> None:
    """Start torchrun as its authors do, once per node, and wait."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={2 // nodes}"]
    if nodes == 1:
        command.append("--standalone")
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command += [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
    started = [subprocess.Popen([*command, str(script), str(measured)]) for _ in range(nodes)]
    for each in started:
        each.wait()


def main(rounds: int = 5, nodes: int = 1) -> None:
    """Print both times and their difference."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "scripts").mkdir()
        (root / "runs").mkdir()
        os.environ["NBTOOLS_ROOT"] = folder
        script = root / "scripts" / "first_all_reduce.py"
        script.write_text(PROGRAM)
        rows: dict[str, list[Cost]] = {"torchrun": [], "nbtools.launch": []}
        returned: list[float] = []
        for number in range(rounds + 1):
            for name in sorted(rows, reverse=number % 2 == 0):
                measured = root / f"{number}-{name[:3]}"
                wall, cpu = time.time(), time.process_time()
                if name == "nbtools.launch":
                    more = {"nnodes": nodes} if nodes > 1 else {}
                    run = nbtools.launch(script, nproc_per_node=2 // nodes, gpus=(), args=[str(measured)], **more)
                    cpu = time.process_time() - cpu
                    returned.append(time.time() - wall)
                    others = [subprocess.Popen(shlex.split(line)) for line in run.info.get("join") or ()]
                    run.wait()
                    for each in others:
                        each.wait()
                else:
                    by_torchrun(script, measured, nodes)
                    cpu = time.process_time() - cpu
                found = [json.loads(path.read_text()) for path in root.glob(f"{measured.name}.*")]
                assert len(found) == nodes
                if number:  # the first round warms the disk's cache
                    total = sum(each["cpu"] for each in found) + cpu
                    rows[name].append(Cost(max(each["time"] for each in found) - wall, total))
    print_costs(rows)
    medians = cpu_medians(rows)
    slowest = max(returned)
    print(f"nbtools.launch returns after {1000 * statistics.median(returned):.0f} ms (slowest {1000 * slowest:.0f} ms)")
    extra = (medians["nbtools.launch"] - medians["torchrun"]) / nodes
    print(
        f"nbtools costs {extra:+.2f} CPU s per node, ratio {medians['nbtools.launch'] / medians['torchrun']:.2f} "
        f"(goal <= {GOAL_S} s more): {'reached' if extra <= GOAL_S else 'MISSED'}"
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
