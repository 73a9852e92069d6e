"""Steers a running training: writes a request into its run directory and waits for the events that answer it.

`nbtools.steering` has the format of a request, which a viewer of the run's owner writes.
"""

import getpass
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtools.errors import ConfigError, LaunchError, did_you_mean, shown
from nbtools.rundir.json_files import content_of, write_json
from nbtools.rundir.requests.conditions import NOTIFY_ON, conditions_of
from nbtools.rundir.requests.events import Event, changed_values, events_in, held, read_events
from nbtools.rundir.rundir import RunDir, foreign_owner
from nbtools.steering import MOST_BYTES

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Steerable:
    """The actions that a running training takes, and the values that may be changed."""

    actions: tuple[str, ...]
    values: Mapping[str, Any]
    """Current values by name."""
    is_paused: bool


def controls_of(files: RunDir) -> Steerable | None:
    """Return what a training takes, and the conditions of `notify_on` that its supervisor takes; None if there is
    neither, as for a program without `nbtools.steering` that was started by hand."""
    found = content_of(files.controls)
    actions, values = found.get("actions"), found.get("values")
    in_force = conditions_of(files) if content_of(files.process).get("role") == "supervisor" else {}
    notify_on = {f"{NOTIFY_ON}{name}": value for name, value in in_force.items()}
    if not isinstance(actions, list) or not isinstance(values, dict):
        return Steerable((), notify_on, False) if notify_on else None
    events = read_events(files)
    values = {**values, **changed_values(events), **notify_on}
    return Steerable(tuple(map(str, actions)), values, held(events) is not None)


def write_request(run: RunDir, *, action: str = "", values: Mapping[str, Any] | None = None, folder: str = "") -> str:
    """Write a request into a run directory, for the training if no other `folder` is given, and return its name.

    Raises:
        ConfigError: It is larger than 4 kB, or holds what JSON cannot.
        OSError: It cannot be written.
    """
    asked = {"action": action} if action else {"values": dict(values or {})}
    content = {**asked, "by": f"{getpass.getuser()}@{socket.gethostname()}"}
    try:
        size = len(json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1).encode())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{shown(asked)}: {error}; give plain numbers and texts") from None
    if size > MOST_BYTES - 100:
        raise ConfigError(f"{shown(asked)}: has {size:,} bytes; a request has at most {MOST_BYTES:,}")
    path = run.path / folder if folder else run.requests
    path.mkdir(mode=0o700, exist_ok=True)
    name = f"{time.time_ns():019d}-{os.urandom(6).hex()}"
    write_json(path / f"{name}.json", content)
    return name


def steer(
    files: RunDir, has_ended: Callable[[], bool], actions: Sequence[str], values: Mapping[str, Any], timeout_s: float
) -> list[Event]:
    """Ask a running training for actions and for new values, and its supervisor for conditions; wait for the answers.

    Returns:
        The events; none if there was no answer within `timeout_s`; a training answers after its current step.

    Raises:
        ConfigError: the training does not take what was asked for.
        LaunchError: it takes no requests, has ended meanwhile, or belongs to another user.
    """
    _check(files, actions, values)
    own = {name: value for name, value in values.items() if not name.startswith(NOTIFY_ON)}
    others = {name.removeprefix(NOTIFY_ON): value for name, value in values.items() if name not in own}
    asked = [write_request(files, action=action) for action in actions]
    asked += [write_request(files, values=own)] if own else []
    asked += [write_request(files, values=others, folder=files.notice_requests.name)] if others else []
    until = time.monotonic() + timeout_s
    while True:
        over = has_ended()  # checked first: it answers before its end
        answers = [event for event in (*read_events(files), *events_in(files.notices)) if event.request in asked]
        if {event.request for event in answers} == {*asked} or time.monotonic() > until:
            break
        if over:
            raise LaunchError(f"{files.id} ended before it could answer; see nbtools show {files.id}")
        time.sleep(_LOOK_EVERY_S)
    if refused := [event.refused for event in answers if event.refused]:
        raise ConfigError("; ".join(refused))
    return answers


def _check(files: RunDir, actions: Sequence[str], values: Mapping[str, Any]) -> None:
    if owner := foreign_owner(files.path):
        raise LaunchError(f"{files.id}: belongs to {owner}, who alone may steer it")
    controls, asks_training = controls_of(files), actions or any(not name.startswith(NOTIFY_ON) for name in values)
    if controls is None or (asks_training and not controls.actions):
        why = "recipes do from their first step on, programs with nbtools.steering.poll"
        raise LaunchError(f"{files.id}: takes no requests (yet): {why}")
    if not actions and not values:
        known = ", ".join((*controls.actions, *(f"{name}=…" for name in controls.values)))
        raise ConfigError(f"nothing to do: give actions or new values, of {known}")
    for kind, given, taken in (("action", actions, controls.actions), ("value", values, tuple(controls.values))):
        if unknown := [name for name in given if name not in taken]:
            hint = did_you_mean(unknown[0], taken) or f"it has {', '.join(taken) or 'none'}"
            raise ConfigError(f"{shown(unknown[0])}: {files.id} has no such {kind} to steer; {hint}")
