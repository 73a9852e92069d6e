"""Sums since the last metric row: a loss, and its divisor."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class Tally:
    """Named sums of this rank in double precision, on the device of the loss, so that adding does not wait for the GPU.

    A checkpoint between two metric rows keeps them: the row after a resume is that of an uninterrupted training.
    """

    def __init__(self, *names: str, device: torch.device) -> None:
        """Begin with zeros; checkpoints store the sums in the order of `names`."""
        self.names = names
        self._sums = torch.zeros(len(names), dtype=torch.float64, device=device)

    def add(self, **values: Tensor | float) -> None:
        """Add to some of the sums."""
        for name, value in values.items():
            self._sums[self.names.index(name)] += value.detach() if isinstance(value, Tensor) else value

    def reduce(self, total: Callable[[Tensor], list[float]]) -> dict[str, float]:
        """Return the sums by name, over all ranks by `total`, and begin again with zeros; every rank calls it."""
        totals = total(self._sums)
        self._sums.zero_()
        return dict(zip(self.names, totals, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint."""
        return {"tally": self._sums.cpu()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; a mapping without it changes nothing."""
        if "tally" in state:
            self._sums.copy_(state["tally"])
