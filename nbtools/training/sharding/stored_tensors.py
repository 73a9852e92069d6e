"""Tensors in safetensors files, whole or divided by rows over several files: a rank reads and writes its own rows only.

Divided files are laid out as those of `torch.distributed.checkpoint.HuggingFaceStorageWriter`, whose reader takes them:
the header has the place of each part in its tensor. Nothing is unpickled.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.modeling_utils import str_to_torch_dtype

from nbtools.errors import CheckpointError
from nbtools.rundir.atomic import sync_to_disk

_INFO, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_NAMES = {dtype: name for name, dtype in str_to_torch_dtype.items()}
_ALIGNMENT = 8


class _Part(NamedTuple):
    first: int
    num_rows: int
    path: Path


class StoredTensor:
    """A tensor in one file or several; an index, a range of rows or `...`, reads those rows only."""

    def __init__(self, name: str, type_name: str, shape: tuple[int, ...], parts: list[_Part]) -> None:
        self.name = name
        self.shape = shape
        self.parts = parts
        self._type_name = type_name

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers; KeyError for one that torch lacks."""
        return str_to_torch_dtype[self._type_name]

    def __getitem__(self, rows: Any) -> Tensor:
        first, last, _ = (0, None, 1) if rows is ... else rows.indices(self.shape[0])
        read = []
        for start, num_rows, path in self.parts:
            with _opened(path) as file:
                if not self.shape:
                    return torch.as_tensor(file.get_tensor(self.name))
                end = start + num_rows if last is None else min(last, start + num_rows)
                if max(first, start) < end:
                    read.append(file.get_slice(self.name)[max(first, start) - start : end - start])
        if len(read) == 1:
            return torch.as_tensor(read[0])
        if not read:  # no rows
            with _opened(self.parts[0].path) as file:
                return torch.as_tensor(file.get_slice(self.name)[0:0])
        return torch.cat(read)


@dataclass(frozen=True)
class StoredRows:
    """Successive rows of a tensor, in the memory of the CPU or in files."""

    values: Tensor | StoredTensor
    first: int = 0
    """Index of the first row in the whole tensor."""

    @property
    def offsets(self) -> list[int]:
        """Indices of the first number in the whole tensor, as the header has them."""
        return [self.first, *[0] * len(self.values.shape)][: len(self.values.shape)]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.values.shape) * self.values.dtype.itemsize


def _opened(path: Path) -> Any:
    """Open a safetensors file; CheckpointError if it cannot be read."""
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def stored_tensors(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """Return tensors in safetensors files, read from headers; CheckpointError if a part is missing or unreadable."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    parts: dict[str, list[_Part]] = {}
    for path in files:
        with _opened(path) as file:
            places = json.loads((file.metadata() or {}).get(_INFO, "{}"))
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                stored = file.get_slice(name)
                kinds[name] = stored.get_dtype(), tuple(stored.get_shape())
                first = (places.get(name, {}).get(_OFFSETS) or [0])[0]
                parts.setdefault(name, []).append(_Part(first, (*kinds[name][1], 1)[0], path))
    found = {}
    for name, (type_name, shape) in kinds.items():
        ordered = sorted(parts[name])
        rows = 0
        for part in ordered:
            if part.first != rows:
                raise CheckpointError(
                    f"{part.path}: {name} lacks the rows from {rows:,} on: a shard is missing, or is of another run"
                )
            rows += part.num_rows
        found[name] = StoredTensor(name, type_name, (rows, *shape[1:]) if shape else (), ordered)
    return found


def write_rows(path: Path, tensors: Mapping[str, StoredRows]) -> dict[str, Any]:
    """Write parts of tensors into a file, one after the other, and sync it; return its size and SHA-256 for a manifest.

    Unlike the functions of safetensors, which torch's own writer calls, this releases the interpreter's lock while a
    training continues, makes no copy of the whole file in memory, and hashes what it writes.
    """
    # Empty parts are left out; large elements first, so that all are aligned.
    kept = {name: part for name, part in tensors.items() if part.num_bytes}
    kept = dict(sorted(kept.items(), key=lambda item: -item[1].values.dtype.itemsize))
    places = {name: {_OFFSETS: part.offsets} for name, part in kept.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "DCP_VERSION": "1.0", _INFO: json.dumps(places)}}
    end = 0
    for name, part in kept.items():
        begin, end = end, end + part.num_bytes
        header[name] = {"dtype": _NAMES[part.values.dtype], "shape": [*part.values.shape], "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        values = (part.values[...].contiguous().flatten().view(torch.uint8).numpy() for part in kept.values())
        pieces: Iterator[Any] = itertools.chain([len(encoded).to_bytes(8, "little") + encoded], values)
        for piece in pieces:
            size += file.write(piece)
            digest.update(piece)
    sync_to_disk(path)
    return {"bytes": size, "sha256": digest.hexdigest()}
