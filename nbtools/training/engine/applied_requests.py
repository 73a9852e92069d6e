"""Applies the owner's requests to a running training: on all ranks after the same step, and on record."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from nbtools.errors import ConfigError
from nbtools.rundir.requests.events import Event, append_events, changed_values, held, read_events
from nbtools.rundir.rundir import RunDir
from nbtools.steering import Inbox, Request, decoded, encoded
from nbtools.training.engine.plan import Plan
from nbtools.training.engine.standalone import own_attempt
from nbtools.training.process.ranks import Ranks

_REPEATED = "save", "evaluate"
"""Actions that a restart or another run takes again at their steps; a profile is over, and a pause saves only."""


class AppliedRequests:
    """The requests of a training and what they have changed.

    All ranks have the same one: rank 0 sends the requests as it has read them, and each rank checks and applies them
    alike. Only rank 0 writes the events.
    """

    def __init__(self, files: RunDir, ranks: Ranks, say: Callable[[str], None]) -> None:
        """Read the events of earlier attempts; `say` prints on rank 0."""
        self.values: dict[str, Any] = {}
        """Values that were changed, by the names of their fields; part of a checkpoint."""
        self.due: set[str] = set()
        """Actions to take after the current step."""
        self.is_paused = self._in_pause = False
        self._files, self._ranks, self._attempt, self._say = files, ranks, own_attempt(), say
        earlier, planned = ranks.from_main(lambda: (read_events(files), read_events(files, planned=True)))
        self._inbox = Inbox(files.path, [event.request for event in earlier])
        done = [event for event in earlier if not event.refused and event.attempt < self._attempt]
        self._planned = {event.request for event in planned} - {event.request for event in done}
        # By their steps: a later attempt may have begun at an earlier one.
        every = [*done, *(event for event in planned if event.request in self._planned)]
        self._repeated = sorted(every, key=lambda event: (event.step, event.in_pause))
        self._unwritten: list[Event] = []

    def num_waiting(self) -> int:
        """Return the number of requests that wait; rank 0 looks, the others report none."""
        return self._inbox.num_waiting() if self._ranks.is_main else 0

    def continue_from(self, step: int, values: Mapping[str, Any]) -> None:
        """Begin after `step`, with the steered `values` of the config.

        Events of earlier attempts up to that step are part of the config by now; later ones are applied again, and so
        are those of a pause behind the step, whose checkpoint is older than they are.
        """
        before = [event for event in self._repeated if (event.step, event.in_pause) <= (step, False)]
        self.values = {**values, **changed_values(before)}
        own = (event for event in self._repeated if event.request not in self._planned)
        if held(own) is not None and self._ranks.is_main:  # a pause ends with its attempt
            self._record([Event("restart", step, time.time(), action="continue", attempt=self._attempt)])
        self._repeated = self._repeated[len(before) :]

    def apply(self, plan: Plan, step: int, *, takes_requests: bool, in_pause: bool = False) -> None:
        """Apply the waiting requests, and the events of an earlier attempt or of the run that this one repeats.

        Every rank calls it after `step`; `in_pause` says that all that was due after it is done.
        """
        if not self._in_pause:  # what is asked for at the end of a pause is due after the next step
            self.due.clear()
        self._in_pause = in_pause
        self._repeat(plan, step)
        if takes_requests:
            data = self._ranks.bytes_of_main(lambda: encoded(self._inbox.take()))
            for request in decoded(data):
                self._record(self._answered(request, plan, step))
        self._write()

    def is_left(self, step: int) -> bool:
        """Whether an event of `step` is to be applied again when all that was due after it is done."""
        return bool(self._repeated) and self._repeated[0].step <= step

    def refuse_rest(self, step: int, why: str) -> None:
        """Answer the requests that came too late (rank 0)."""
        for request in self._inbox.take() if self._ranks.is_main else ():
            self._record([self._event(request, step, refused=why)])
        self._write()

    def _repeat(self, plan: Plan, step: int) -> None:
        until = step, self._in_pause
        reached = [event for event in self._repeated if (event.step, event.in_pause) <= until]
        planned = [event for event in reached if event.request in self._planned]
        self._repeated = self._repeated[len(reached) :]
        for event in reached:
            if event.action in _REPEATED or (event.action == "pause" and event in planned):
                self.due.add(event.action)
            elif event.field:
                with contextlib.suppress(ConfigError):  # the restart has other epochs, say
                    plan.change({event.field: event.after}, step)
                    self.values[event.field] = event.after
        if again := [event for event in reached if event not in planned]:
            self._say(f"note: applied again after step {step}, as before the restart: {', '.join(map(str, again))}")
        taken = (event for event in planned if event.field or event.action in _REPEATED)
        self._record(replace(event, time=time.time(), attempt=self._attempt) for event in taken)

    def _answered(self, request: Request, plan: Plan, step: int) -> list[Event]:
        """Apply a request; return its events."""
        if request.problem:
            return [self._event(request, step, refused=f"requests/{request.name}: {request.problem}")]
        if request.action:
            return [self._act(request, step)]
        before = plan.config
        try:
            plan.change(request.values, step)
        except ConfigError as error:
            return [self._event(request, step, refused=str(error))]
        self.values |= request.values
        return [
            self._event(request, step, field=name, before=getattr(before, name), after=getattr(plan.config, name))
            for name in request.values
        ]

    def _act(self, request: Request, step: int) -> Event:
        action, refused = request.action, ""
        if action in ("pause", "continue"):
            if self.is_paused == (action == "pause"):
                refused = f"the training {'is paused already' if self.is_paused else 'is not paused'}"
            self.is_paused = action == "pause"
        elif self.is_paused:
            refused = f"{action}: the training is paused, with a checkpoint of step {step}; continue it first"
        if not refused:
            self.due.add(action)
        return self._event(request, step, action="" if refused else action, refused=refused)

    def _event(self, request: Request, step: int, **what: Any) -> Event:
        what |= {"by": request.by, "attempt": self._attempt, "in_pause": self._in_pause}
        return Event(request.name, step, time.time(), **what)

    def _record(self, events: Iterable[Event]) -> None:
        for event in events:
            self._unwritten += [event] if self._ranks.is_main else []
            self._say(f"steered after step {event.step}: {event}" + f" ({event.by})" * bool(event.by))

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: with the next events
            if self._unwritten:
                append_events(self._files, self._unwritten)
            self._unwritten.clear()
