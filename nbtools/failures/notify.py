"""Sends the notices of `notify_on`: a row of ranks/notices.jsonl, one POST of JSON, and the command of `notify_with`.

`python -m nbtools.failures.notify RUN_DIR` runs beside the supervisor, whose first line to it has the words of the
command, and the last one the end. The address is a secret: it is read from the user's configuration alone, and stands
in no file of a run and in no output.
"""

import contextlib
import io
import json
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from nbtools.errors import shown
from nbtools.failures.evidence import last_rows
from nbtools.failures.stop_conditions import LOOK_EVERY_S, NoticeConditions
from nbtools.machine.on_end import run_command
from nbtools.rundir.json_files import finite, read_json
from nbtools.rundir.requests.conditions import NOTIFY_ON, conditions_of, why_wrong
from nbtools.rundir.requests.events import Event
from nbtools.rundir.rundir import RunDir
from nbtools.steering import Inbox, Request, append_rows
from nbtools.user_config import read_user_config

CONFIG = "notify"
"""Name of the file of the user's configuration that has the `address`."""
_NO_ADDRESS = f"{CONFIG}.json of the user's configuration has no address that begins with https:// or http://"
_POST_WITHIN_S, _TOLD_EVERY_S = 5.0, 3600.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow no redirect: another host would get the message."""


def post(message: Mapping[str, Any]) -> str:
    """POST a message as JSON, once and without redirects; return why that failed, without the address, or ""."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(_answer(message)), daemon=True)
    thread.start()
    thread.join(_POST_WITHIN_S)  # a socket's own limit, which ends the thread, is for each of its waits
    return answers[0] if answers else f"the server did not answer within {_POST_WITHIN_S:g} s"


def _answer(message: Mapping[str, Any]) -> str:
    address = str(read_user_config(CONFIG).get("address"))
    if not address.startswith(("https://", "http://")):
        return _NO_ADDRESS
    try:
        request = urllib.request.Request(address, json.dumps(message).encode(), {"Content-Type": "application/json"})
        urllib.request.build_opener(_NoRedirects).open(request, timeout=2 * _POST_WITHIN_S).close()
    except HTTPError as error:
        error.close()
        return f"the server answered {error.code}{', a redirect, which is not followed' * (error.code // 100 == 3)}"
    except Exception as error:  # noqa: BLE001 - its text may contain the address
        reason = getattr(error, "reason", None)
        return f"the server was not reached ({type(reason if isinstance(reason, OSError) else error).__name__})"
    return ""


class Notifier:
    """Records and sends notices, at most one of a kind per hour; each reason for which one is not sent, once."""

    def __init__(self, run: RunDir, name: str, words: Sequence[str]) -> None:
        """Notify of a run by its name; `words` are those of `notify_with`."""
        self._run, self._name, self._words = run, name, words
        rows = last_rows(run.notices)  # of this job's earlier starts
        self._told = {str(row.get("kind")): finite(row.get("time")) or 0.0 for row in rows}

    def tell(self, condition: str, sentence: str, *, state: str = "RUNNING", **found: Any) -> None:
        """Record and send a sentence; `found` may have the `step`, `metric` and `value` of the condition."""
        now = time.time()
        if abs(now - self._told.get(condition, 0.0)) < _TOLD_EVERY_S:
            return
        self._told[condition] = now
        notice = {"kind": condition, **{key: found.get(key) for key in ("step", "metric", "value")}}
        self._record({**notice, "sentence": sentence})
        said = sentence if condition in ("ended", "failed") else f"Run {self._name}: {sentence}"
        failed = {post({**notice, "run": self._run.id, "state": state, "text": said})}
        if self._words:
            replaced = {"{sentence}": said, "{run}": self._run.id, "{state}": state}
            failed = failed - {_NO_ADDRESS} | {run_command(self._words, replaced, subprocess.DEVNULL)}
        for why in failed - {"", *self._told}:
            self._told[why] = now
            self._record({"kind": "not sent", "sentence": f"a notice was not sent: {why}"})

    def changes(self, request: Request, before: Mapping[str, Any], step: int) -> bool:
        """Record the answer to a request for other conditions than those `before`, and return whether they change;
        OSError if it cannot be recorded, and then they do not."""
        why, new = request.problem or why_wrong(request.values), request.values
        said = ", ".join(f"{NOTIFY_ON}{name} {shown(before.get(name))} -> {shown(new[name])}" for name in new)
        event = Event(request.name, step, time.time(), request.by, said, refused=why)
        row = {"kind": "notify_on", **event.to_json(), "sentence": f"{event} ({event.by})"}
        append_rows(self._run.notices, [row if why else {**row, "conditions": {**before, **new}}])
        return not why

    def _record(self, notice: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            append_rows(self._run.notices, [{"format": 1, "time": time.time(), **notice}])


def main() -> None:
    """Notify until the supervisor has told the end, or has ended itself."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # Slurm ends all processes of a job's step; the end comes after it
    told, run = io.FileIO(sys.stdin.fileno(), closefd=False), RunDir(Path(sys.argv[1]))  # select sees no buffer
    (words, began), plan = json.loads(told.readline()), read_json(run.launch) or {}
    settings, inbox = conditions_of(run), Inbox(run.path, folder=run.notice_requests.name)
    notifier = Notifier(run, plan.get("name") or run.id, words)
    options = {"best_by": str(plan.get("best_by") or ""), "lower": plan.get("lower_is_better", True), "began": began}
    conditions = NoticeConditions(run, settings, **options)
    is_over = False
    while not is_over:
        time.sleep(LOOK_EVERY_S)
        if is_over := bool(select.select([told], [], [], 0)[0]):
            conditions.finish()
        with contextlib.suppress(OSError):  # the next look may work
            for found in conditions.found():
                notifier.tell(**found)
            for request in inbox.take():
                if notifier.changes(request, settings, conditions.last_step):
                    settings = {**settings, **request.values}
                    conditions.close()
                    conditions = NoticeConditions(run, settings, since=time.time(), **options)
    conditions.close()
    ended = json.loads(told.readline() or "{}")
    if not ended and run.process.exists():  # else Slurm will start the next attempt
        ended = {"state": "LOST", "sentence": f"The supervisor of run {run.id} has ended; no further notices are sent"}
    kind = "failed" if ended.get("state") in ("FAILED", "LOST") else "ended"
    if ended and (settings.get("ended") or settings.get(kind)):
        notifier.tell(kind, **ended)
    for metric in sorted(conditions.unseen if ended else ()):
        notifier.tell(f"no {metric}", f"no value of {metric} was read", state=ended["state"], metric=metric)


if __name__ == "__main__":
    main()
