"""Seeding, saving and restoring the random state of a process."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed(number: int) -> None:
    """Seed every global random number generator of this process."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def random_state() -> dict[str, Any]:
    """Return the state of every global random number generator of this process."""
    version, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state()
    _, key, position, has_gauss, cached = legacy
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(numbers), gauss]}
    state["numpy"] = [torch.from_numpy(key.astype(np.int64)), int(position), int(has_gauss), float(cached)]
    # A rank on the CPU makes no context on a GPU.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    key, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", key.numpy().astype(np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(state["cuda"])
