"""Outputs of a finished training: the model, and the history as JSON and as a picture.

They are written to `outputs/` in the run directory, and copied to `save_dir` if the config names one.
"""

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError, NbtoolsError, Say, shown
from nbtools.project import expanded, file_digest
from nbtools.run.checkpoints import Checkpoint, checkpoints_in, verify_files
from nbtools.run.records import mapping_at
from nbtools.run.run import Run
from nbtools.rundir.atomic import discard, hidden_name, open_folder, write_file
from nbtools.rundir.json_files import FORMAT, read_json, strict_number, write_json
from nbtools.rundir.rundir import RunDir, foreign_owner
from nbtools.training.outputs.tensorboard_writer import Events
from nbtools.training.outputs.wandb import WandbRun
from nbtools.training.sharding.sharded_checkpoint import consolidate

MODEL, HISTORY, PICTURE = "model", "training_history.json", "training_history.png"
RECORD = ".nbtools-outputs.json"
"""The files in a `save_dir` that nbtools wrote and may replace while they are unchanged, with their SHA-256."""
_ORIGIN = ".model.json"
"""The checkpoint whose shards are merged in `model/`, and the size and SHA-256 of what was written."""
UNDRAWN_VARIABLE = "NBTOOLS_NO_PICTURE"
"""Environment variable that skips the picture, which takes a second at the end of a training."""
_PLOT_TIMEOUT_S = 45.0
_LASTING = FileExistsError, NotADirectoryError, IsADirectoryError
"""Errors of a write that another try does not cure."""
_LINKED_BYTES = 2**20
"""Larger files are hard links; smaller ones are copies, so that an edited config.json does not change a checkpoint."""


class Outputs:
    """Mirrors metric rows, and writes the outputs at the end; on rank 0 only."""

    def __init__(
        self, files: RunDir, config: TrainConfig, root: Path, say: Say, may_retry: Callable[[str, OSError], bool]
    ) -> None:
        """Check the outputs of the config; ConfigError if `save_dir` cannot be written, or a package is missing.

        Args:
            may_retry: called after a failed write; returns, after a pause, whether to try again.
        """
        self.problem = ""
        """Sentence on an output that could not be written; empty if all were."""
        self._may_retry = may_retry
        self._placed: Path | None = None
        self._files = files
        self._say = say
        self._save_dir = None if config.save_dir is None else checked_save_dir(config.save_dir, root)
        names = config.report_to.split(",")
        self._mirrors: list[Events | WandbRun] = []
        if "tensorboard" in names:
            self._mirrors.append(Events(files.tensorboard))
        if "wandb" in names:
            self._mirrors.append(wandb := WandbRun())
            self._attempt(wandb, partial(wandb.start, files, config))

    def add_row(self, step: int, values: Mapping[str, float]) -> None:
        """Mirror a metric row, if the config asks for it."""
        for mirror in list(self._mirrors):
            self._attempt(mirror, partial(mirror.write, step, values))

    def close(self, *, failed: bool) -> None:
        """Write the remaining mirrored rows; this may wait for a service."""
        for mirror in list(self._mirrors):
            self._attempt(mirror, partial(mirror.close, failed=failed))

    def _attempt(self, mirror: Events | WandbRun, act: Callable[[], None]) -> None:
        """Do something with a mirror; after an error, which is one warning, there is none."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - of any kind, and no reason to end a training
            self._mirrors.remove(mirror)
            self._warn(mirror.lost(error))

    def place_model(self) -> None:
        """Place the last checkpoint's model into `outputs/`; an error is a warning."""

        def place() -> None:
            folder = self._files.outputs
            folder.mkdir(exist_ok=True)
            _refuse_links(self._files.path, folder / MODEL / "any")
            if saved := checkpoints_in(self._files.checkpoints):
                if saved[-1].path != self._placed:
                    _hand_over(saved[-1], folder / MODEL)
                self._placed = saved[-1].path
            else:
                self._warn("outputs/ has no model: no checkpoint was saved")

        self._write("outputs/", place)

    def hand_over(self, *, draws: bool) -> None:
        """Write the outputs of a training that has ended, with a picture if `draws`; an error is a warning."""
        self.place_model()
        files, folder, target = self._files, self._files.outputs, self._save_dir
        self._write("outputs/", lambda: write_file(folder / HISTORY, history(Run(files.path))))
        if draws and not os.environ.get(UNDRAWN_VARIABLE) and (problem := _draw(files, folder / PICTURE)):
            self._warn(f"outputs/{PICTURE} was not drawn: {problem}")
        if target is not None:
            what = f"save_dir={shown(str(target))}"
            self._write(what, lambda: _copy(folder, target, files.id), f"; everything is in {folder}")

    def _write(self, what: str, write: Callable[[], None], more: str = "") -> None:
        while True:
            try:
                return write()
            except (OSError, ValueError, NbtoolsError) as error:
                if isinstance(error, OSError) and not isinstance(error, _LASTING) and self._may_retry(what, error):
                    continue
                self.problem = f"{what} is not complete: {error}{more}"
                return self._warn(self.problem)

    def _warn(self, text: str) -> None:
        self._say(f"warning: {text}")


def checked_save_dir(save_dir: str, root: Path) -> Path:
    """Make the folder of `save_dir`, from the project's root if relative; ConfigError if it cannot take the outputs."""
    folder = root / expanded(save_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        ours = _recorded(folder)
        theirs = [name for name in (MODEL, HISTORY, PICTURE) if _is_taken(folder / name, folder, ours)]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"save_dir={shown(save_dir)}: cannot be written ({why}); name another folder") from None
    if theirs:
        raise ConfigError(
            f"save_dir={shown(save_dir)}: holds {theirs[0]}, which nbtools did not write or which was changed since, "
            "and would replace; name another folder, or move the file"
        )
    return folder


def history(run: Run) -> bytes:
    """Return the curves of a run and of the runs that it resumed, as JSON.

    `train_losses` at `steps` and `val_losses` at `val_steps`; `columns` has every metric.
    """
    found = run.history
    plain = {}
    for name in found:
        column = found[name]
        values = [strict_number(value) for value in column.values.tolist()]
        plain[name] = {"steps": column.steps.tolist(), "values": values}
    none: dict[str, list[Any]] = {"steps": [], "values": []}
    train, evaluation = plain.get("train/loss", none), plain.get("eval/loss", none)
    content = {"format": FORMAT, "run": run.id, "steps": train["steps"], "train_losses": train["values"]}
    content |= {"val_steps": evaluation["steps"], "val_losses": evaluation["values"], "columns": plain}
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def _draw(files: RunDir, path: Path) -> str:
    """Draw the curves with `nbtools plot` in another process; return its error, or an empty text."""

    def draw(picture: Path) -> None:
        command = [sys.executable, "-P", "-m", "nbtools", "plot", str(files.path), "-o", str(picture)]
        done = subprocess.run(
            command, capture_output=True, timeout=_PLOT_TIMEOUT_S, check=False, cwd=files.path, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise OSError(lines[-1] if lines else f"exit code {done.returncode}")

    try:
        write_file(path, draw)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)[:300]
    return ""


def _copy(source: Path, target: Path, run_id: str) -> None:
    """Replace the outputs of an earlier training in `target`, file by file; other files there stay."""
    target.mkdir(parents=True, exist_ok=True)
    target = target.resolve()
    ours = _recorded(target)
    paths = [path for path in sorted(source.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    claims = {path.relative_to(source).as_posix(): [file_digest(path)] for path in paths}
    for name in claims:
        if os.path.lexists(target / name) and not _is_ours(target, name, ours):
            raise FileExistsError(f"{target / name} appeared meanwhile; nbtools does not replace files of others")
    both = {name: [*ours.get(name, []), *claims.get(name, [])] for name in {**ours, **claims}}
    write_json(target / RECORD, {"run": run_id, "files": both})  # lists an interrupted copy, too
    for name in claims:
        _refuse_links(target, target / name)
        _place(source / name, target / name, link=False)
    for name in ours.keys() - claims.keys():
        if _is_ours(target, name, ours):
            path = Path(name)
            with contextlib.suppress(OSError), open_folder(target, *path.parent.parts) as folder:
                os.unlink(path.name, dir_fd=folder)
    write_json(target / RECORD, {"run": run_id, "files": claims})


def _recorded(folder: Path) -> dict[str, list[str]]:
    """Return the files in a `save_dir` that an earlier training wrote, each with the SHA-256 that it may have.

    Another user's record is ignored.
    """
    with contextlib.suppress(OSError, TypeError):
        if foreign_owner(folder / RECORD) is None:
            listed = mapping_at(read_json(folder / RECORD) or {}, "files")
            return {name: [*digests] for name, digests in listed.items() if not Path(name).is_absolute()}
    return {}


def _is_ours(folder: Path, name: str, ours: Mapping[str, list[str]]) -> bool:
    """Whether a file in a `save_dir`, not behind a link, is as nbtools wrote it."""
    path = folder / name
    try:
        _refuse_links(folder, path)
        return stat.S_ISREG(path.lstat().st_mode) and file_digest(path) in ours.get(name, ())
    except (OSError, ValueError):
        return False


def _refuse_links(folder: Path, path: Path) -> None:
    """Raise an OSError if a folder between `folder` and `path` is a link, which would lead elsewhere."""
    for parent in path.relative_to(folder).parents:
        if ".." in parent.parts or (folder / parent != folder and (folder / parent).is_symlink()):
            raise OSError(errno.ELOOP, "is a link, which nbtools does not follow", str(folder / parent))


def _is_taken(path: Path, folder: Path, ours: Mapping[str, list[str]]) -> bool:
    """Whether `path` is a file that nbtools did not write, or a folder with such a file in it."""
    if path.is_dir() and not path.is_symlink():
        return any(_is_taken(child, folder, ours) for child in path.iterdir())
    return os.path.lexists(path) and not _is_ours(folder, path.relative_to(folder).as_posix(), ours)


def _hand_over(saved: Checkpoint, target: Path) -> None:
    """Mirror the model of a checkpoint to `target`; shards become whole weights there."""
    if saved.manifest.get("strategy") != "fsdp":
        _mirror(saved.path / MODEL, target)
        return
    whole, record = hidden_name(target), target.with_name(_ORIGIN)
    record.unlink(missing_ok=True)
    try:
        claims = {f"{MODEL}/{name}": claim for name, claim in consolidate(saved.path / MODEL, whole).items()}
        _mirror(whole, target)
    finally:
        discard(whole)
    others = {name: claim for name, claim in saved.manifest["files"].items() if (target.parent / name).is_file()}
    write_json(record, {"manifest": file_digest(saved.path / "manifest.json"), "files": {**others, **claims}})


def whole_model(saved: Checkpoint) -> Path | None:
    """Return `outputs/model` of the run if a checkpoint's shards are merged there, and no file has changed since."""
    record = RunDir(saved.path.parent.parent).outputs / _ORIGIN
    with contextlib.suppress(OSError, NbtoolsError):
        origin = read_json(record) or {}
        if origin.get("manifest") == file_digest(saved.path / "manifest.json"):
            verify_files(record, origin["files"])
            return record.with_name(MODEL)
    return None


def _mirror(source: Path, target: Path) -> None:
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for relative in sorted(wanted):
        _place(source / relative, target / relative, link=True)
    for path in list(target.rglob("*")):
        if path.is_file() and path.relative_to(target) not in wanted:
            path.unlink()


def _place(source: Path, target: Path, *, link: bool) -> None:
    """Replace `target` atomically, by a hard link if the file is large and the file system supports it."""
    target.parent.mkdir(parents=True, exist_ok=True)

    def copy(file: Path) -> None:
        if link and source.stat().st_size >= _LINKED_BYTES:
            with contextlib.suppress(OSError):
                os.link(source, file)
                return
        shutil.copyfile(source, file)

    write_file(target, copy)
