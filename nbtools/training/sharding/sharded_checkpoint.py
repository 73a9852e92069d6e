"""Checkpoints of sharded models, written by a thread of each rank while the training continues.

checkpoints/step-000200/
  model/shard-00001-…       each rank's rows of the weights, named as in the plain model, beside config and tokenizer
  optimizer/shard-00001-…   each rank's rows of the moments, named by their place in the state
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from nbtools.training.process.ranks import gathered
from nbtools.training.sharding.fsdp import is_in_checkpoint, own_part, own_rows, own_rows_of
from nbtools.training.sharding.stored_tensors import StoredRows, StoredTensor, stored_tensors, write_rows

Claims = dict[str, dict[str, Any]]
"""Size and SHA-256 of files, by their place in the checkpoint."""
Shards = dict[str, dict[str, StoredRows]]
"""Tensors that a rank writes, by folder and name."""
MODEL, OPTIMIZER = "model", "optimizer"
_SHARD = "shard-{}-model-00001-of-00001.safetensors"


def copied(
    models: Mapping[str, Mapping[str, Tensor]], state: Any, rank: int, memory: dict[str, Tensor]
) -> tuple[Shards, Any]:
    """Copy this rank's part of weights and state to the memory of the CPU.

    Args:
        models: parameters, sharded again, and buffers, which rank 0 writes; by name and subfolder of `model`.
        memory: that of the copies, by place; kept for the next ones, since new memory takes longer than the copy.

    Returns:
        The tensors to write, and the state without those that are sharded.
    """
    shards: Shards = {OPTIMIZER: {}}
    for part, weights in models.items():
        first_names: dict[int, str] = {}
        for name, weight in weights.items():  # tied weights have several
            first_names.setdefault(id(weight), name)
        shards[f"{MODEL}/{part}".rstrip("/")] = {
            name: _copied_rows(weights[name], f"{part}/{name}", memory)
            for name in first_names.values()
            if rank == 0 or (isinstance(weights[name], nn.Parameter) and is_in_checkpoint(weights[name]))
        }
    return shards, _without_sharded(state, "", shards[OPTIMIZER], memory)


def _copied_rows(tensor: Tensor, place: str, memory: dict[str, Tensor]) -> StoredRows:
    part = own_part(tensor.detach())
    kept = memory.get(place)
    if kept is None or (kept.shape, kept.dtype) != (part.shape, part.dtype):
        kept = memory[place] = torch.empty_like(part, device="cpu")
    return StoredRows(kept.copy_(part), own_rows(tensor)[0])


def _without_sharded(value: Any, path: str, sharded: dict[str, StoredRows], memory: dict[str, Tensor]) -> Any:
    if isinstance(value, Mapping):
        kept = {}
        for key, item in value.items():
            place = f"{path}.{key}" if path else str(key)
            if isinstance(item, DTensor):
                if is_in_checkpoint(item):
                    sharded[place] = _copied_rows(item, f"{OPTIMIZER}:{place}", memory)
            else:
                kept[key] = _without_sharded(item, place, sharded, memory)
        return kept
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def insert_stored(state: dict[str, Any], checkpoint: Path) -> None:
    """Put readers of the tensors that `copied` took out of a state back in; CheckpointError if some are missing."""
    for path, stored in stored_tensors((checkpoint / OPTIMIZER).glob("*.safetensors")).items():
        *parents, name = path.split(".")
        place: Any = state
        for key in parents:
            place = place.setdefault(int(key) if key.isdecimal() else key, {})  # weights are numbered
        place[name] = stored


def rows_like(weight: Tensor, value: Tensor | StoredTensor) -> Tensor:
    """Return a tensor of the shape of `weight`, sharded as it is; only this rank's rows of `value` are read."""
    if not isinstance(weight, DTensor):
        return own_rows_of(weight, value)
    part = own_rows_of(weight, value).to(weight.device_mesh.device_type)
    shape, stride = weight.shape, weight.stride()
    return DTensor.from_local(part, weight.device_mesh, weight.placements, run_check=False, shape=shape, stride=stride)


def consolidate(model: Path, target: Path) -> Claims:
    """Write what `from_pretrained` or peft loads into the new folder `target`, from shards, tensor by tensor.

    Returns:
        Size and SHA-256 of the files of weights.

    Raises:
        OSError: it cannot be written.
        CheckpointError: a shard cannot be read, or is missing.
    """
    shutil.copytree(model, target, ignore=shutil.ignore_patterns(_SHARD.format("*")))
    claims: Claims = {}
    for folder in {path.parent for path in model.rglob(_SHARD.format("*"))}:
        is_adapter = (folder / ADAPTER_CONFIG_NAME).is_file()
        file = folder.relative_to(model) / (ADAPTER_SAFE_WEIGHTS_NAME if is_adapter else SAFE_WEIGHTS_NAME)
        weights = stored_tensors(folder.glob(_SHARD.format("*")))
        rows = {name: StoredRows(weights[name]) for name in sorted(weights)}
        claims[file.as_posix()] = write_rows(target / file, rows)
    return claims


class ShardedSaves:
    """Writes one checkpoint at a time in a thread, with the threads of all other ranks."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None) -> None:
        """Write with the threads of all ranks of `group`, which nothing else uses; None for a single process."""
        self._rank, self._group = rank, group
        self.memory: dict[str, Tensor] = {}
        """Memory that `copied` fills; the next copies may use it after `wait`."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, shards: Shards, save: Callable[[Callable[[Path], Claims]], object]) -> None:
        """Start to write; every rank calls it, after `wait`.

        Args:
            save: called on rank 0 with a function that writes the shards of all ranks into the folder of a checkpoint.
        """
        assert self._thread is None, "wait comes first"
        # A daemon: a rank that fails does not wait for threads that wait for it.
        self._thread = threading.Thread(target=self._run, args=(shards, save), name="save", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the checkpoint, on every rank; OSError on rank 0 if it could not be written."""
        if self._thread is None:
            return
        self._thread.join()
        error, self._thread, self._error = self._error, None, None
        if error is not None:
            raise error

    def _run(self, shards: Shards, save: Callable[[Callable[[Path], Claims]], object]) -> None:
        try:
            if self._rank == 0:
                try:
                    save(lambda folder: self._write_all(folder, shards))
                finally:
                    self._broadcast(None)
            elif (folder := self._broadcast(None)) is not None:
                self._write_all(folder, shards)
                self._broadcast(None)  # all is in place
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error

    def _write_all(self, folder: Path, shards: Shards) -> Claims:
        """Write this rank's shards, and return what all ranks have written, on rank 0."""
        if self._rank == 0:
            for name in shards:
                (folder / name).mkdir(parents=True, exist_ok=True)
            self._broadcast(folder)
        claims: Claims = {}
        error: Exception | None = None
        try:
            for name, tensors in shards.items():
                if not tensors and self._rank:  # of a further replica
                    continue
                path = folder / name / _SHARD.format(f"{self._rank + 1:05d}")
                claims[path.relative_to(folder).as_posix()] = write_rows(path, tensors)
        except Exception as failed:  # noqa: BLE001 - rank 0 raises it
            error = failed if isinstance(failed, OSError) else RuntimeError(repr(failed))
        for others, failed_there in gathered((claims, error), self._group):
            claims |= others
            error = error or failed_there
        if error is not None and self._rank == 0:
            raise error
        return claims

    def _broadcast(self, value: Path | None) -> Path | None:
        values = [value]
        if self._group is not None:
            dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]
