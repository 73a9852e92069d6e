"""The files that stood where a program writes before it was started: what was in them then is not this run's."""

import contextlib
import hashlib
import itertools
import re
from pathlib import Path
from typing import Any, Final

from nbtools.rundir.json_files import content_of, write_json
from nbtools.rundir.program_files.written_files import folders_of, walk
from nbtools.rundir.rundir import RunDir, launch_of
from nbtools.rundir.tail import open_regular

_TABLES: Final = re.compile(r".+\.(?:csv|jsonl|json|log|ndjson|tsv|txt)(?:[.-]\d[\d._-]*)?")
_MAX_FILES: Final = 1_000
_END_BYTES: Final = 4_096


class FilesBefore:
    """Inode, size, time of change and a hash of the end of each file of rows, as they were at the start of a run."""

    def __init__(self, run: RunDir) -> None:
        """Read the record of a run: empty if its start was not recorded."""
        self._run = run
        recorded = content_of(run.files_before).get("files")
        self._files: dict[str, list[Any]] = dict(recorded) if isinstance(recorded, dict) else {}

    def take(self) -> None:
        """Record the files as they are now, before the program is started."""
        for root in itertools.chain(*folders_of(launch_of(self._run.path))):
            for folder, _, entries in walk(root):
                for name in (entry.name for entry in entries if _TABLES.fullmatch(entry.name)):
                    with contextlib.suppress(OSError):
                        status = (path := folder / name).lstat()
                        if status.st_size and len(self._files) < _MAX_FILES:
                            end = _end_of(path, status.st_size)
                            self._files[str(path)] = [status.st_ino, status.st_size, status.st_mtime_ns, end]
        self._write()

    def forget_rewritten(self) -> None:
        """Leave out the files that are shorter now: they are written again, and all in them is this run's."""
        for path, facts in [*self._files.items()]:
            with contextlib.suppress(OSError):
                status = Path(path).lstat()
                if status.st_ino == facts[0] and status.st_size < facts[1]:
                    del self._files[path]
                    self._write()

    def end_in(self, path: str) -> int:
        """Return the offset in a file at which the rows of this run begin."""
        with contextlib.suppress(OSError, TypeError, ValueError):  # also of a damaged record
            status = Path(path).lstat()
            for inode, size, changed, end in self._files.values():  # a rotation renames a file
                is_same = status.st_size > size or (status.st_size, status.st_mtime_ns) == (size, changed)
                if inode == status.st_ino and is_same and _end_of(Path(path), size) == end:
                    return int(size)
        return 0

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            write_json(self._run.files_before, {"files": self._files})


def _end_of(path: Path, size: int) -> str:
    with open_regular(path) as file:
        file.seek(max(size - _END_BYTES, 0))
        return hashlib.sha256(file.read(min(size, _END_BYTES))).hexdigest()[:16]
