"""Checkpoints that a program of the user's wrote, known by their names and times; their content is never unpickled.

A *folder* is one checkpoint if it holds parts of a distributed one (`.metadata` and `*.distcp`), what accelerate's
`save_state` writes, or weights while its name ends with a count (`checkpoint-500`, `epoch_1`, `step_500`). A *file* is
one if its name says so (`last.ckpt`, `model_0100.pth`, `checkpoint.pth.tar`); without any such name every other `.pt`
and `.pth` file counts. Megatron and DeepSpeed load the folder in which a file names the newest checkpoint in it, so
there that folder is the checkpoint.
"""

import contextlib
import os
import re
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from nbtools.errors import CheckpointError, html_table
from nbtools.rundir.program_files.written_files import Places, places_of, walk
from nbtools.rundir.tail import open_regular

_LOOK_EVERY_S: Final = 5.0
_QUIET_S: Final = 2.0
"""A file that changed more recently than this, in a run that continues, may still be written."""
_HEAD_BYTES: Final = 4096

_COUNT = r"[-_=.]?(\d{1,15})(?!\d)"
_STEP: Final = re.compile(rf"(?:^|[^a-z])(?:global_?)?(?:step|iter|iteration|update|it)s?{_COUNT}", re.IGNORECASE)
"""A count of steps in a name: `epoch=3-step=400`, `iter_0000500`, `global_step500`."""
_EPOCH: Final = re.compile(rf"(?:^|[^a-z])(?:epoch|ep)s?{_COUNT}", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?:^|[-_=.]|checkpoint|ckpt|model|state)(\d{1,15})(?![\dA-Za-z])", re.IGNORECASE)
"""A number of unknown unit in a name: steps in `model_0100.pth`, epochs in timm's `checkpoint-12.pth.tar`."""
_FOLDER: Final = re.compile(
    rf"(?!tmp)(?:.*[-_.])?(?:checkpoint|ckpt|epoch|step|global_?step|iter|iteration|update)s?{_COUNT}", re.IGNORECASE
)
_SAYS_SO: Final = re.compile(
    r"(?:^|[^a-z])(?:checkpoint|ckpt|snapshot|last|latest|best|final|model|weights|state|net)s?(?![a-z])", re.IGNORECASE
)
_ASIDE: Final = re.compile(r"(?:^|[^a-z])(?:best|final|model|weights|net)s?(?![a-z])", re.IGNORECASE)
"""Names of weights alone, or of an earlier state: a resume from the newest checkpoint prefers other names."""
_PART: Final = re.compile(
    r"(?:optimizer|scheduler|scaler|sampler|rng_state|random_states|training_args|ema_only|tokenizer|dataset|cache|"
    r"features?|embeddings?|predictions?|(?:train|val|valid|test|dev)(?![a-z]))",
    re.IGNORECASE,
)
"""Beginning of the names of parts of a checkpoint, and of tensors that are not checkpoints."""
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".distcp", ".msgpack", ".h5")
_OF_TORCH: Final = (".pt", ".pth", ".pt.tar", ".pth.tar", ".ckpt.tar")
_FILES: Final = (".ckpt", *_OF_TORCH, ".bin", ".safetensors", ".tar", ".pkl")
_UNFINISHED: Final = (".tmp", ".partial", ".incomplete")
_TRACKERS: Final = ("latest_checkpointed_iteration.txt", "latest")
"""Files of Megatron and of DeepSpeed that name the newest checkpoint in their folder."""
_MODEL_PARALLEL: Final = "mp_rank_"
"""Beginning of the names of folders with a part of a model."""
_RANK: Final = re.compile(r"rank[-_=.]?\d+", re.IGNORECASE)
_MAX_PARTS: Final = 2_000
"""Number of entries of the folders inside a checkpoint that are examined."""
_HF_STATE: Final = "trainer_state.json"
_GLOBAL_STEP: Final = re.compile(rb'"global_step":\s*(\d{1,15})\b')


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint of a program, a file or a folder."""

    path: Path
    name: str
    """The path from the working directory or the run directory, if it lies there."""
    step: int | None
    """Optimizer steps, from the name, a file beside it, or the curves, where they count the parents' too; None if
    unknown."""
    time: float
    """Unix time of its last change."""
    num_bytes: int
    files: dict[str, tuple[int, float]] = field(compare=False, repr=False)
    """Size and time of each file when it was listed, by the path from `path`; by an empty text for a file."""
    number: int | None = field(default=None, compare=False, repr=False)
    """A count in the name that is of epochs, of steps or of something else."""
    is_of_epoch: bool = field(default=False, compare=False, repr=False)
    """Whether the name says that the count is of epochs."""
    is_estimate: bool = field(default=False, compare=False, repr=False)
    """Whether the step is an estimate, from the time of the file."""
    metrics: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Always empty: a file of another program does not say."""

    def _repr_html_(self) -> str:
        step = "" if self.step is None else f"{self.step:,}"
        return html_table([(self.name, str(self.path)), ("step", step), ("bytes", f"{self.num_bytes:,}")])

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
            except FileNotFoundError:
                raise CheckpointError(f"{path}: is missing") from None
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


class ForeignCheckpoints:
    """Follows the checkpoints of one program. Not thread-safe.

    Args:
        run_dir: its run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._found: list[ForeignCheckpoint] = []
        self._key: object = None
        self._looked = float("-inf")
        self.unclear: dict[Path, str] = {}
        """Folders of checkpoints that may be those of another run, whose name is the value, as of the last look."""

    def look(
        self, cwd: str | None, args: Sequence[str], started: float | None, ended: float | None
    ) -> list[ForeignCheckpoint]:
        """Return the checkpoints, oldest first; a checkpoint is included once its files no longer change.

        The arguments are those of `places_of`. What was found is kept for some seconds, and from the end on.
        """
        now, key = time.monotonic(), (ended, started is None)
        is_known = key == self._key and (ended is not None or now - self._looked < _LOOK_EVERY_S)
        if started is not None and not is_known:
            self._looked = now
            with contextlib.suppress(OSError):
                self.unclear.clear()
                found = checkpoints_of(self._run_dir, cwd, args, started, ended, unclear=self.unclear)
                self._found, self._key = found, key
        return self._found


def checkpoints_of(
    run_dir: Path,
    cwd: str | None,
    args: Sequence[str],
    started: float,
    ended: float | None,
    *,
    quiet_s: float = _QUIET_S,
    cut: list[Path] | None = None,
    unclear: dict[Path, str] | None = None,
) -> list[ForeignCheckpoint]:
    """Return the checkpoints that a program wrote, oldest first; the arguments and errors are those of `places_of`.

    Args:
        quiet_s: seconds for which a checkpoint of a run that continues must not have changed.
        cut: receives the folders that were not read to their end.
        unclear: receives the folders of checkpoints that another run may have written, each with the name of that run.
    """
    found: dict[Path, ForeignCheckpoint] = {}
    others: dict[Path, ForeignCheckpoint] = {}
    before = time.time() - quiet_s if ended is None else float("inf")
    places = places_of(run_dir, cwd, args, started, ended)
    for root in dict.fromkeys((run_dir, *places.named, *places.working)):
        other = places.left_out.get(root)
        if other is not None and (unclear is None or (places.named and root not in places.named)):
            continue
        for one, says_so in _below(root, places, [*places.working, run_dir], cut):
            if other is None:
                (found if says_so else others).setdefault(one.path, one)
            elif says_so and unclear is not None:
                unclear[one.path.parent] = other
    listed = [one for one in (found or others).values() if one.time <= before]
    return sorted(listed, key=lambda one: (one.time, one.name))


def checkpoint_at(path: Path) -> ForeignCheckpoint:
    """Return any file or folder as a checkpoint; CheckpointError if it cannot be read, or holds no files."""
    try:
        every = path.rglob("*") if path.is_dir() else [path]
        files = {str(each.relative_to(path)) if each != path else "": each.stat() for each in every if each.is_file()}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if not files:
        raise CheckpointError(f"{path}: no such file, nor a folder with files")
    return _of_files(path, str(path), files)


def resume_order(found: Sequence[ForeignCheckpoint]) -> list[ForeignCheckpoint]:
    """Return checkpoints in the order in which a resume tries them: the newest first, weights alone and best ones last.

    A program that writes `last.pt` and then `best.pt` continues from the former.
    """

    def is_aside(one: ForeignCheckpoint) -> bool:
        is_counted = one.number is not None or (one.step is not None and not one.is_estimate)
        return bool(_ASIDE.search(one.path.name)) and (one.is_of_epoch or not is_counted)

    return sorted(found, key=lambda one: (is_aside(one), -one.time))


def newest_whole(found: Sequence[ForeignCheckpoint]) -> tuple[ForeignCheckpoint | None, list[str]]:
    """Return the checkpoint to continue from, or None, and the reasons against newer ones.

    Files that differ only in the number of a rank are passed over: a command line can name one of them, for all ranks.
    """
    alike = Counter(map(_but_for_rank, found))
    parts = [one.name for one in found if alike[_but_for_rank(one)] > 1]
    reasons = [f"{parts[-1]}: one of {len(parts)} files with a part for each rank; name one to use it"] if parts else []
    for one in resume_order([one for one in found if alike[_but_for_rank(one)] == 1]):
        try:
            one.verify()
            return one, reasons
        except CheckpointError as error:
            reasons.append(f"{one.name}: {error}")
    return None, reasons


def _but_for_rank(one: ForeignCheckpoint) -> str:
    return _RANK.sub("rank", str(one.path))


# --- which files and folders --------------------------------------------------------------------


def _below(
    root: Path, places: Places, bases: Sequence[Path], cut: list[Path] | None
) -> Iterator[tuple[ForeignCheckpoint, bool]]:
    """Yield the checkpoints below a folder, each with whether its name is that of a checkpoint."""
    for folder, inner, entries in walk(root, cut):
        if folder != root and _is_checkpoint(folder.name, {entry.name for entry in entries}):
            files = dict(_stats(entries, ""))
            for name in inner:  # of DeepSpeed, or the parts of FSDP
                files |= _parts(folder, f"{name}/", 1, iter(range(_MAX_PARTS)))
            inner.clear()
            is_whole = not any(name.endswith(_UNFINISHED) for name in files)
            if files and is_whole and places.has(max(files.values(), key=lambda status: status.st_mtime)):
                yield _of_files(folder, _prefix(folder.parent, bases) + folder.name, files), True
            continue
        if tracked := _tracked(folder, inner, {entry.name for entry in entries}):
            files = dict(_parts(folder, f"{tracked}/", 2, iter(range(_MAX_PARTS))))
            if files and places.has(max(files.values(), key=lambda status: status.st_mtime)):
                whole = _of_files(folder, _prefix(folder.parent, bases) + folder.name, files)
                yield replace(whole, step=_counts(tracked)[0]), True
            inner[:] = [name for name in inner if name != tracked and not _FOLDER.fullmatch(name)]
        inner[:] = [name for name in inner if not name.startswith(_MODEL_PARALLEL)]
        prefix = _prefix(folder, bases)
        for entry in entries:
            if (says_so := _is_file_of_checkpoint(entry.name)) is not None:
                with contextlib.suppress(OSError):
                    if places.has(status := entry.stat(follow_symlinks=False)):
                        yield _of_files(folder / entry.name, prefix + entry.name, {"": status}), says_so


def _tracked(folder: Path, inner: Sequence[str], inside: set[str]) -> str:
    """Return the name of the checkpoint that a tracker file in a folder names; empty without one."""
    for tracker in _TRACKERS:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if tracker in inside:
                with open_regular(folder / tracker) as file:
                    said = file.read(_HEAD_BYTES).decode().strip()[:100]
                step = int(said) if said.isdecimal() else None
                for name in inner:
                    if name == said or (step is not None and _counts(name)[0] == step):
                        return name
    return ""


def _parts(folder: Path, prefix: str, depth: int, budget: Iterator[int]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of the files of a checkpoint in a folder inside it, until the budget is spent."""
    with contextlib.suppress(OSError), os.scandir(folder / prefix) as entries:
        for _, entry in zip(budget, entries, strict=False):
            if not entry.is_dir(follow_symlinks=False):
                if entry.name.endswith((*_FILES, *_WEIGHTS, *_UNFINISHED, ".metadata")):
                    yield from _stats([entry], prefix)
            elif depth > 1:
                yield from _parts(folder, f"{prefix}{entry.name}/", depth - 1, budget)


def _prefix(folder: Path, bases: Sequence[Path]) -> str:
    """Return what precedes the names of checkpoints in a folder: its path from the first base that it lies in."""
    base = next((base for base in bases if folder.is_relative_to(base)), None)
    place = folder if base is None else folder.relative_to(base)
    return f"{place}/" if place.parts else ""


def _is_checkpoint(name: str, inside: set[str]) -> bool:
    """Whether a folder with this name and these files is one checkpoint."""
    is_distributed = ".metadata" in inside and any(file.endswith(".distcp") for file in inside)
    if is_distributed or "random_states_0.pkl" in inside:
        return not name.startswith("tmp")
    if "training_args.bin" in inside and _HF_STATE not in inside:  # Trainer writes its state last
        return False
    has_weights = any(file.endswith(_WEIGHTS) for file in inside)
    # A lone file is the checkpoint itself: `epoch_1/model.pt`.
    return bool(_FOLDER.fullmatch(name)) and (_HF_STATE in inside or (has_weights and len(inside) > 1))


def _is_file_of_checkpoint(name: str) -> bool | None:
    """True if a file name is that of a checkpoint, False if it may be one, None if it is none."""
    if not name.endswith(_FILES) or name.startswith((".", "tmp")) or _PART.match(name):
        return None
    if name.endswith(".ckpt"):
        return True
    if name.endswith(_OF_TORCH):
        return any(pattern.search(name) for pattern in (_SAYS_SO, _STEP, _EPOCH, _NUMBER))
    return True if re.search(r"checkpoint|ckpt", name, re.IGNORECASE) else None


def _stats(entries: Any, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries:
        with contextlib.suppress(OSError):  # just removed
            if entry.is_file(follow_symlinks=False):
                yield prefix + entry.name, entry.stat(follow_symlinks=False)


def _of_files(path: Path, name: str, files: dict[str, os.stat_result]) -> ForeignCheckpoint:
    labelled, number, is_of_epoch = _counts(path.name)
    step = _hf_step(path) if _HF_STATE in files else None
    newest = max(status.st_mtime for status in files.values())
    sizes = {each: (status.st_size, status.st_mtime) for each, status in files.items()}
    num_bytes = sum(size for size, _ in sizes.values())
    step = labelled if step is None else step
    return ForeignCheckpoint(path, name, step, newest, num_bytes, sizes, number, is_of_epoch)


def _counts(name: str) -> tuple[int | None, int | None, bool]:
    """Return the number of steps in a name, another number there, and whether that counts epochs."""
    if found := _STEP.search(name):
        return int(found[1]), None, False
    if found := _EPOCH.search(name):
        return None, int(found[1]), True
    numbers = _NUMBER.findall(name)
    return None, int(numbers[-1]) if numbers else None, False


def _hf_step(folder: Path) -> int | None:
    """Return `global_step` of a trainer_state.json, whose keys are sorted: it precedes the long history."""
    with contextlib.suppress(OSError), open_regular(folder / _HF_STATE) as file:
        if found := _GLOBAL_STEP.search(file.read(_HEAD_BYTES)):
            return int(found[1])
    return None


def _is_cut_off(file: Any, name: str, num_bytes: int) -> bool:
    """Whether a file of weights is empty, or is a zip archive (as torch.save writes) or safetensors without its end."""
    if not num_bytes:
        return name.endswith((*_WEIGHTS, *_OF_TORCH))
    if name.endswith(".safetensors"):
        head = file.read(8)
        return len(head) < 8 or int.from_bytes(head, "little") + 8 > num_bytes
    with contextlib.suppress(zipfile.BadZipFile):
        return file.read(4) == b"PK\3\4" and not zipfile.is_zipfile(file)
    return True
