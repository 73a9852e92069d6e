"""A training run without training: metrics, heartbeats, checkpoints and an orderly end on SIGTERM, torch-free.

Works alone, as a rank under fake_agent.py and as a rank under the real torchrun.
"""

import argparse
import hashlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

stopping = False


def ask_to_stop(number: int, frame: FrameType | None) -> None:
    global stopping
    stopping = True


ATTEMPT = int(os.environ.get("NBTOOLS_ATTEMPT", "1"))


def save(run: RunDir, step: int) -> None:
    whole = run.checkpoint(step)
    if whole.exists():
        return
    building = whole.with_name(f".{whole.name}.tmp")
    building.mkdir()
    state = json.dumps({"step": step}).encode()
    (building / "state.pt").write_bytes(state)
    files = {"state.pt": {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}}
    content = {"step": step, "epoch": 0, "samples": step, "time": time.time(), "attempt": ATTEMPT, "world_size": 1}
    write_json(building / "manifest.json", {**content, "metrics": {"eval/loss": 1 / step}, "files": files})
    building.rename(whole)


def record(error: BaseException) -> None:
    """Do what torch's `@record` does."""
    text = f"{type(error).__name__}: {error}"
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is not None:
        Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))


def fork_loader_workers(number: int) -> list[int]:
    """Fork as torch's DataLoader does: children that execute nothing else, and end when their rank is gone."""
    rank, children = os.getpid(), []
    for _ in range(number):
        child = os.fork()
        if child == 0:
            while os.getppid() == rank:
                time.sleep(0.1)
            os._exit(0)
        children.append(child)
    return children


def loss(options: argparse.Namespace, step: int) -> float | str:
    return "NaN" if options.nan_from is not None and step >= options.nan_from else 1 / step


def train(options: argparse.Namespace, run: RunDir, rank: int) -> None:
    for step in range(options.first_step + 1, options.steps + 1):
        if options.fail_at == step and rank == options.failing_rank and options.fail_attempt in (None, ATTEMPT):
            raise ValueError(f"boom at step {step}")
        time.sleep(options.step_s)
        beat = {"rank": rank, "pid": os.getpid(), "host": socket.gethostname(), "step": step, "phase": "forward"}
        write_json(run.heartbeat(rank), {**beat, "time": time.time()})
        if rank == 0:
            with run.metrics.open("a") as file:
                file.write(
                    json.dumps(
                        {"step": step, "time": time.time(), "attempt": ATTEMPT, "train/loss": loss(options, step)}
                    )
                    + "\n"
                )
            if step % options.checkpoint_every == 0 or (stopping and not options.save_no_last):
                save(run, step)
        print(f"rank {rank} step {step}", flush=True)
        if stopping:
            break
    if rank == 0 and not options.leave_no_word:
        why = "stopped" if stopping else "completed"
        content = {"why": why, "step": step, "metrics": {"train/loss": 1 / step}, "failure": None}
        write_json(run.finished, {**content, "time": time.time()})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first-step", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--checkpoint-every", type=int, default=1000)
    parser.add_argument("--nan-from", type=int, help="step from which the loss is NaN")
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--fail-attempt", type=int, help="fail in this attempt only, not in every one")
    parser.add_argument("--resume-from", type=Path)
    parser.add_argument("--failing-rank", type=int, default=0)
    parser.add_argument("--save-no-last", action="store_true", help="save no checkpoint at a stop")
    parser.add_argument("--leave-no-word", action="store_true", help="do not write finished.json")
    parser.add_argument("--loader-workers", type=int, default=0, help="forked children of every rank")
    options = parser.parse_args()
    if options.resume_from is not None:
        options.first_step = json.loads((options.resume_from / "manifest.json").read_text())["step"]
    signal.signal(signal.SIGTERM, ask_to_stop)
    run = RunDir(os.environ["NBTOOLS_RUN_DIR"])
    loader_workers = fork_loader_workers(options.loader_workers)
    try:
        train(options, run, int(os.environ.get("RANK", "0")))
    except ValueError as error:
        record(error)
        raise
    finally:
        for pid in loader_workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
