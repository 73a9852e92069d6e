"""Behaves like torchrun where supervision is concerned, in a tenth of a second instead of three.

    python fake_agent.py --nproc-per-node=2 [--shutdown-timeout=5] SCRIPT [ARGS]

Ranks get sessions of their own. SIGTERM is passed on; ranks that do not end in time are killed. When one fails, the
others are closed, a summary in torchrun's words is printed, and the exit code is 1, as it is after a stop.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import FrameType


class Stopped(Exception):
    pass


def stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def close(ranks: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    for rank in ranks:
        if rank.poll() is None:
            print(f"W agent] Sending process {rank.pid} closing signal SIGTERM", flush=True)
            rank.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.02)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()


def block(index: int, rank: int, process: subprocess.Popen[bytes], error_file: Path) -> str:
    code = process.returncode
    signal_name = f" ({signal.Signals(-code).name})" if code < 0 else ""
    message = f"Signal {-code} received by PID {process.pid}" if code < 0 else "To enable traceback see: …"
    if error_file.exists():
        message = json.loads(error_file.read_text())["message"]["extraInfo"]["py_callstack"].replace("\n", "\n  ")
    return f"""[{index}]:
  time      : {datetime.now():%Y-%m-%d_%H:%M:%S}
  host      : {socket.gethostname()}
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {process.pid}){signal_name}
  error_file: {error_file if error_file.exists() else "<N/A>"}
  traceback : {message}"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--shutdown-timeout", type=float, default=5)
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    run_dir = Path(os.environ["NBTOOLS_RUN_DIR"])
    error_files = [run_dir / "ranks" / f"{rank}.error.json" for rank in range(options.nproc_per_node)]
    ranks = [
        subprocess.Popen(
            [sys.executable, options.script, *options.args],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(options.nproc_per_node),
                "TORCHELASTIC_RUN_ID": "fake",
                "TORCHELASTIC_ERROR_FILE": str(error_files[rank]),
            },
            start_new_session=True,
        )
        for rank in range(options.nproc_per_node)
    ]
    try:
        while True:
            codes = [rank.poll() for rank in ranks]
            if all(code == 0 for code in codes):
                return 0
            if any(code for code in codes):
                break
            time.sleep(0.02)
    except Stopped:
        close(ranks, options.shutdown_timeout)
        return 1
    first = next(index for index, code in enumerate(codes) if code)
    where = f"{datetime.now():%m%d %H:%M:%S.%f} {os.getpid()} torch/distributed/elastic/multiprocessing/api.py:984]"
    print(f"E{where} failed (exitcode: {codes[first]}) local_rank: {first}", flush=True)
    close(ranks, options.shutdown_timeout)
    blocks = [
        block(index, index, ranks[index], error_files[index])
        for index in range(options.nproc_per_node)
        if ranks[index].returncode
    ]
    root = block(0, first, ranks[first], error_files[first])
    print("=" * 60, "script FAILED", "-" * 60, "Failures:", *blocks, "-" * 60, sep="\n")
    print("Root Cause (first observed failure):", root, "=" * 60, sep="\n", flush=True)
    if error_files[first].exists():
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_bytes(error_files[first].read_bytes())
    return 1


if __name__ == "__main__":
    sys.exit(main())
