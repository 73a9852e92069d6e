"""Checkpoints as seen from outside: which there are, and whether every byte is still as it was saved.

Only manifests and bytes are read. Nothing is unpickled, so looking at a checkpoint can never run code.
"""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from nbtools.errors import CheckpointError, FormatError
from nbtools.rundir import read_json, strict_number


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk. Nothing of it is unpickled here."""

    step: int
    path: Path
    time: float
    metrics: dict[str, float] = field(compare=False)
    manifest: dict[str, Any] = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of its folder, such as `step-000200`."""
        return self.path.name

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the manifest of the checkpoint in `path`; sizes and hashes are left to `verify`.

        Raises:
            CheckpointError: there is no manifest, or it is not one.
        """
        manifest_path = path / "manifest.json"
        try:
            manifest = read_json(manifest_path)
        except FormatError as error:
            raise CheckpointError(str(error)) from None
        if manifest is None:
            reason = "is not readable JSON" if manifest_path.exists() else "is missing: the checkpoint is not whole"
            raise CheckpointError(f"{manifest_path}: {reason}")
        try:
            metrics = {str(name): float(value) for name, value in manifest.get("metrics", {}).items()}
            found = cls(int(manifest["step"]), path, float(manifest["time"]), metrics, manifest)
            claims = manifest["files"].items()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise CheckpointError(f"{manifest_path}: is damaged ({type(error).__name__}: {error})") from None
        if not claims:
            raise CheckpointError(f"{manifest_path}: names no files")
        return found

    def to_json(self) -> dict[str, Any]:
        """The checkpoint as plain values, without its list of files."""
        metrics = {name: strict_number(value) for name, value in self.metrics.items()}
        return {"name": self.name, "step": self.step, "path": str(self.path), "time": self.time, "metrics": metrics}

    def verify(self) -> None:
        """Compare every file with the size and SHA-256 in the manifest.

        Raises:
            CheckpointError: naming the first file that is missing or differs, and how.
        """
        if f"step-{self.step:06d}" != self.name:
            raise CheckpointError(
                f"{self.path / 'manifest.json'}: says step {self.step} in a folder called {self.name}"
            )
        for name, claim in self.manifest["files"].items():
            path = self.path / name
            if not path.resolve().is_relative_to(self.path.resolve()):
                raise CheckpointError(f"{path}: lies outside its checkpoint")
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    num_bytes = file.tell()
                expected_bytes, expected_digest = claim["bytes"], claim["sha256"]
            except FileNotFoundError:
                raise CheckpointError(f"{path}: is missing") from None
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
            except (KeyError, TypeError) as error:
                raise CheckpointError(f"{self.path / 'manifest.json'}: is damaged at {name!r} ({error})") from None
            if num_bytes != expected_bytes:
                raise CheckpointError(f"{path}: has {num_bytes} bytes instead of {expected_bytes}")
            if digest != expected_digest:
                raise CheckpointError(f"{path}: its SHA-256 differs from the one recorded when it was saved")


def _checkpoint_folders(folder: Path) -> list[Path]:
    """Folders called `step-<number>`, in the order of their steps (as numbers: step-1000000 follows step-999999)."""
    try:
        children = list(folder.iterdir())
    except OSError:
        return []
    return sorted(
        (path for path in children if re.fullmatch(r"step-[0-9]{6,18}", path.name)), key=lambda path: int(path.name[5:])
    )


def checkpoints_in(folder: Path) -> list[Checkpoint]:
    """Checkpoints in `folder`, oldest first; those without a readable manifest are not listed."""
    found = []
    for path in _checkpoint_folders(folder):
        try:
            found.append(Checkpoint.read(path))
        except CheckpointError:
            continue
    return found


def newest_verified(folder: Path, up_to: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint whose every byte is as it was saved, and why newer ones were passed over.

    Args:
        folder: where the checkpoints are.
        up_to: the greatest step that counts.
    """
    reasons = []
    for path in reversed(_checkpoint_folders(folder)):
        if up_to is not None and int(path.name[5:]) > up_to:
            continue
        try:
            checkpoint = Checkpoint.read(path)
            checkpoint.verify()
        except CheckpointError as error:
            reasons.append(f"{path.name}: {error}")
        else:
            return checkpoint, reasons
    return None, reasons
