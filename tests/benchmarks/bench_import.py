"""Seconds that `import nbtools` adds to a bare Python, against `import torch`. Goal: at most 0.1 x.

    python tests/benchmarks/bench_import.py [rounds]

Rounds are interleaved; each import happens in a fresh interpreter, which times it itself. Medians of CPU time count.
"""

import statistics
import subprocess
import sys

GOAL = 0.1
PROGRAM = "import time; before = time.process_time(); import {}; print(time.process_time() - before)"


def main(rounds: int = 7) -> int:
    """Print both times and their ratio; 1 if the goal is missed."""
    seconds: dict[str, list[float]] = {"nbtools": [], "torch": []}
    for number in range(rounds + 1):
        for module, measured in seconds.items():
            command = [sys.executable, "-c", PROGRAM.format(module)]
            taken = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            if number:  # the first round warms up
                measured.append(taken)
    ours, peer = (statistics.median(measured) for measured in seconds.values())
    print(f"import nbtools {1000 * ours:8.1f} ms CPU\nimport torch   {1000 * peer:8.1f} ms CPU")
    print(f"ratio {ours / peer:.4f} (goal <= {GOAL}): {'reached' if ours <= GOAL * peer else 'MISSED'}")
    return int(ours > GOAL * peer)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
