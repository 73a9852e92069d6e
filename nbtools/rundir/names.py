"""The names of runs: the name, tags and note that a user gave a run, and which run a reference names.

They are in labels.json. Only the owner's viewers write that file; for another user's run, they are in this user's
cache folder and take the place of the owner's.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from nbtools.errors import ConfigError, InvalidNameError, RunNotFoundError, did_you_mean, plural, shown
from nbtools.project import user_cache
from nbtools.rundir.json_files import content_of, read_json, write_json
from nbtools.rundir.lock import locked_folder
from nbtools.rundir.rundir import RunDir, foreign_owner, found_runs, is_run, launch_of, name_of, newest_first
from nbtools.rundir.tail import one_line

LATEST = "latest"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_EARLIER = re.compile(r"(.+)~([0-9]{1,6})", re.DOTALL)
_MOST_TAGS, _LONGEST_TAG, _LONGEST_NOTE = 16, 40, 2000


@dataclass(frozen=True)
class Labels:
    """A user's name, tags and note for a run; empty by default."""

    name: str = ""
    """Name that replaces the script's name."""
    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the labels in a JSON object; values that are not allowed are left out."""
        name, tags, note = (content.get(key) for key in ("name", "tags", "note"))
        return cls(
            name if isinstance(name, str) and _is_name(name) else "",
            tuple(tag for tag in tags[:_MOST_TAGS] if _is_tag(tag)) if isinstance(tags, list) else (),
            note[:_LONGEST_NOTE] if isinstance(note, str) else "",
        )


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text != LATEST


def _is_tag(tag: object) -> bool:
    return isinstance(tag, str) and 0 < len(tag) <= _LONGEST_TAG and tag == tag.strip() and "," not in tag


def labels_file(run: RunDir) -> Path:
    """Return the file with the labels that this user sees; it need not exist."""
    with suppress(OSError):  # the directory was removed, or there is no cache folder
        if foreign_owner(run.path) is not None and (own := user_cache("labels", run.path)).exists():
            return own
    return run.labels


def read_labels(run: RunDir) -> Labels:
    """Return the labels of a run; empty ones without a file that this nbtools can read."""
    return Labels.from_json(content_of(labels_file(run)))


def label(run: RunDir, *, name: str | None = None, tags: Sequence[str] | None = None, note: str | None = None) -> None:
    """Change the name, the tags or the note of a run; None keeps the value, an empty value removes it.

    Raises:
        ConfigError: A value is not allowed.
        FormatError: A newer nbtools wrote the labels.
        OSError: The file cannot be written.
    """
    is_own = foreign_owner(run.path) is None
    path = run.labels if is_own else user_cache("labels", run.path, make=True)
    with locked_folder(path.parent):  # several processes may change a run's labels at once
        labels = _changed(Labels.from_json(read_json(labels_file(run)) or {}), name, tags, note)
        write_json(path, asdict(labels), mode=None if is_own else 0o600)


def _changed(labels: Labels, name: str | None, tags: Sequence[str] | None, note: str | None) -> Labels:
    if name and not _is_name(name):
        allowed = "a letter, then at most 63 letters, digits, '_' or '-'; not latest"
        raise InvalidNameError(f"name={shown(name)}: must be {allowed}")
    wrong = next((tag for tag in tags or () if not _is_tag(tag)), None)
    if wrong is not None or len(tags or ()) > _MOST_TAGS:
        allowed = f"at most {_MOST_TAGS} tags of 1 to {_LONGEST_TAG} characters without commas"
        raise ConfigError(f"tags={shown(tags if wrong is None else wrong)}: must be {allowed}")
    if note and len(note) > _LONGEST_NOTE:
        raise ConfigError(f"note={shown(note)}: must have at most {_LONGEST_NOTE:,} characters")
    asked: dict[str, Any] = {"name": name, "tags": None if tags is None else tuple(dict.fromkeys(tags)), "note": note}
    return replace(labels, **{key: value for key, value in asked.items() if value is not None})


def find_run(runs: Path, ref: str) -> Path:
    """Return the run directory in `runs` that a reference names.

    In this order: the newest run for `latest`, the id, the newest run with that name, the only run whose id starts so.
    `NAME~1` is the run before the newest of that name, `latest~1` the one before the newest of all.

    Raises:
        RunNotFoundError: No run fits, or more than one.
    """
    if ref != LATEST and Path(ref).name == ref and is_run(runs / ref):
        return runs / ref
    name, num_later = ref, 0
    if earlier := _EARLIER.fullmatch(ref):
        name, num_later = earlier[1], int(earlier[2])
    fitting = newest_first(runs) if name == LATEST else _with_name(runs, name)
    before = list(itertools.islice(fitting, num_later + 1))
    if len(before) > num_later:
        return before[-1]
    if name == LATEST and not before:
        raise RunNotFoundError(f"no run in {runs} yet: start one with nbtools launch SCRIPT")
    if before:
        there = f"there {'is' if len(before) == 1 else 'are'} {plural(len(before), 'run')}"
        whose = "" if name == LATEST else " of that name"
        raise RunNotFoundError(f"run {ref!r}: {there}{whose}; the oldest is {name}~{len(before) - 1}")
    starting = sorted(found_runs(runs, ref), reverse=True) if ref else []
    if len(starting) > 1:
        names = ", ".join(one_line(path.name, 200) for path in starting[:5]) + (", …" if len(starting) > 5 else "")
        raise RunNotFoundError(f"run {ref!r}: {len(starting)} runs have this prefix ({names}); give more of the id")
    if not starting:
        advice = did_you_mean(name, [LATEST, *_names(runs)], most=3) or "see nbtools runs"
        raise RunNotFoundError(f"run {ref[:80]!r}: no run in {runs} has this id, prefix or name; {advice}")
    return starting[0]


def _with_name(runs: Path, name: str) -> Iterator[Path]:
    """Yield the runs with a name, newest first; launch.json is read only of those whose folder may have it."""
    found = [
        path
        for path in found_runs(runs)
        if name in path.name or name_of(path.name) == path.name or labels_file(RunDir(path)).exists()
    ]
    for path in newest_first(runs, found):
        run = RunDir(path)
        if name == (read_labels(run).name or launch_of(path).get("name") or name_of(path.name)):
            yield path


def _names(runs: Path) -> list[str]:
    paths = found_runs(runs)
    given = (read_labels(RunDir(path)).name for path in paths)
    return sorted({one_line(name_of(path.name), 80) for path in paths} | {name for name in given if name})
