"""A machine with GPUs that this one may lack, and a build of torch for them, for tests of launches."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nbtools.launcher import placement
from nbtools.machine import interpreter
from nbtools.machine.devices import Device, Holder
from nbtools.machine.interpreter import own_interpreter


def stand_in(index: int, *holders: Holder) -> Device:
    """A GPU of 80 GiB; each process on it holds 2 GiB."""
    return Device(index, f"GPU-{index}", "Stand-in 9000", 80 * 2**30, len(holders) * 2**31, holders, str(index))


def find_gpus(patch: pytest.MonkeyPatch, folder: Path, machine: Sequence[Device], cuda: str = "'12.8'") -> None:
    """Let launches find these GPUs, driver 570.1, and in `folder` a build of torch for a version of CUDA, or `None`."""
    torch = folder / "torch"
    (torch / "distributed").mkdir(parents=True)
    version = f"__version__ = '2.13.0'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = None\n"
    (torch / "version.py").write_text(version)
    (torch / "distributed" / "run.py").write_text("main = tuple\n")
    own = replace(own_interpreter(), torch_folder=torch)
    for module in (placement, interpreter):
        patch.setattr(module, "own_interpreter", lambda: own)
    patch.setattr(placement, "driver_version", lambda: "570.1")
    patch.setattr(placement, "devices", lambda: list(machine))
