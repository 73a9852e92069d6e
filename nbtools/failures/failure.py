"""The first failure of a run, from the files of torch and of the ranks.

torchrun always exits 1. The first failing rank and its error are in two places: a rank whose `main` is wrapped in
`@record` writes its traceback to an error file, and torchrun ends the log with a summary of all failed ranks. Signals
and `sys.exit` appear in that summary only. A `Failure` adds the cause and the setting to change
(`nbtools.failures.known_errors`), the frame of the training code, and the last step and loss.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from nbtools.errors import plural
from nbtools.failures import evidence, known_errors
from nbtools.failures.flight_recorder import stuck_collective
from nbtools.machine.processes import removed_in_words
from nbtools.rundir import machines
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import float_of, read_json, strict_number, whole
from nbtools.rundir.rundir import RunDir, is_removed
from nbtools.rundir.secret_values import without_secrets

_SUMMARY = re.compile(
    r"^\[\d+\]:\n"
    r" +time +: .*\n"
    r" +host +: (?P<host>.*)\n"
    r" +rank +: (?P<rank>\d+) \(local_rank: \d+\)\n"
    r" +exitcode +: (?P<exitcode>-?\d+) \(pid: (?P<pid>\d+)\).*\n"
    r" +error_file: (?P<error_file>.*)\n"
    r" +traceback : (?P<message>.*)$",
    re.MULTILINE,
)
_ROOT_CAUSE = "Root Cause (first observed failure):"
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_WITHOUT_REASON = (None, "SIGSEGV", "SIGABRT", "SIGTERM", "SIGINT", "SIGPIPE", "SIGHUP")
"""Signals, and none, that end a rank for the end of another rank as well as for a reason of its own."""
_OUTPUT_END = 16_384
_NUM_MEMORY_ROWS = 24  # at least two minutes, as long as a shutdown may take after the first failure
_MAX_RANKS = 64
_MAX_CHARACTERS = 64 * 1024


@dataclass(frozen=True)
class Failure:
    """The first failure of a run; other ranks that failed because of it are in `others`."""

    rank: int | None
    host: str | None
    exitcode: int | None
    signal: str | None
    """Name of the signal that killed the rank, such as `SIGKILL`."""
    message: str
    """One line: the cause if it is known, with the error in brackets."""
    traceback: str | None = None
    where: str | None = None
    """The deepest frame of the training code: `scripts/toy.py:33 in train: loss.backward()`."""
    advice: str | None = None
    """Setting to change, or another remedy."""
    step: int | None = None
    """The last step of the rank's heartbeat."""
    loss: float | None = None
    """Last recorded training loss."""
    others: list[dict[str, Any]] = field(default_factory=list)
    """The other ranks that failed or were closed: `rank`, `exitcode`, `signal`, `message`, and `host` of several."""
    log: str | None = None
    """Path of the output of a rank other than 0, from the project's folder; that of rank 0 is the run's log."""

    @classmethod
    def from_json(cls, content: object) -> Self | None:
        """Return the failure in a JSON object; None if it is not one."""
        if not isinstance(content, Mapping) or not isinstance(content.get("message"), str):
            return None
        known: dict[str, Any] = dict.fromkeys(cls.__dataclass_fields__)
        for name in known:
            value, is_text = content.get(name), name not in ("rank", "exitcode", "step")
            known[name] = (value if isinstance(value, str) else None) if is_text else _whole(value)
        others = content.get("others")
        others = [dict(other) for other in others if isinstance(other, Mapping)] if isinstance(others, list) else []
        return cls(**{**known, "loss": float_of(content.get("loss")), "others": others})

    def to_json(self) -> dict[str, Any]:
        """Return the failure as strict JSON values, with long texts cut: an exception's message may hold its data."""
        loss = None if self.loss is None else strict_number(self.loss)
        traceback = self.traceback and self.traceback[-_MAX_CHARACTERS:]  # the end matters most
        return {**asdict(self), "message": self.message[:_MAX_CHARACTERS], "traceback": traceback, "loss": loss}

    def without(self, secrets: Sequence[str]) -> Self:
        """Return the failure with a mask for each secret in its texts, as a program may print its arguments."""
        others = [_without(other, secrets) for other in self.others]
        return replace(self, **{**_without(vars(self), secrets), "others": others})

    @property
    def headline(self) -> str:
        """One line: rank, host, message."""
        if self.rank is None:
            return self.message
        where = f" on {self.host}" if self.host else ""
        return f"rank {self.rank}{where}: {self.message}"

    @property
    def progress(self) -> str:
        """Last step and loss, if known: `last step 40, train/loss 2.31`."""
        parts = [] if self.step is None else [f"last step {self.step:,}"]
        return ", ".join(parts if self.loss is None else [*parts, f"train/loss {self.loss:.4g}"])

    @property
    def lines(self) -> list[str]:
        """Headline, frame, progress, advice and path of the rank's output, if known: a line each."""
        where = f"at {self.where}" if self.where else None
        advice = f"what to do: {self.advice}" if self.advice else None
        log = f"output: {self.log}" if self.log else None
        return [line for line in (self.headline, where, self.progress, advice, log) if line]

    @property
    def other_lines(self) -> list[str]:
        """A line per other rank, with its host in a run on several."""
        hosts = [f" on {other['host']}" if other.get("host") else "" for other in self.others]
        return [f"rank {one.get('rank')}{on}: {one.get('message')}" for one, on in zip(self.others, hosts, strict=True)]


def _without(content: Mapping[str, Any], secrets: Sequence[str]) -> dict[str, Any]:
    return {k: without_secrets(v, secrets) if isinstance(v, str) else v for k, v in content.items()}


def first_failure(run: RunDir, returncode: int, host: str, *, since: int = 0) -> Failure:
    """Return the first failure of a run whose agent ended with `returncode` (negative: by that signal).

    The log before byte `since` belongs to an earlier attempt.
    """
    log = evidence.log_end(run.log, since)
    if returncode < 0:
        name = signal_name(-returncode)
        agent = "the torchrun agent" if run.launch.exists() else "the program"  # of a removed directory, either
        said = f"killed by {name}" if evidence.starts_its_ranks(run) else f"{agent} was killed by {name}"
        return _of_other_machines(run) or _killed(Failure(None, host, returncode, name, said), run, log)
    if (found := _from_summary(run, [(log, host), *_other_logs(run)]) or _of_other_machines(run)) is not None:
        return found
    recorded, traceback = evidence.error_file(run.error)  # the agent's own error: it started no ranks, or lost them
    if recorded is None:
        said, traceback = evidence.last_output(log, returncode)
        recorded = f"exited with code {returncode}{said}"
    rank, killed_by = evidence.spawned_rank(log) or (None, None)
    if killed_by is not None:
        return _killed(Failure(rank, host, returncode, killed_by, f"killed by {killed_by}"), run, log)
    found = Failure(rank, host, returncode, None, recorded, traceback)
    return explained(_raised_elsewhere(found, {}, run, log) or found, run)


def lost(run: RunDir, host: str | None, step: int) -> Failure:
    """Return the failure of a run that ended without a record, with what its supervisor printed at its own end."""
    if is_removed(run):
        return Failure(None, host, None, None, removed_in_words(run))
    message = f"its processes have ended without recording an end (step {step})"
    if printed := evidence.text_end(run.supervisor_log).strip():
        message += f"; the supervisor ended{evidence.last_output(printed, 1)[0]}"
    return explained(Failure(None, host, None, None, message, printed or None), run)


def was_stopped_from_outside(run: RunDir, *, since: int = 0) -> bool:
    """Whether a signal that the supervisor did not send ended torchrun: a preemption, a `kill`.

    A stop in rank 0's finished.json is not enough: when one rank fails, torchrun also signals the others.
    """
    if _ROOT_CAUSE in evidence.log_end(run.log, since):
        return False
    message, _ = evidence.error_file(run.error)
    was_signalled = message is not None and message.startswith("SignalException")
    return was_signalled or (read_json(run.finished) or {}).get("why") == "stopped"


def explained(failure: Failure, run: RunDir) -> Failure:
    """Add the cause, the setting to change and the frame, from message and traceback, and the progress."""
    message, advice = _in_words(failure, run)
    return _with_place(replace(failure, message=message, advice=advice), run)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`, or `signal 99` for an unknown one."""
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


# --- which rank ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _End:
    """The end of one rank in torchrun's summary."""

    failure: Failure
    was_killed: bool
    """Whether a signal ended it without an exception before."""
    was_closed: bool
    """Whether torchrun closed it: it was alive when another rank had ended."""

    @property
    def order(self) -> tuple[bool, ...]:
        """Sort key; the first failure has the smallest.

        torchrun compares whole seconds, so it may name a rank that failed because of another one. A rank that torchrun
        closed was alive at the failure, a lost connection follows from one, and a signal comes from outside.
        """
        is_foreign_signal = self.was_killed and self.failure.signal != "SIGTERM"
        return self.was_closed, known_errors.is_echo(self.failure.message), not is_foreign_signal


def _from_summary(run: RunDir, logs: Sequence[tuple[str, str]]) -> Failure | None:
    """Return the first failing rank of torchrun's summaries of all failed ranks, of the logs of machines by host."""
    ends = [end for log, host in logs for end in _ends(run, log, host)]
    if not ends:
        return None
    first = min(ends, key=lambda end: end.order)  # among equal ones torchrun's choice, which comes first
    others = {end.failure.rank: _other(end, run) for end in ends}
    hosts = {end.failure.rank: end.failure.host for end in ends}
    closed = {(host, int(pid)) for log, host in logs for pid in _CLOSED.findall(log)}
    for beat in read_heartbeats(run):
        if any(pid == beat.pid and (len(logs) == 1 or name == beat.host) for name, pid in closed):
            in_order = {"exitcode": 0, "signal": None, "message": "closed by torchrun, ended in order"}
            others.setdefault(beat.rank, {"rank": beat.rank, **in_order})
            hosts.setdefault(beat.rank, beat.host)
    by_rank = {end.failure.rank: end.failure for end in ends}
    num_closed = sum(end.was_closed for end in ends) + len(others) - len(by_rank)
    left = sorted(set(run.world) - others.keys()) if num_closed == len(closed) else []  # all closed ranks are known
    if _num_machines(run) > 1:
        others = {rank: {**other, "host": hosts[rank]} for rank, other in others.items()}
    raised = _raised_elsewhere(first.failure, by_rank, run, log := logs[0][0])
    is_signal = first.was_killed and raised is None
    found = _killed(first.failure, run, log) if is_signal else explained(raised or first.failure, run)
    found = _of_silent_ranks(found, first.failure.message, left, run, log)
    others.pop(found.rank, None)
    return replace(found, others=sorted(others.values(), key=lambda other: int(other["rank"])))


def _only_noticed(failure: Failure, run: RunDir, log: str) -> bool | None:
    """Whether a rank failed because of another one; None if neither its exception nor its output says why."""
    texts = [failure.message, *evidence.exceptions(failure.traceback or "")]
    if failure.traceback is None:
        texts.append(evidence.printed_by(run, failure.rank or 0, log)[-_OUTPUT_END:])
    for text in texts:
        if (follows := known_errors.follows_another(text)) or known_errors.cause_of(text):
            return follows
    return None if failure.traceback is None and failure.signal in _WITHOUT_REASON else False


def _raised_elsewhere(first: Failure, ends: Mapping[int | None, Failure], run: RunDir, log: str) -> Failure | None:
    """Return the exception of the rank because of which the first one may have failed; None if there is none.

    A rank that raises may be slow to end: others then fail first, torchrun closes it, and its output alone tells why.
    """
    if (only_noticed := _only_noticed(first, run, log)) is False:
        return None
    ranks = {*run.world, *(rank for rank in ends if rank is not None), *evidence.ranks_in(log)}
    host = first.host if _num_machines(run) == 1 else None
    for rank in sorted(ranks, key=lambda rank: (rank == first.rank, rank)):
        known = ends.get(rank, Failure(rank, host, None, None, ""))
        may_be_caught = only_noticed is True or known.exitcode == 1
        for message, traceback in evidence.raised_by(run, rank, log, also_caught=may_be_caught):
            if not known_errors.follows_another(message):
                return replace(known, message=message, traceback=traceback)
    return None


def _of_silent_ranks(found: Failure, message: str, left: Sequence[int], run: RunDir, log: str) -> Failure:
    """Name the ranks that ended in order, or without an exception, while `found` waited for them in a collective."""
    is_lost, is_late = (found.advice == known_errors.known(name).advice for name in ("rank_lost", "timeout"))
    if _num_machines(run) > 1 or not (is_lost or (left and is_late)):
        return found
    said = {rank: evidence.printed_by(run, rank, log) for rank in run.world if rank != found.rank}
    silent = left or [rank for rank in said if not known_errors.follows_another(said[rank])]
    if not silent:
        return found
    where = evidence.collective(found.traceback or "") or (found.where or "").partition(": ")[2] or "a collective"
    names = f"{'rank' if len(silent) == 1 else 'ranks' if left else 'one of ranks'} {', '.join(map(str, silent[:8]))}"
    how = "ended first, with exit code 0," if left else "left the process group, or ended, without an exception"
    message = f"{names} {how} while rank {found.rank} was in {where} ({message})"
    return replace(
        found, message=message, advice=known_errors.advice("left_first"), log=evidence.output_path(run, silent[0])
    )


def _num_machines(run: RunDir) -> int:
    return machines.num_machines(read_json(run.launch) or {})


def _ends(run: RunDir, log: str, host: str) -> list[_End]:
    """Return the ends in the summary of one machine's torchrun, its choice of the first failure first."""
    summary, _, root = log.rpartition(_ROOT_CAUSE)
    closed = {int(pid) for pid in _CLOSED.findall(log)}
    blocks = [*_SUMMARY.finditer(root), *_SUMMARY.finditer(summary)] if root else []
    return [_end(run, block, log, host, closed) for block in blocks[:_MAX_RANKS]]


def _other_logs(run: RunDir) -> list[tuple[str, str]]:
    """Return the output of torchrun on the machines other than the first, and their names."""
    hosts = {node: machines.record(run, node).get("host") for node in range(1, _num_machines(run))}
    return [(evidence.log_end(run.node_output(node)), host) for node, host in hosts.items() if isinstance(host, str)]


def _of_other_machines(run: RunDir) -> Failure | None:
    """Return the failure of a run by the other machines alone: a rank there, or torchrun itself."""
    if (found := _from_summary(run, _other_logs(run))) is not None:
        return found
    for node in range(1, _num_machines(run)):
        ended = machines.record(run, node)
        code = _whole(ended.get("returncode"))
        if code and machines.has_ranks(run, node):
            said, traceback = evidence.last_output(evidence.log_end(run.node_output(node)), code)
            message = f"machine {node} ended with code {code}{said}"
            return explained(Failure(None, str(ended.get("host")), code, None, message, traceback), run)
    return None


def _end(run: RunDir, block: re.Match[str], log: str, host: str, closed: set[int]) -> _End:
    rank, exitcode, pid = int(block["rank"]), int(block["exitcode"]), int(block["pid"])
    named = block["host"].strip()
    host = host if named == "localhost" else named  # torchrun's name for a host without a qualified name
    name = signal_name(-exitcode) if exitcode < 0 else None
    message, traceback = evidence.error_file(Path(block["error_file"]), inside=run.ranks)
    was_killed = message is None and name is not None
    if was_killed:
        message = f"killed by {name}{_at_step(run, rank)}"
    elif message is None:
        said, traceback = evidence.last_output(evidence.printed_by(run, rank, log), exitcode)
        message = f"exited with code {exitcode}{_at_step(run, rank)}{said}"
    return _End(Failure(rank, host, exitcode, name, message or "", traceback), was_killed, pid in closed)


def _other(end: _End, run: RunDir) -> dict[str, Any]:
    found = end.failure
    was_closed = end.was_closed and end.was_killed
    message = f"closed by torchrun ({found.signal})" if was_closed else _in_words(found, run)[0]
    return {"rank": found.rank, "exitcode": found.exitcode, "signal": found.signal, "message": message[:300]}


# --- its cause ----------------------------------------------------------------------------------------


def _killed(failure: Failure, run: RunDir, log: str) -> Failure:
    """Explain a signal by the state of the memory and the rank's last output."""
    name, traceback = failure.signal or "", None
    words, advice = known_errors.signal_meaning(name)
    if name == "SIGKILL":
        if lack := _lack_of_memory(run):
            words, advice = lack, known_errors.advice("less_memory")
    elif name not in ("SIGTERM", "SIGINT"):
        printed = evidence.printed_by(run, failure.rank or 0, log)[-_OUTPUT_END:]
        traceback = evidence.crash_report(printed)
        if cause := known_errors.cause_of(printed):
            words, advice = _words(cause, printed, failure, run), _advice(cause, run)
        elif not evidence.training_frame(traceback or "", run) and (raised := evidence.raised_before(printed)):
            message, traceback = raised  # the program had failed; native code aborts at the interpreter's exit
            return explained(replace(failure, message=f"{message}; then {failure.message}", traceback=traceback), run)
    message = f"{failure.message}: {words}" if words else failure.message
    return _with_place(replace(failure, message=message, advice=advice, traceback=traceback), run)


def _in_words(failure: Failure, run: RunDir) -> tuple[str, str | None]:
    """Return the message with its cause, if known, and the setting to change."""
    message, said = failure.message, evidence.exceptions(failure.traceback or "")
    unhandled = (failure.traceback or "").rpartition("another exception occurred:")[2]
    cause = known_errors.cause_of(message, "\n".join(said), "\n".join(evidence.exceptions(unhandled)))
    if cause is None and evidence.lost_loader_worker(failure.traceback or ""):
        cause = known_errors.known("loader_worker_died")
    if cause in (None, known_errors.known("loader_worker_died")):  # the process that it started printed why
        output = evidence.printed_by(run, failure.rank or 0, evidence.log_end(run.log))
        no_guard = known_errors.known("no_guard")
        cause = no_guard if re.search(no_guard.pattern, output) else cause
    if cause is known_errors.known("disk_full") and "SemLock(" in (failure.traceback or ""):
        cause = known_errors.known("shared_memory")  # that of a semaphore, whose error names no path
    if cause is None and failure.traceback is None:  # a full disk may have taken the traceback, too
        cause = known_errors.cause_of(evidence.disk_error(run))
    if cause is known_errors.known("not_joined") and _num_machines(run) == 1:
        cause = known_errors.known("timeout")
    if cause is None:
        return message, None
    words = _words(cause, "\n".join((message, *said)), failure, run)
    if "in DataLoader worker process" in message and said:
        message = said[-1][:500]  # the error in the worker, which the message does not hold
    return f"{words} ({known_errors.without_allocator(message)})", _advice(cause, run)


def _advice(cause: known_errors.Cause, run: RunDir) -> str:
    """Return the advice of a cause with the run's working directory and Python."""
    plan = read_json(run.launch) or {}
    argv = plan.get("argv")
    python = argv[0] if isinstance(argv, list) and argv else "python"
    return cause.advice.replace("{cwd}", str(plan.get("cwd"))[:300]).replace("{python}", str(python)[:300])


def _words(cause: known_errors.Cause, said: str, failure: Failure, run: RunDir) -> str:
    if cause is known_errors.known("loader_worker_died") and (lack := _lack_of_memory(run)):
        return f"{cause.words}: {lack}"
    return _waited(said, failure, run) if cause is known_errors.known("timeout") else cause.words


def _waited(said: str, failure: Failure, run: RunDir) -> str:
    """Name the collective and the rank that others waited for: the one furthest behind, for the longest time."""
    beats, stuck = read_heartbeats(run), stuck_collective(run)
    missing = () if stuck is None else stuck.missing
    others = [beat for beat in beats if (beat.rank in missing if missing else beat.rank != failure.rank)]
    late = min(others, key=lambda beat: (beat.place, beat.time), default=None)
    where = f"rank {missing[0]}" if missing else "another rank"
    if late is not None:
        on = f" on {late.host}" if len({beat.host for beat in beats}) > 1 else ""
        where = f"rank {late.rank}{on}, which was in {late.phase[:40]} at step {late.step}"
    more = f" and {plural(len(missing) - 1, 'other rank')}" if len(missing) > 1 else ""
    return f"waited {known_errors.waited(said)}{f' in {stuck}' if stuck else ''} for {where}{more}"


def _lack_of_memory(run: RunDir) -> str | None:
    """Compare the last memory readings in system.jsonl with the current one."""
    readings = map(known_errors.HostMemory.from_row, evidence.last_rows(run.system)[-_NUM_MEMORY_ROWS:])
    return known_errors.lack_of_memory([found for found in readings if found is not None], known_errors.host_memory())


# --- its place and progress ---------------------------------------------------------------------------


def _with_place(failure: Failure, run: RunDir) -> Failure:
    """Add the frame of the training code, the last step and loss, and the path of the output."""
    rows = evidence.last_rows(run.metrics)
    steps = {beat.rank: beat.step for beat in read_heartbeats(run)}
    known = [*steps.values(), *(step for row in rows[-1:] if (step := whole(row.get("step"))) is not None)]
    step = None if failure.rank is None else steps.get(failure.rank)
    losses = (float_of(row.get("train/loss", row.get("loss"))) for row in reversed(rows))
    loss = next((loss for loss in losses if loss is not None), None)
    step = max(known, default=None) if step is None else step
    where, log = evidence.training_frame(failure.traceback or "", run), evidence.output_path(run, failure.rank)
    return replace(failure, where=where, step=step, loss=loss, log=log)


def _at_step(run: RunDir, rank: int) -> str:
    return next((f" at step {beat.step}" for beat in read_heartbeats(run) if beat.rank == rank), "")


def _whole(value: object) -> int | None:
    """Return an integer, possibly negative as exit codes are; None for other values."""
    if isinstance(value, int) and value < 0:
        return None if whole(-value) is None else value
    return whole(value)
