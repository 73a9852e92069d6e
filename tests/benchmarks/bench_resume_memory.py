"""Peak memory of a rank that resumes a state of 1 GB. Goal: at most 0.3 GB above what the rank needs anyway.

    python tests/benchmarks/bench_resume_memory.py [megabytes]

Three child processes, one thread each: one imports what a rank imports, one resumes with nbtools, one reads the files
with `torch.load` and `load_file` and keeps what it read until its training begins. What a rank needs anyway is the
first one's memory, the model's weights and AdamW's two moments. The figure is of anonymous memory (`RssAnon`, read
every millisecond by this process): the memory that a process has to itself. Pages of a mapped file (`RssFile`) belong
to the page cache, once for all ranks of a machine, and the kernel drops them when memory is short; `VmHWM`, the
kernel's own peak, counts them, and is shown beside it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from nbtools.config import TrainConfig
from nbtools.run.checkpoints import Progress
from nbtools.training.engine import checkpoint, worker
from nbtools.training.engine.initial_state import InitialState
from nbtools.training.engine.optimizer import Optimizer

GOAL_MB = 300
_WIDTH = 1024


def model_of(num_layers: int) -> torch.nn.Module:
    """Layers of 4 MB of weights each."""
    return torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(num_layers)))


def optimizer_of(model: torch.nn.Module) -> Optimizer:
    return Optimizer(model, TrainConfig(), 10, torch.device("cpu"))


def save(folder: Path, num_layers: int) -> None:
    """Write the checkpoint that the others resume from."""
    model = model_of(num_layers)
    optimizer = optimizer_of(model)
    optimizer.backward(model(torch.ones(1, _WIDTH)).sum())
    optimizer.step(1)
    checkpoint.save(
        folder,
        Progress(step=1),
        write_model=lambda path: save_file(model.state_dict(), path / "model.safetensors"),
        state=optimizer.state_dict(),
        rank_states=[{}],
        metrics={},
        attempt=1,
        keep_last=1,
    )


def resume(folder: Path, num_layers: int) -> None:
    """What `Worker` does between its start and the first step."""
    opened = checkpoint.open_verified(folder / "step-000001")
    initial = InitialState(checkpoint.load_state(opened.path), model=opened.path / "model")
    model = model_of(num_layers)
    initial.load_weights(model)
    optimizer = optimizer_of(model)
    optimizer.load_state_dict(initial.state)
    initial.release()


def resume_plainly(folder: Path, num_layers: int) -> None:
    """What a script does that reads the files and then hands them over."""
    state = torch.load(folder / "step-000001" / "state.pt", weights_only=True)
    weights = load_file(folder / "step-000001" / "model" / "model.safetensors")
    model = model_of(num_layers)
    model.load_state_dict(weights)
    optimizer_of(model).load_state_dict(state)


TASKS = {"imports": lambda *_: None, "save": save, "nbtools": resume, "torch.load": resume_plainly}


def measured(task: str, folder: Path, num_layers: int) -> tuple[float, float]:
    """Return the peaks of anonymous memory and of all resident memory of a child process, in MB."""
    child = subprocess.Popen([sys.executable, __file__, task, str(folder), str(num_layers)])
    anonymous = resident = 0.0
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            break
        found = dict(re.findall(r"^(RssAnon|VmHWM):\s+(\d+) kB", status, re.MULTILINE))
        anonymous = max(anonymous, int(found.get("RssAnon", 0)) * 1024 / 1e6)
        resident = max(resident, int(found.get("VmHWM", 0)) * 1024 / 1e6)
        time.sleep(0.001)
    if child.wait():
        raise SystemExit(f"{task}: exit code {child.returncode}")
    return anonymous, resident


def main(megabytes: int = 1000) -> int:
    """Print a table; 0 if the goal is reached."""
    num_layers = round(megabytes * 1e6 / (12 * _WIDTH**2))
    own = 12 * _WIDTH**2 * num_layers / 1e6
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".bench-")) / "checkpoints"
    try:
        folder.mkdir()
        measured("save", folder, num_layers)
        peaks = {task: measured(task, folder, num_layers) for task in TASKS if task != "save"}
    finally:
        shutil.rmtree(folder.parent)
    base = peaks["imports"]
    print(f"weights and moments {own:.0f} MB; a rank that has imported the same: {base[0]:.0f} MB anonymous")
    print(f"{'':<14}{'peak, anonymous':>18}{'above need':>12}{'peak, all (VmHWM)':>20}{'above need':>12}")
    for task, peak in peaks.items():
        above = [value - floor - own * (task != "imports") for value, floor in zip(peak, base, strict=True)]
        print(f"{task:<14}{peak[0]:>15.0f} MB{above[0]:>9.0f} MB{peak[1]:>17.0f} MB{above[1]:>9.0f} MB")
    above_need = peaks["nbtools"][0] - base[0] - own
    print(f"goal: <= {GOAL_MB} MB above need: {'reached' if above_need <= GOAL_MB else 'MISSED'} ({above_need:.0f} MB)")
    return int(above_need > GOAL_MB)


if __name__ == "__main__":
    assert worker  # imports what a rank imports
    if sys.argv[1:2] and sys.argv[1] in TASKS:
        torch.set_num_threads(1)
        TASKS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
