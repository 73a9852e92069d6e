"""Checkpoints that a program of the user's wrote: the files that its pattern names, else those with usual names.

Usual is a *file* that ends with `.ckpt`, or one of torch whose name has a number or a word such as `last`, and a
*folder* with parts of a distributed checkpoint, with what accelerate or transformers save, or with weights below a
name that ends with a count. No content is unpickled.
"""

import contextlib
import os
import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from nbtools.errors import CheckpointError
from nbtools.rundir.program_files.written_files import places_of, split_pattern, walk
from nbtools.rundir.tail import open_regular

_LOOK_EVERY_S: Final = 5.0
_QUIET_S: Final = 2.0
"""A file that changed more recently than this, in a run that continues, may still be written."""
_MAX_FILES: Final = 2_000
"""Number of files that a pattern may name, or a checkpoint have."""

_COUNT: Final = r"[-_=.]?(\d{1,15})(?!\d)"
_STEP: Final = re.compile(rf"(?i)(?:^|[^a-z])(?:(?:global_?)?(?:step|iter|iteration)s?|checkpoint(?=-\d+$)){_COUNT}")
"""A count of steps in a name: `epoch=3-step=400`, `iter_0000500`, the folder `checkpoint-500`."""
_EPOCH: Final = re.compile(rf"(?i)(?:^|[^a-z])(?:epoch|ep)s?{_COUNT}")
_FOLDER: Final = re.compile(
    rf"(?i)(?!tmp)(?:.*[-_.])?(?:checkpoint|ckpt|epoch|step|global_?step|iter|iteration){_COUNT}"
)
_FILE: Final = re.compile(
    r"(?i).*\.ckpt|.*(?:checkpoint|ckpt).*\.(?:pt|pth|tar|bin|safetensors|pkl)|(?:.*[^a-z])?(?:(?:snapshot|last|latest|best|"
    r"final|model|weights|state|net)(?![a-z])|(?:step|iter|epoch|ep)?[-_=]?\d+(?![a-z\d])).*\.(?:pt|pth)(?:\.tar)?"
)
_NO_FILE: Final = re.compile(
    r"(?i)\.|tmp|optimizer|scheduler|scaler|sampler|rng|random|tokenizer|data|cache|feature|embedding|model_optim|"
    r".*rank[-_=.]?\d|(?:train|val|valid|test|dev)(?![a-z])"
)
"""Beginnings of the names of a checkpoint's parts, also those of one rank, and of tensors that are none."""
_ASIDE: Final = re.compile(r"(?i)(?:.*[^a-z])?(?:best|final)(?![a-z]).*|\D*(?:model|weights)\.\D*")
"""Names of weights alone, or of an earlier state: a resume from the newest checkpoint prefers other names."""
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".tar", ".distcp", ".msgpack", ".h5")
_UNFINISHED: Final = (".tmp", ".partial", ".incomplete")


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint of a program, a file or a folder."""

    path: Path
    name: str
    """The path from the working directory or the run directory, if it lies there."""
    step: int | None
    """Optimizer steps, from the name, or from the curves, where they count the parents' too; None if unknown."""
    time: float
    """Unix time of its last change."""
    num_bytes: int
    files: dict[str, tuple[int, float]] = field(compare=False, repr=False)
    """Size and time of each file when it was listed, by the path from `path`; by an empty text for a file."""
    epoch: int | None = field(default=None, compare=False, repr=False)
    """A count of epochs in the name."""
    is_estimate: bool = field(default=False, compare=False, repr=False)
    """Whether the step is an estimate, from the time of the file."""
    metrics: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Always empty: a file of another program does not say."""

    @property
    def about(self) -> str:
        """The step in words: `step 200`, `about step 200` or `step ?`."""
        return "step ?" if self.step is None else f"{'about ' * self.is_estimate}step {self.step:,}"

    @property
    def origin(self) -> dict[str, Any]:
        """The checkpoint as `resumed_from` of a launch.json has it."""
        origin = {"checkpoint": self.name, "step": self.step, "path": str(self.path)}
        return origin | ({"is_estimate": True} if self.is_estimate else {})

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint as JSON values."""
        facts = {"name": self.name, "step": self.step, "path": str(self.path), "time": self.time}
        return {**facts, "is_estimate": self.is_estimate, "metrics": {}, "bytes": self.num_bytes}

    def verify(self) -> None:
        """Check that every file is there as it was listed, and none was cut off, without unpickling any; a
        CheckpointError names the first one that is not."""
        for name, (num_bytes, changed) in self.files.items():
            path = self.path / name if name else self.path
            try:
                with open_regular(path) as file:
                    status = os.fstat(file.fileno())
                    if (status.st_size, status.st_mtime) != (num_bytes, changed):
                        raise CheckpointError(f"{path}: has changed since it was listed; list the checkpoints again")
                    if _is_cut_off(file, path.name, num_bytes):
                        raise CheckpointError(f"{path}: ends too early: it was not written to its end")
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


class ForeignCheckpoints:
    """Follows the checkpoints of the program of a run. Not thread-safe."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._found: list[ForeignCheckpoint] = []
        self._key: object = None
        self._looked = float("-inf")
        self.shared: dict[Path, str] = {}
        """Folders whose checkpoints may be those of another run, whose name is the value, as of the last look."""

    def look(self, ended: float | None, pattern: str = "") -> list[ForeignCheckpoint]:
        """Return the checkpoints, oldest first; a checkpoint is included once its files no longer change.

        The arguments are those of `checkpoints_of`. What was found is kept for some seconds, and from the end on.
        """
        now = time.monotonic()
        if self._key != (ended, pattern) or (ended is None and now - self._looked >= _LOOK_EVERY_S):
            self._looked = now
            with contextlib.suppress(OSError):
                self._found, self.shared = checkpoints_of(self._run_dir, ended, pattern)
                self._key = ended, pattern
        return self._found


def checkpoints_of(
    run_dir: Path, ended: float | None, pattern: str = ""
) -> tuple[list[ForeignCheckpoint], dict[Path, str]]:
    """Return the checkpoints that a program wrote, oldest first, and the folders of those that another run may have
    written, each with the name of that run; the arguments and errors are those of `places_of`.

    Args:
        pattern: `out/*.ckpt`, from the working directory on; empty to look for usual names in the run directory, the
            folders that the arguments name, and the working directory.
    """
    shared: dict[Path, str] = {}
    found: dict[Path, ForeignCheckpoint] = {}
    before = time.time() - _QUIET_S if ended is None else float("inf")
    places = places_of(run_dir, ended)
    roots = [run_dir, *places.named, *places.working]
    folder, rest = split_pattern(next(map(str, places.working), "/"), pattern)
    for root in [folder] if pattern else dict.fromkeys(roots):
        other = places.left_out.get(next((one for one in roots if root.is_relative_to(one)), root) if pattern else root)
        if other is not None and not pattern and places.named and root not in places.named:
            continue  # the program writes elsewhere
        for path in islice(root.glob(rest), _MAX_FILES) if pattern else _usual(root):
            with contextlib.suppress(OSError):  # just removed
                files = _files_of(path)
                if places.has(max(files.values(), key=attrgetter("st_mtime"))) and not _is_unfinished(path.name, files):
                    bases = (base for base in (*places.working, run_dir) if path.is_relative_to(base))
                    name = next((path.relative_to(base) for base in bases), path)
                    if other is not None:
                        shared[path.parent] = other
                    elif (one := _of_files(path, str(name), files)).time <= before:
                        found.setdefault(path, one)
    return sorted(found.values(), key=lambda one: (one.time, one.name)), shared


def guessed_pattern(found: Sequence[ForeignCheckpoint]) -> str:
    """Return a pattern for checkpoints with usual names: their numbers become `*`; of several shapes, `out/*.pt`."""
    shapes = dict.fromkeys(re.sub(r"\d+", "*", one.name) for one in found)
    newest = Path(next(reversed(shapes), ""))
    is_one = sum(Path(shape).parent == newest.parent for shape in shapes) == 1
    return str(newest if is_one else newest.with_name(f"*{newest.suffix}")) if shapes else ""


def checkpoint_at(path: Path) -> ForeignCheckpoint:
    """Return any file or folder as a checkpoint; CheckpointError if it cannot be read, or holds no files."""
    try:
        return _of_files(path, str(path), _files_of(path, follow=True))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read as a checkpoint ({error.strerror})") from None


def newest_whole(found: Sequence[ForeignCheckpoint]) -> tuple[ForeignCheckpoint | None, list[str]]:
    """Return the checkpoint to continue from, or None, and the reasons against newer ones.

    The newest comes first, weights alone and best ones last: of `last.pt` and then `best.pt` it is the former.
    """
    reasons: list[str] = []
    for one in sorted(found, key=lambda one: (_ASIDE.fullmatch(one.path.name) is not None, -one.time)):
        try:
            one.verify()
            return one, reasons
        except CheckpointError as error:
            reasons.append(f"{one.name}: {error}")
    return None, reasons


def _usual(root: Path) -> Iterator[Path]:
    """Yield the files and folders below a folder that have the name of a checkpoint, or the parts of one."""
    for folder, inner, entries in walk(root):
        inside = {entry.name for entry in entries}
        is_state = not inside.isdisjoint((".metadata", "random_states_0.pkl")) and not folder.name.startswith("tmp")
        # A lone file is the checkpoint itself: `epoch_1/model.pt`.
        has_weights = len(inside) > 1 and any(name.endswith(_WEIGHTS) for name in inside)
        is_numbered = (has_weights or "trainer_state.json" in inside) and _FOLDER.fullmatch(folder.name)
        if folder != root and (is_state or is_numbered):
            inner.clear()
            yield folder
        else:
            yield from (folder / name for name in inside if _FILE.fullmatch(name) and not _NO_FILE.match(name))


def _files_of(path: Path, *, follow: bool = False) -> dict[str, os.stat_result]:
    """Return the status of a file by an empty text, or those of the regular files in a folder by their paths in it;
    OSError if there is none. Links count if `follow`."""
    if not path.is_dir() or (path.is_symlink() and not follow):
        return {"": path.stat(follow_symlinks=follow)}
    files = {}
    for entry in islice((entry for _, _, entries in walk(path) for entry in entries), _MAX_FILES):
        with contextlib.suppress(OSError):  # just removed
            if entry.is_file(follow_symlinks=follow):
                files[os.path.relpath(entry.path, path)] = entry.stat(follow_symlinks=follow)
    if not files:
        raise OSError(0, "it has no files")
    return files


def _is_unfinished(name: str, files: dict[str, os.stat_result]) -> bool:
    """Whether a checkpoint is still written, or was left so: transformers writes the state of its trainer last."""
    is_of_trainer = "training_args.bin" in files and "trainer_state.json" not in files
    return is_of_trainer or any(each.endswith(_UNFINISHED) for each in (name, *files))


def _of_files(path: Path, name: str, files: dict[str, os.stat_result]) -> ForeignCheckpoint:
    step, epoch = (found and int(found[1]) for found in (_STEP.search(path.name), _EPOCH.search(path.name)))
    sizes = {each: (status.st_size, status.st_mtime) for each, status in files.items()}
    num_bytes, changed = sum(size for size, _ in sizes.values()), max(changed for _, changed in sizes.values())
    return ForeignCheckpoint(path, name, step, changed, num_bytes, sizes, epoch)


def _is_cut_off(file: Any, name: str, num_bytes: int) -> bool:
    """Whether a file of weights is empty, or is a zip archive (as torch.save writes) or safetensors without its end."""
    if not num_bytes:
        return name.endswith(_WEIGHTS)
    if name.endswith(".safetensors"):
        head = file.read(8)
        return len(head) < 8 or int.from_bytes(head, "little") + 8 > num_bytes
    with contextlib.suppress(zipfile.BadZipFile):
        return file.read(4) == b"PK\3\4" and not zipfile.is_zipfile(file)
    return True
