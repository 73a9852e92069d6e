"""Lists and verifies checkpoints without unpickling: it reads manifests and bytes, so a checkpoint cannot run code."""

import contextlib
import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from nbtools.errors import CheckpointError, FormatError, html_table
from nbtools.rundir.atomic import folder_names, retried
from nbtools.rundir.json_files import content_of, finite, read_json, strict_number, whole
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint
from nbtools.rundir.tail import open_regular

BEST_BY = "eval/loss"
"""Default metric by which checkpoints are compared; lower is better."""


@dataclass
class Progress:
    """The position of a training in its data."""

    step: int = 0
    """Completed optimizer steps."""
    epoch: int = 0
    position: int = 0
    """Samples of this epoch done, summed over all ranks."""
    samples: int = 0
    """Samples done since the start of the first run."""

    def advance(self, effective_batch: int, num_samples: int) -> bool:
        """Count one optimizer step; returns whether it was the last of its epoch."""
        self.step += 1
        self.samples += effective_batch
        self.position += effective_batch
        return self.settle(effective_batch, num_samples)

    def settle(self, effective_batch: int, num_samples: int) -> bool:
        """Move to the next epoch if this one has too few samples left for a step."""
        ends = self.position + effective_batch > num_samples
        if ends:
            self.epoch, self.position = self.epoch + 1, 0
        return ends

    def steps_left(self, effective_batch: int, num_samples: int, epochs: int) -> int:
        """Optimizer steps until the end of `epochs` epochs."""
        if self.epoch >= epochs:
            return 0
        later = (epochs - self.epoch - 1) * (num_samples // effective_batch)
        return (num_samples - self.position) // effective_batch + later


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    path: Path
    time: float
    metrics: dict[str, float] = field(compare=False)
    manifest: dict[str, Any] = field(compare=False, repr=False)

    def __repr__(self) -> str:
        values = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items() if name.endswith("/loss"))
        return f"Checkpoint({self.name!r}{values})"

    def _repr_html_(self) -> str:
        values = [(name, f"{value:.5g}") for name, value in self.metrics.items()]
        return html_table([(self.name, str(self.path)), *values])

    @property
    def name(self) -> str:
        """Name of its folder, such as `step-000200`."""
        return self.path.name

    @property
    def num_bytes(self) -> int:
        """Size of its files, as the manifest has it."""
        claims = (claim for claim in self.manifest["files"].values() if isinstance(claim, dict))
        return sum(whole(claim.get("bytes")) or 0 for claim in claims)

    @property
    def progress(self) -> Progress | None:
        """Progress at the checkpoint; None if the manifest does not contain it."""
        counts = [whole(self.manifest.get(name)) for name in ("step", "epoch", "position", "samples")]
        known = [count for count in counts if count is not None]
        return Progress(*known) if len(known) == len(counts) else None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the manifest of the checkpoint in `path`; `verify` compares sizes and hashes.

        Raises:
            CheckpointError: The manifest is missing or malformed.
        """
        manifest_path = path / "manifest.json"
        try:
            manifest = read_json(manifest_path)
        except FormatError as error:
            raise CheckpointError(str(error)) from None
        if manifest is None:
            reason = "is not readable JSON" if manifest_path.exists() else "is missing: the checkpoint is incomplete"
            raise CheckpointError(f"{manifest_path}: {reason}")
        try:
            metrics = {str(name): float(value) for name, value in manifest.get("metrics", {}).items()}
            step, saved_at = whole(manifest["step"]), finite(manifest["time"])
            if step is None or saved_at is None:
                raise ValueError("step or time is not a number")
            if not manifest["files"].items():
                raise CheckpointError(f"{manifest_path}: names no files")
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise CheckpointError(f"{manifest_path}: is damaged ({type(error).__name__}: {error})") from None
        return cls(step, path, saved_at, metrics, manifest)

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint as JSON values, without its list of files."""
        metrics = {name: strict_number(value) for name, value in self.metrics.items()}
        facts = {"name": self.name, "step": self.step, "path": str(self.path), "time": self.time}
        return {**facts, "metrics": metrics, "bytes": self.num_bytes}

    def verify(self) -> None:
        """Compare every file with the size and SHA-256 in the manifest.

        Raises:
            CheckpointError: A file is missing or differs; the message names the first one.
        """
        if f"step-{self.step:06d}" != self.name:
            why = f"contains step {self.step}, but its folder is {self.name}"
            raise CheckpointError(f"{self.path / 'manifest.json'}: {why}")
        verify_files(self.path / "manifest.json", self.manifest["files"])


def verify_files(manifest: Path, claims: Mapping[str, Any]) -> None:
    """Compare files beside a manifest with the sizes and SHA-256 that it claims; CheckpointError if one differs."""
    with ThreadPoolExecutor() as threads:
        for _ in threads.map(functools.partial(_verify_file, manifest), claims, claims.values()):
            pass  # raises the first error, in the order of the names


def _verify_file(manifest: Path, name: str, claim: Mapping[str, Any]) -> None:
    folder, path = manifest.parent, manifest.parent / name
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CheckpointError(f"{path}: lies outside its checkpoint")
        num_bytes, digest = retried(functools.partial(_measured, path))
        expected_bytes, expected_digest = claim["bytes"], claim["sha256"]
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a link to itself
        raise CheckpointError(f"{manifest}: is damaged at {name!r} ({error})") from None
    if num_bytes != expected_bytes:
        raise CheckpointError(f"{path}: has {num_bytes} bytes instead of {expected_bytes}")
    if digest != expected_digest:
        raise CheckpointError(f"{path}: its SHA-256 differs from the one recorded when it was saved")


AnyCheckpoint = Checkpoint | ForeignCheckpoint
"""A checkpoint of a recipe, or of a user's program."""


def _measured(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a regular file."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders `step-<number>`, sorted by number (step-1000000 follows step-999999)."""
    names = (name for name in folder_names(folder) if re.fullmatch(r"step-[0-9]{6,18}", name))
    return [folder / name for name in sorted(names, key=lambda name: int(name[5:]))]


def checkpoints_in(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints in `folder`, oldest first; those without a readable manifest are left out."""
    found = []
    for path in checkpoint_folders(folder):
        with contextlib.suppress(CheckpointError):
            found.append(Checkpoint.read(path))
    return found


def best_of(checkpoints: Iterable[AnyCheckpoint], count: int = 1) -> list[Checkpoint]:
    """Return the `count` best checkpoints, best first, by the metric that the newest manifest names.

    Of equal ones the newer is better. A checkpoint without that metric (saved between evaluations), with a non-finite
    value, of another stage of the training than the newest, or of a user's program is left out.
    """
    saved = [found for found in checkpoints if isinstance(found, Checkpoint)]
    newest: Mapping[str, Any] = max(saved, key=lambda found: found.step).manifest if saved else {}
    metric, sign = str(newest.get("best_by", BEST_BY)), 1 if newest.get("lower_is_better", True) else -1
    comparable = [found for found in saved if found.manifest.get("stage") == newest.get("stage")]
    measured = [found for found in comparable if math.isfinite(found.metrics.get(metric, math.nan))]
    return sorted(measured, key=lambda found: (sign * found.metrics[metric], -found.step))[:count]


def newest_verified(folder: Path, up_to: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest verified checkpoint up to step `up_to`, or None, and the errors of newer ones."""
    reasons: list[str] = []
    for path in reversed(checkpoint_folders(folder)):
        if up_to is not None and int(path.name[5:]) > up_to:
            continue
        try:
            checkpoint = Checkpoint.read(path)
            checkpoint.verify()
            return checkpoint, reasons
        except CheckpointError as error:
            reasons.append(f"{path.name}: {error}")
    return None, reasons


def steered_values(checkpoint: Path) -> dict[str, Any]:
    """Return the values that were changed while the training of a checkpoint ran, by the names of their fields."""
    found = content_of(checkpoint / "manifest.json").get("steered")
    return found if isinstance(found, dict) else {}
