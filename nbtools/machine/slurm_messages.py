"""Slurm's states, reasons and refusals in plain words."""

import re
import time

from nbtools.machine.slurm import FAR_AWAY_S, PENDING, RUNNING, Job, clock_time

_REASONS = {
    "None": "waits for the scheduler to look at it",
    "Priority": "waits for jobs of higher priority",
    "Resources": "waits until enough nodes are free",
    "Dependency": "waits for another job to end",
    "DependencyNeverSatisfied": "waits for a job that failed: it never starts; cancel it",
    "BeginTime": "waits for its earliest start, as after a requeue",
    "Licenses": "waits for a license",
    "Prolog": "its nodes are being prepared",
    "Cleaning": "is being queued again: its last processes end first",
    "SchedDefer": "waits for the next round of the scheduler",
    "Reservation": "waits for its reservation",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionTimeLimit": "time_limit exceeds the partition's: it never starts; cancel it and ask for less",
    "PartitionNodeLimit": "its number of nodes is not within the partition's limits: it never starts; cancel it",
    "PartitionConfig": "asks for what no node of the partition offers: it never starts; cancel it",
    "BadConstraints": "no node has what it asks for: it never starts; cancel it",
    "Constraints": "no available node has the features in constraint",
    "JobHeldUser": "held by its user: `scontrol release {id}` lets it start",
    "JobHeldAdmin": "held by an administrator, who can release it",
    "JobHoldMaxRequeue": "held: it was queued again too often; `scontrol release {id}` lets it start",
    "job requeued in held state": "held after a requeue: `scontrol release {id}` lets it start",
    "launch failed requeued held": "held, as a node could not start it: `scontrol release {id}` lets it start",
    "JobArrayTaskLimit": "waits for other elements of its array",
    "InvalidAccount": "account does not exist: it never starts; cancel it",
    "InvalidQOS": "qos does not exist: it never starts; cancel it",
    "AccountNotAllowed": "account may not use the partition: it never starts; cancel it",
    "QOSNotAllowed": "qos may not be used in the partition: it never starts; cancel it",
    "AccountingPolicy": "a limit of account or qos is reached",
    "MaxMemPerLimit": "mem exceeds the partition's limit: it never starts; cancel it",
    "ReservationDeleted": "held, as its reservation was deleted",
}
_SENTENCES = (
    (r"nodes required for job are down", "nodes that it needs are down, drained or reserved"),
    (r"reserved for maintenance", "a node that it needs is reserved for maintenance"),
    (r"may be reserved for other job", "a node that it needs may be reserved for another job"),
    (r"not in group permitted", "the user's group may not use the partition: it never starts; cancel it"),
)
"""Reasons that Slurm prints as a sentence, by a part of it."""

_LIMITED = (
    *(("wall", "time"), ("submit", "submitted jobs"), ("job", "running jobs"), ("gres", "GPUs"), ("cpu", "CPU cores")),
    *(("mem", "memory"), ("node", "nodes"), ("billing", "billing units"), ("lic", "licenses")),
)

_STATES = {
    "CONFIGURING": "its nodes are being prepared",
    "COMPLETING": "is ending: Slurm waits for its last processes",
    "SUSPENDED": "suspended by Slurm",
    "STOPPED": "stopped by Slurm",
    "SIGNALING": "is being signalled",
    "RESIZING": "is changing its size",
    "REQUEUED": "is being queued again",
    "REQUEUE_HOLD": "queued again and held: `scontrol release {id}` lets it start",
    "SPECIAL_EXIT": "queued again and held, as the site asks for its exit code: `scontrol release {id}`",
}


def reason_in_words(job: Job, now: float | None = None) -> str:
    """Return in words why a job is pending and when it starts, or where and until when it runs."""
    now = time.time() if now is None else now
    if job.state == RUNNING:
        until = "" if job.ends_at is None else f" until {clock_time(job.ends_at, now)} at the latest"
        return f"runs on {job.nodes or 'its nodes'}{until}"
    if job.state != PENDING:
        return _STATES.get(job.state, job.state).format(id=job.id)
    why = _reason(job.reason).format(id=job.id)
    if job.starts_at is None or not now < job.starts_at < now + FAR_AWAY_S:
        return why
    word = "earliest" if job.reason == "BeginTime" else "expected"
    return f"{why}; {word} start {clock_time(job.starts_at, now)}"


def _reason(reason: str) -> str:
    plain = reason.strip().strip("()").replace("_", " ")
    for part, words in _SENTENCES:
        if re.search(part, plain, re.IGNORECASE):
            return words
    word = plain.partition(",")[0]
    known = _REASONS.get(plain) or _REASONS.get(re.split(r"[(:]", word)[0].strip())
    if known:
        nodes = re.search(r"Unavailable(?:Nodes)?:([\w\[\],.-]+)", plain)
        return f"{known}: {nodes[1]}" if nodes else known
    return _limit(word) or plain.replace("{", "(").replace("}", ")") or "waits"


def _limit(word: str) -> str | None:
    """Return a sentence on a limit of account or qos, whose names have one pattern: AssocGrpGRES, QOSMaxCpuPerUser."""
    found = re.fullmatch(r"(Assoc|QOS|)(Grp|Max|Min)(\w+)", word)
    if found is None:
        return None
    holder, kind, tail = found.groups()
    tail = tail.removesuffix("Limit")
    owner = {"Assoc": "account", "QOS": "qos", "": "account within its qos"}[holder]
    what = next((name for part, name in _LIMITED if tail.lower().startswith(part)), None)
    if what is None:
        what = "use"
    elif "Minutes" in tail:
        what = f"minutes of {what}"
    if kind == "Min":
        return f"asks for less than the least {what} of {owner}: it never starts; cancel it"
    if kind == "Max" and (re.search("Per(Job|Node)", tail) or "Wall" in tail):
        return f"asks for more {what} than {owner} allows one job: it never starts; cancel it"
    return f"{owner} has reached its limit of {what}; waits until other jobs end"


# --- refusals ---------------------------------------------------------------------------------------

_REFUSALS = (
    (r"invalid partition|no partition|use this partition|not in this partition|partition (not|in|config)", "partition"),
    (r"invalid account|invalidaccount", "account"),
    (r"invalid qos|invalidqos", "qos"),
    (r"feature specification|--constraint\b", "constraint"),
    (r"time.?limit|wall.?(time|duration|clock)|maxwall|--time\b|time specification", "time_limit"),
    (r"\bgres\b|gres(per|minutes|$)|\bgpus?\b|--gpus|trackable resource", "gpus_per_node"),
    (r"\bmemory\b|\bmem\b|--mem\b|mem(ory)?per", "mem"),
    (r"node count|--nodes\b|more nodes|(max|min|grp)node", "nnodes"),
    (r"cpus?\b|cpuper|processors|\bcores?\b|--cpus", "cpus_per_task"),
    (r"\bfeatures?\b|\bconstraints?\b", "constraint"),
    (r"\baccounts?\b", "account"),
    (r"\bqos\b", "qos"),
    (r"\bpartitions?\b", "partition"),
)
"""Refusals in order of precedence: Slurm's own sentences first, then words that a site's plugin may use."""
_ANY_POLICY = r"job violates accounting/qos policy( \(job submit limit[^)]*\))?"
"""Slurm adds this to every refusal by a limit; what comes before it names the limit."""


def refusal(text: str) -> tuple[str | None, str]:
    """Return the field of `Slurm`, or `nnodes`, that a refusal of sbatch names, None without one, and its words."""
    words = text.strip() or "sbatch refused the job without a message"
    said = re.sub(_ANY_POLICY, "", words, flags=re.IGNORECASE)
    return next((name for part, name in _REFUSALS if re.search(part, said, re.IGNORECASE)), None), words
