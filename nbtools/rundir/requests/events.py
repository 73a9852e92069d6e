"""The events of a training: what rank 0 has done with each request, and after which step.

    {"request": "1769868153250000000-5f3a…", "step": 200, "time": …, "by": "ana@box", "action": "save"}
    {"request": "…", "step": 240, "time": …, "by": "…", "field": "learning_rate", "from": 0.001, "to": 0.0005}
    {"request": "…", "step": 260, "time": …, "by": "…", "refused": "max_steps=100: step 260 is done; …"}

Rank 0 appends them to events.jsonl; after an automatic restart rows carry `attempt`. A value that was changed while the
training was held has `in_pause`: what was due after the step was done before. A run that repeats another one has that
one's events in planned.jsonl.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nbtools.errors import shown
from nbtools.rundir.json_files import finite, kept, whole
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import end_of, objects_in, one_line
from nbtools.steering import append_rows

_MOST_BYTES = 1 << 20
_LONGEST_TEXT = 500
_TEXTS = "request", "by", "action", "field", "refused"


@dataclass(frozen=True)
class Event:
    """An action that was taken, a value that was changed, or a request that was refused."""

    request: str
    step: int
    """Completed optimizer steps: the event holds from the next one on."""
    time: float
    by: str = ""
    action: str = ""
    field: str = ""
    before: Any = None
    after: Any = None
    refused: str = ""
    """Why the request was refused."""
    attempt: int = 1
    in_pause: bool = False
    """Whether it was applied when all that was due after the step was done."""

    def __str__(self) -> str:
        if self.refused:
            return f"refused: {self.refused}"
        return self.action or f"{self.field} {shown(self.before, 40)} -> {shown(self.after, 40)}"

    def to_json(self) -> dict[str, Any]:
        """Return the event as a row of events.jsonl holds it."""
        row = {"request": self.request, "step": self.step, "time": self.time, "by": self.by, "attempt": self.attempt}
        values = {"field": self.field, "from": self.before, "to": self.after}
        row |= {"in_pause": True} if self.in_pause else {}
        return row | ({"refused": self.refused} if self.refused else {"action": self.action} if self.action else values)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self | None:
        """Return the event in a row; None if it is not one."""
        step, at, attempt = whole(row.get("step")), finite(row.get("time")), whole(row.get("attempt")) or 1
        request, by, action, field, refused = (one_line(str(row.get(name, "")), _LONGEST_TEXT) for name in _TEXTS)
        if step is None or at is None or not (refused or field or action):
            return None
        before, after = _scalar(row.get("from")), _scalar(row.get("to"))
        return cls(request, step, at, by, action, field, before, after, refused, attempt, row.get("in_pause") is True)


def _scalar(value: object) -> object:
    """Return a value that strict JSON holds; the text of any other one."""
    return value if value is None or isinstance(value, int | str) or finite(value) is not None else shown(value, 100)


def append_events(run: RunDir, events: Iterable[Event], *, planned: bool = False) -> None:
    """Append events to events.jsonl, or to those that a run repeats; OSError if the disk is full."""
    append_rows(run.planned if planned else run.events, [event.to_json() for event in events])


def read_events(run: RunDir, *, planned: bool = False) -> list[Event]:
    """Return the events of a run, oldest first, or those that it repeats; damaged and other rows are left out."""
    return list(kept(events_in, run.planned if planned else run.events) or ())


def events_in(path: Path) -> list[Event]:
    """Return the events in a file of JSON lines; rows that are none are left out."""
    found = map(Event.from_json, objects_in(end_of(path, _MOST_BYTES)))
    return [event for event in found if event is not None]


def changed_values(events: Iterable[Event]) -> dict[str, Any]:
    """Return the last value of each field that events have changed."""
    return {event.field: event.after for event in events if event.field and not event.refused}


def held(events: Iterable[Event]) -> Event | None:
    """Return the event that holds a training now; None if it is not paused."""
    found = [event for event in events if event.action in ("pause", "continue") and not event.refused]
    return found[-1] if found and found[-1].action == "pause" else None


def paused_s(events: Iterable[Event], now: float | None = None) -> float:
    """Return the seconds in which a training was paused, until `now`, a Unix time."""
    total, since = 0.0, None
    for event in events:
        if event.action == "pause" and not event.refused and since is None:
            since = event.time
        elif event.action == "continue" and not event.refused and since is not None:
            total, since = total + event.time - since, None
    return total if since is None else total + (time.time() if now is None else now) - since
