"""A client of Slurm: this user's jobs as listed by squeue, and calls that submit, signal and cancel jobs.

Only output that is the same in all versions is read: `squeue -h -o`, `sbatch --parsable`; never `--json`, and never
`sacct`, which needs a database that many sites do not have.
"""

import functools
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from nbtools.errors import LaunchError, duration

POLL_EVERY_S = 10.0
"""Time for which an answer of squeue is kept: sites lock out users who poll more."""
_LONGEST_BREAK_S = 300.0
_ANSWERS_WITHIN_S = 30.0
_SUBMITS_WITHIN_S = 120.0
_WAITS_S, _WAITS_FIRST_S = 2.0, 6.0
"""Seconds that callers wait for a new and for the first answer of squeue; then they get the last one, or None."""
_LONGEST_ANSWER = 2**24
_FIELDS = "%A|%T|%r|%S|%e|%N|%D|%j"
"""Id, state, reason, start, end, node list, number of nodes, name; the name is last since it may contain `|`."""
JOB_ID_VARIABLE = "SLURM_JOB_ID"
PENDING, RUNNING = "PENDING", "RUNNING"
FAR_AWAY_S = 300 * 24 * 3600.0
"""Slurm adds a year where it cannot estimate a start."""


@dataclass(frozen=True)
class Job:
    """One job as squeue lists it; an element of an array or a part of a heterogeneous job has an id of its own."""

    id: int
    state: str
    """Slurm's word, such as PENDING, RUNNING, COMPLETING."""
    reason: str
    """Slurm's word for why it is pending, such as Resources, Priority, BeginTime; `None` while it runs."""
    starts_at: float | None
    """Unix time of the start, expected while it is pending; None where Slurm does not say it."""
    ends_at: float | None
    """Unix time of the time limit; None without one."""
    nodes: str
    """Node list, such as `n[1-2]`; empty before the start."""
    num_nodes: int
    name: str


def is_available() -> bool:
    """Whether sbatch and squeue are on the path."""
    return all(shutil.which(name) for name in ("sbatch", "squeue"))


def parse_jobs(text: str) -> dict[int, Job]:
    """Return the jobs in the output of `squeue -h -o`; lines of another form, such as a cluster's name, are left."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|", _FIELDS.count("|"))
        if len(parts) <= _FIELDS.count("|") or not (_is_number(parts[0]) and _is_number(parts[6])):
            continue
        number, state, reason, start, end, nodes, count, name = parts
        found[int(number)] = Job(int(number), state, reason, _unix(start), _unix(end), nodes, int(count), name)
    return found


# --- squeue -----------------------------------------------------------------------------------------


@dataclass
class _Queue:
    """The last answer of squeue on the jobs of a cluster."""

    jobs: dict[int, Job] | None = None
    answered_at: float | None = None
    """Unix time of `jobs`."""
    error: str = ""
    """Error of the last call; empty if it succeeded."""
    num_errors: int = 0
    """Number of failed calls since the last answer."""
    next_at: float = -math.inf
    """Monotonic time from which squeue may be called again."""
    call: threading.Thread | None = None
    """The running call whose answer will be used, and its start."""
    began_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


_queues: dict[str | None, _Queue] = {}


def own_jobs(cluster: str | None = None) -> dict[int, Job] | None:
    """Return this user's pending, running and recently ended jobs by id; None if squeue has never answered.

    All callers of a process share one call of squeue per `POLL_EVERY_S`, and fewer while it fails: then they get its
    last answer, and `silence` says so.
    """
    queue = _queues.setdefault(cluster, _Queue())
    with queue.lock:
        if queue.call is None and time.monotonic() >= queue.next_at:
            queue.began_at = time.monotonic()
            queue.call = threading.Thread(target=_ask, args=(queue, cluster), name="squeue", daemon=True)
            queue.call.start()
        call = queue.call
        waits_until = queue.began_at + (_WAITS_FIRST_S if queue.answered_at is None else _WAITS_S)
    if call is not None:
        call.join(max(0.0, waits_until - time.monotonic()))
    return queue.jobs


def _ask(queue: _Queue, cluster: str | None) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}  # filters
    command = ("squeue", *_on(cluster), "-h", "-u", str(os.geteuid()), "-t", "all", "-o", _FIELDS)
    answer = _called(*command, environment=variables)
    with queue.lock:
        if queue.call is not threading.current_thread():
            return  # `forget` was called meanwhile
        if answer.returncode == 0:
            queue.jobs, queue.answered_at, queue.error, queue.num_errors = parse_jobs(answer.output), time.time(), "", 0
        else:
            queue.error, queue.num_errors = answer.error[:300] or "no reason given", queue.num_errors + 1
        queue.next_at = time.monotonic() + min(POLL_EVERY_S * 2**queue.num_errors, _LONGEST_BREAK_S)
        queue.call = None


def silence(cluster: str | None = None) -> str | None:
    """Return since when squeue has not answered, and its error; None while it answers."""
    queue = _queues.get(cluster)
    if queue is None or not queue.error:
        return None
    since = "yet" if queue.answered_at is None else f"for {duration(time.time() - queue.answered_at)}"
    return f"squeue has not answered {since}: {queue.error}"


def forget() -> None:
    """Have the next `own_jobs` ask squeue; for after a submission or a cancel."""
    for queue in list(_queues.values()):
        with queue.lock:
            queue.next_at, queue.num_errors, queue.call = -math.inf, 0, None


# --- other commands ---------------------------------------------------------------------------------


def submit(script: Path, environment: Mapping[str, str]) -> tuple[int, str | None]:
    """Submit a job script and return the job's id, and its cluster where Slurm names one.

    Raises:
        LaunchError: the site's refusal, in its words.
    """
    answer = _sbatch(script, "--parsable", environment=environment).output.strip()
    forget()
    number, _, cluster = answer.partition(";")  # JOB;CLUSTER on a site with several clusters
    if not _is_number(number):
        raise LaunchError(f"sbatch: answered {answer[:200]!r} instead of the id of a job; see squeue --me")
    return int(number), cluster or None


def expected_start(script: Path, environment: Mapping[str, str]) -> str:
    """Return sbatch's estimate of the start in its own words, in local time; nothing is submitted.

    Raises:
        LaunchError: the site's refusal, in its words.
    """
    answer = _sbatch(script, "--test-only", environment=environment)
    text = _without_prefixes(answer.output + answer.error)
    return re.sub(r"(?<=to start at )\d+", lambda found: clock_time(float(found[0])), text)


def cancel(job_id: int, cluster: str | None = None, *, by_sigterm: bool = False) -> str | None:
    """Cancel a job of this user and return Slurm's error; a job that has already ended is not an error.

    `by_sigterm` only sends a SIGTERM to the batch script of a running job.
    """
    options = ("--batch", "--signal=TERM") if by_sigterm else ()
    answer = _called("scancel", *_on(cluster), *options, str(job_id))
    forget()
    failed = answer.returncode != 0 and not re.search("already complet|invalid job id", answer.error, re.IGNORECASE)
    return answer.error if failed else None


def requeue(job_id: int) -> bool:
    """Ask Slurm to queue a running job again; return whether it agreed."""
    return _called("scontrol", "requeue", str(job_id)).returncode == 0


def control(*words: str) -> str | None:
    """Return what `scontrol WORDS` prints, with one record per line; None if it fails."""
    answer = _called("scontrol", "--oneliner", *words)
    return answer.output if answer.returncode == 0 else None


def settings() -> dict[str, str]:
    """Return the cluster's configuration, such as ClusterName and PreemptMode; empty if scontrol fails."""
    lines = (line.partition("=") for line in (control("show", "config") or "").splitlines())
    return {name.strip(): value.strip() for name, sign, value in lines if sign}


@functools.cache
def own_cluster() -> str | None:
    """Return the name of the default cluster of the Slurm commands; None if scontrol fails."""
    return os.environ.get("SLURM_CLUSTERS") or settings().get("ClusterName")


def is_one_machine() -> bool | None:
    """Whether all nodes of the cluster are this machine, so that they see its disks; None if sinfo fails."""
    answer = _called("sinfo", "-h", "-o", "%n")
    if answer.returncode != 0:
        return None
    names = answer.output.split()
    return bool(names) and set(names) <= {socket.gethostname(), socket.gethostname().partition(".")[0]}


def current_job() -> int | None:
    """Return the id of the job whose batch script this process is part of; None outside a job."""
    number = os.environ.get(JOB_ID_VARIABLE, "")
    return int(number) if _is_number(number) else None


class _Answer(NamedTuple):
    returncode: int
    output: str
    error: str


def _sbatch(script: Path, option: str, *, environment: Mapping[str, str]) -> _Answer:
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")  # others describe a job that the notebook itself may run in
    lost = ("SBATCH_WAIT", "SBATCH_ARRAY_INX")
    dropped = {name for name in environment if name in lost or (name.startswith("SLURM_") and name not in kept)}
    variables = {name: value for name, value in environment.items() if name not in dropped}
    command = ("sbatch", option, *_options_of(script), str(script))
    answer = _called(*command, environment=variables, within_s=_SUBMITS_WITHIN_S)
    if answer.returncode != 0:
        raise LaunchError(_without_prefixes(answer.error or answer.output)[:2000])
    return answer


def _options_of(script: Path) -> Sequence[str]:
    """Return the options in the head of a job script.

    On the command line they have effect, while variables such as SBATCH_PARTITION would replace them in the script.
    """
    found: list[str] = []
    for line in script.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            found += shlex.split(line.removeprefix("#SBATCH "))
    return found


def _without_prefixes(text: str) -> str:
    lines = (re.sub(r"^(s\w+: )?(error: |fatal: )?", "", line.strip()) for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))


def _on(cluster: str | None) -> Sequence[str]:
    return () if cluster is None else (f"--clusters={cluster}",)


def _called(
    *command: str, environment: Mapping[str, str] | None = None, within_s: float = _ANSWERS_WITHIN_S
) -> _Answer:
    """Return the answer of one of Slurm's commands, with times as Unix times."""
    variables = {**(os.environ if environment is None else environment), "SLURM_TIME_FORMAT": "%s"}
    if (conf := variables.get("SLURM_CONF")) and not os.access(conf, os.R_OK):  # else the commands search for long
        return _Answer(-1, "", f"SLURM_CONF={conf}: cannot be read; set it to the cluster's slurm.conf, or unset it")
    # Files in memory, as `tempfile` imports half a megabyte, which each supervisor would keep.
    with os.fdopen(os.memfd_create("output"), "w+b") as output, os.fdopen(os.memfd_create("errors"), "w+b") as errors:
        try:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
            done = subprocess.run(command, env=variables, timeout=within_s, check=False, **streams)
        except subprocess.TimeoutExpired:
            return _Answer(-1, "", f"no answer within {within_s:g} s")
        except OSError as error:
            where = "launch from a machine with Slurm's commands"
            return _Answer(-1, "", f"{command[0]} cannot be started ({error.strerror}); {where}")
        return _Answer(done.returncode, _start_of(output), _without_prefixes(_start_of(errors)))


def _start_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_LONGEST_ANSWER).decode(errors="replace")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _unix(text: str) -> float | None:
    return float(text) if _is_number(text) else None


# --- times ------------------------------------------------------------------------------------------


def clock_time(moment: float, now: float | None = None) -> str:
    """Return a Unix time as local time and the time until then, as `Mon 14:20 (in 2 h 10 min)`."""
    now = time.time() if now is None else now
    if moment - now > FAR_AWAY_S:
        return "a time that Slurm cannot estimate"
    form = "%H:%M" if abs(moment - now) < 20 * 3600 else "%a %H:%M" if abs(moment - now) < 6 * 86400 else "%d %b %H:%M"
    until = f" (in {duration(moment - now)})" if moment > now else ""
    return time.strftime(form, time.localtime(moment)) + until


# --- reasons ----------------------------------------------------------------------------------------


@functools.cache
def word_table(kind: str) -> dict[str, str]:
    """Return a table of slurm.toml."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[kind]  # type: ignore[no-any-return]


def reason_in_words(job: Job, now: float | None = None) -> str:
    """Return in words why a job is pending and when it starts, or where and until when it runs."""
    now = time.time() if now is None else now
    if job.state == RUNNING:
        until = "" if job.ends_at is None else f" until {clock_time(job.ends_at, now)} at the latest"
        return f"runs on {job.nodes or 'its nodes'}{until}"
    if job.state != PENDING:
        return word_table("states").get(job.state, job.state).format(id=job.id)
    why = _reason(job.reason).format(id=job.id)
    if job.starts_at is None or not now < job.starts_at < now + FAR_AWAY_S:
        return why
    word = "earliest" if job.reason == "BeginTime" else "expected"
    return f"{why}; {word} start {clock_time(job.starts_at, now)}"


def _reason(reason: str) -> str:
    plain = reason.strip().strip("()").replace("_", " ")
    for part, sentence in word_table("sentences").items():
        if re.search(part, plain, re.IGNORECASE):
            return sentence
    word = plain.partition(",")[0]
    known = word_table("reasons").get(plain) or word_table("reasons").get(re.split(r"[(:]", word)[0].strip())
    if known:
        nodes = re.search(r"Unavailable(?:Nodes)?:([\w\[\],.-]+)", plain)
        return f"{known}: {nodes[1]}" if nodes else known
    return _limit(word) or plain.replace("{", "(").replace("}", ")") or "waits"


def _limit(word: str) -> str | None:
    """Return a sentence on a limit of account or qos, whose names have one pattern: AssocGrpGRES, QOSMaxCpuPerUser."""
    if (found := re.fullmatch(r"(Assoc|QOS|)(Grp|Max|Min)(\w+)", word)) is None:
        return None
    holder, kind, tail = found.groups()
    owner = {"Assoc": "account", "QOS": "qos", "": "account within its qos"}[holder]
    what = next((name for part, name in word_table("limits").items() if tail.lower().startswith(part)), "use")
    if "Minutes" in tail and what != "use":
        what = f"minutes of {what}"
    if kind == "Min":
        return f"asks for less than the least {what} of {owner}: it never starts; cancel it"
    if kind == "Max" and (re.search("Per(Job|Node)", tail) or "Wall" in tail):
        return f"asks for more {what} than {owner} allows one job: it never starts; cancel it"
    return f"{owner} has reached its limit of {what}; waits until other jobs end"


# --- refusals ---------------------------------------------------------------------------------------

_ANY_POLICY = r"job violates accounting/qos policy( \(job submit limit[^)]*\))?"
"""Slurm adds this to every refusal by a limit; what comes before it names the limit."""


def refusal(text: str) -> tuple[str | None, str]:
    """Return the field of `Slurm`, or `nnodes`, that a refusal of sbatch names, None without one, and its words."""
    text = text.strip() or "sbatch refused the job without a message"
    said = re.sub(_ANY_POLICY, "", text, flags=re.IGNORECASE)
    found = (name for part, name in word_table("refusals").items() if re.search(part, said, re.IGNORECASE))
    return next(found, None), text
