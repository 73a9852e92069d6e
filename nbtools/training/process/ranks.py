"""The ranks of a training: their process groups, and exchange of values that are small or take long to compute."""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nbtools.errors import NbtoolsError
from nbtools.training.process.device import choose_device, stay_on_this_machine

T = TypeVar("T")

_LONGEST_WAIT_FOR_MAIN = timedelta(hours=24)
_LAST_TENSORS_S = 0.02
"""Time for gloo's threads to release the tensors of the last collective: Python aborts if one does while it ends."""


class Ranks:
    """This process among the processes of one training: NCCL on GPUs, gloo on CPUs, no group for a single process."""

    def __init__(self, collective_timeout: timedelta, *, shards: bool = False) -> None:
        """Join the processes that the launcher's environment variables describe; a collective fails after the timeout.

        Args:
            shards: whether weights are sharded: a single process has a group, too, and checkpoints have one of their
                own.

        Raises:
            LaunchError: there is no GPU for this rank.
        """
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.is_main = self.rank == 0
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.is_one_machine = os.environ.get("LOCAL_WORLD_SIZE", "1") == str(self.world_size)
        """Whether all ranks are on one machine."""
        self.device = choose_device(self.local_rank)
        self.backend = "none"
        self.control: dist.ProcessGroup | None = None
        """Messages of a few bytes between CPUs, which do not wait for the GPUs; None for a single process."""
        self.saving: dist.ProcessGroup | None = None
        """Messages of the threads that write checkpoints; None where rank 0 writes them."""
        self._long_timeout_group: dist.ProcessGroup | None = None
        if self.world_size > 1:
            stay_on_this_machine()
            on_gpu = self.device.type == "cuda"
            self.backend = "nccl" if on_gpu else "gloo"
            device_id = self.device if on_gpu else None
            dist.init_process_group(self.backend, timeout=collective_timeout, device_id=device_id)
            self.control = dist.new_group(backend="gloo", timeout=collective_timeout)
            # Rank 0 may tokenize for hours while the others wait.
            self._long_timeout_group = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT_FOR_MAIN)
            if shards:
                self.saving = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT_FOR_MAIN)
        elif shards and not dist.is_initialized():
            self.backend = "nccl" if self.device.type == "cuda" else "gloo"
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(self.backend, store=store, rank=0, world_size=1)

    def from_main(self, compute: Callable[[], T]) -> T:
        """Compute a value on rank 0 and return it on every rank; the other ranks wait.

        An `NbtoolsError` on rank 0 is raised on every rank, so that all of them report the same cause.
        """
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = compute()
            except NbtoolsError as error:
                outcome[1] = error
        if self._long_timeout_group is not None:
            dist.broadcast_object_list(outcome, src=0, group=self._long_timeout_group)
        if outcome[1] is not None:
            raise outcome[1]
        value: T = outcome[0]
        return value

    def bytes_of_main(self, compute: Callable[[], bytes]) -> bytes:
        """Compute bytes on rank 0 and return them on every rank; unlike `from_main`, nothing is unpickled."""
        data = compute() if self.is_main else b""
        if self.control is None:
            return data
        size = torch.tensor([len(data)])
        dist.broadcast(size, src=0, group=self.control)
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self.is_main:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(content, src=0, group=self.control)
        return content.numpy().tobytes()

    def in_turn(self, compute: Callable[[], T], *, one_by_one: bool = False) -> T:
        """Compute a value on every rank: rank 0 first, then one of each other node; the rest then find downloads.

        With `one_by_one` the rest of a node compute one after the other, for a value that takes the node's memory.
        """
        computed: list[T] = []
        self.from_main(lambda: computed.append(compute()))
        if not self.is_one_machine:  # caches may be on the node
            if self.local_rank == 0 and not computed:
                computed.append(compute())
            dist.barrier(group=self._long_timeout_group)
        token, is_last = torch.zeros(1), self.local_rank + 1 == int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if one_by_one and self.local_rank > 1:
            dist.recv(token, self.rank - 1, group=self._long_timeout_group)
        value = computed[0] if computed else compute()
        if one_by_one and self.local_rank and not is_last:
            dist.send(token, self.rank + 1, group=self._long_timeout_group)
        return value

    def gather(self, value: T) -> list[T]:
        """Return every rank's value on rank 0, an empty list on the others."""
        return gathered(value, self.control)

    def sum(self, values: Sequence[float] | Tensor) -> list[float]:
        """Return each of the values added up over all ranks, in double precision."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each of the values over all ranks, in double precision."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Sequence[float] | Tensor, op: dist.ReduceOp.RedOpType) -> list[float]:
        reduced = torch.as_tensor(values, dtype=torch.float64).cpu()
        if self.control is not None:
            dist.all_reduce(reduced, op, group=self.control)
        return [float(value) for value in reduced]

    def barrier(self) -> None:
        """Wait until all ranks have reached this call."""
        if self.control is not None:
            dist.barrier(group=self.control)

    def close(self) -> None:
        if dist.is_initialized():
            time.sleep(_LAST_TENSORS_S)
            dist.destroy_process_group()


def gathered(value: T, group: dist.ProcessGroup | None) -> list[T]:
    """Return the value of every rank of a group on rank 0, an empty list on the others; None for a single process."""
    if group is None:
        return [value]
    values: list[Any] = [None] * group.size() if dist.get_rank() == 0 else []
    dist.gather_object(value, values or None, dst=0, group=group)
    return values
