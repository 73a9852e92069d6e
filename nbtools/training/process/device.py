"""The device of this process, its script, its seed, and the failure that ended it."""

import os
import sys
import traceback
from pathlib import Path

import torch

from nbtools.errors import LaunchError
from nbtools.failures.evidence import error_line
from nbtools.failures.failure import Failure, explained
from nbtools.failures.known_errors import is_echo
from nbtools.machine import devices
from nbtools.rundir.rundir import RunDir
from nbtools.training.process import launchers, random_state
from nbtools.training.process.rank_environment import STARTER


def seed_everything(seed: int, rank: int, *, deterministic: bool) -> None:
    """Seed this rank's generators: dropout differs between ranks; weights do not, since DDP broadcasts rank 0's."""
    random_state.seed(seed + 1_000_003 * rank)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def is_under_torchrun() -> bool:
    """Whether torchrun (or a launcher built on it) started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def script_path() -> Path:
    """The script that this process runs."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or sys.argv[0]).resolve()


def stay_on_this_machine() -> None:
    """Let gloo use the loopback interface only, if all ranks are on one machine and the user chose no interface."""
    name = devices.loopback()
    if name is not None and os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE"):
        os.environ.setdefault(devices.GLOO_INTERFACE, name)


def choose_device(local_rank: int) -> torch.device:
    """Return this rank's device; LaunchError if there is no GPU for it, or torch cannot use this machine's."""
    if launchers.wants_cpu(os.environ):
        return torch.device("cpu")
    if torch.cuda.is_available():
        is_numbered = "LOCAL_RANK" in os.environ or os.environ.get("WORLD_SIZE", "1") == "1"
        if torch.cuda.device_count() == 1 and (STARTER in os.environ or not is_numbered):
            local_rank = 0  # srun --gpus-per-task=1 shows each process a GPU of its own
        elif not is_numbered:
            raise LaunchError(
                f"WORLD_SIZE={os.environ['WORLD_SIZE']} without LOCAL_RANK: all processes of a node would use its "
                "first GPU; set LOCAL_RANK to the number of the process on its node, or start them with torchrun"
            )
        if local_rank >= torch.cuda.device_count():
            raise LaunchError(
                f"local rank {local_rank}, but only {torch.cuda.device_count()} GPUs are visible: one process per GPU; "
                "lower nproc_per_node, or set CUDA_VISIBLE_DEVICES= to train on the CPU"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden not in ("", "-1") and (found := devices.devices()):
        raise LaunchError(
            f"{len(found)} GPUs ({found[0].name}) with driver {devices.driver_version()}, but torch "
            f"{torch.__version__} (CUDA {torch.version.cuda}) cannot use them; install a build that fits the driver, "
            "or set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    return torch.device("cpu")


def failure_of(error: BaseException, rank: int, files: RunDir) -> Failure:
    """Return the failure that ended a rank, for finished.json."""
    text = "".join(traceback.format_exception(error))
    message = error_line(f"{type(error).__name__}: {error}")
    # An error that follows from the failure of another rank: that rank's log has the cause.
    cause, exitcode = (None, None) if is_echo(message) else (rank, 1)
    return explained(Failure(cause, os.uname().nodename, exitcode, None, message, text), files)
