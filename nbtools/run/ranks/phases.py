"""The time that each rank spends in each phase, and why a training is slow.

Each rank appends a row per log interval to `ranks/phases-R.jsonl`:

    {"step": 200, "time": …, "attempt": 1, "seconds": {"data": 1.2, "forward": 3.1, …}}
"""

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import orjson

from nbtools.rundir.json_files import finite, whole
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import Tail

_PASSES = "forward", "backward", "optimizer", "compute"
PHASES = "data", *_PASSES, "peers", "evaluation", "checkpoint", "paused", "other"
"""`peers` is waiting for other ranks; `compute` is the three phases before it, where they cannot be told apart."""
_UNEVEN = 0.1
"""Least difference between the shares of the slow ranks and of the others."""
_LEAST_LOST_S = 2.0
_MOST_NAMED = 4
_OF_SOME = {
    "data": ("wait", " for data", "{its} disk or {its} loader is slow; raise num_workers"),
    "compute": ("compute", "", "they wait for {its} GPU or CPU, which is slow or shared; see what else runs on it"),
    "other": ("report", "", "{its} rows and samples are slow to write; raise log_every"),
}
"""By phase: the verb, what follows it, and the cause with the remedy, where some ranks are slower than the others."""
_OF_ALL = {
    "data": (0.15, "Waiting for data takes", "the loader is slower than the model; raise num_workers"),
    "evaluation": (0.35, "Evaluation takes", "raise eval_every, or lower eval_samples"),
    "checkpoint": (0.2, "Saving checkpoints takes", "the disk is slow; raise checkpoint_every"),
}
"""By phase: the least share that is too much on all ranks, the first words, and the cause or the remedy."""


class PhaseRows:
    """Follows the rows of all ranks of a run.

    Attributes:
        num_rows: Number of rows that were read.
    """

    def __init__(self, files: RunDir) -> None:
        self._files = files
        self._tails: dict[int, Tail] = {}
        self._numbers: dict[int, array[float]] = {}
        self.num_rows = 0

    def read(self) -> None:
        """Read the new rows."""
        for path in self._files.ranks.glob("phases-*.jsonl"):
            if named := re.fullmatch(r"phases-(\d{1,6})", path.stem):
                rank = int(named[1])
                tail = self._tails.setdefault(rank, Tail(path))
                while block := tail.read():
                    for line in block.splitlines():
                        self._add(rank, line)

    def _add(self, rank: int, line: bytes) -> None:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        seconds = row.get("seconds") if isinstance(row, dict) else None
        if isinstance(seconds, dict) and (step := whole(row.get("step"))) is not None:
            numbers = (max(0.0, finite(seconds.get(phase)) or 0.0) for phase in PHASES)
            self._numbers.setdefault(rank, array("d")).extend([step, *numbers])
            self.num_rows += 1

    def seconds(self, span: tuple[float, float] | None = None) -> dict[int, dict[str, float]]:
        """Return the seconds of each rank in each phase, in all attempts; `span` limits the steps."""
        found = {}
        for rank in sorted(self._numbers):
            rows = np.frombuffer(self._numbers[rank]).reshape(-1, 1 + len(PHASES))
            if span is not None:
                rows = rows[(rows[:, 0] > span[0]) & (rows[:, 0] <= span[1])]
            if len(rows):
                found[rank] = dict(zip(PHASES, rows[:, 1:].sum(0).tolist(), strict=True))
        return found


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the phases of a rank as shares of its time without pauses; empty without any."""
    own = {phase: seconds.get(phase, 0.0) for phase in PHASES if phase != "paused"}
    total = sum(own.values())
    return {phase: spent / total for phase, spent in own.items()} if total else {}


def why_slow(seconds: Mapping[int, Mapping[str, float]]) -> str:
    """Return what slows a training down the most, with its evidence and the remedy; empty for a healthy one.

    A backward pass ends on all ranks at the same time, so a rank that is slow in this pass alone is not found; nor is
    one that computes slowly where `compute` holds the waiting for its results.

    Args:
        seconds: of each rank in each phase, as `PhaseRows.seconds` returns them.
    """
    known = {rank: shares for rank, spent in seconds.items() if (shares := shares_of(spent))}
    for shares in known.values():
        shares["compute"] = sum(shares[phase] for phase in _PASSES)
    lasted_s = min((sum(spent.values()) - spent.get("paused", 0.0) for spent in seconds.values()), default=0.0)
    found = [(lost, said) for lost, said in (*_of_some(known), *_of_all(known)) if lost * lasted_s >= _LEAST_LOST_S]
    return max(found)[1] if found else ""


def _of_some(known: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[float, str]]:
    """Yield the share of time that is lost to the ranks which are slower than the others, and a sentence on them."""
    for phase, sign in (("peers", -1), ("data", 1)):
        marks = {rank: sign * shares[phase] for rank, shares in known.items()}
        least, most = min(marks.values(), default=0.0), max(marks.values(), default=0.0)
        slow = [rank for rank in known if marks[rank] > (least + most) / 2]
        if most - least >= _UNEVEN:
            yield most - least, _told(known, slow)
            return


def _told(known: Mapping[int, Mapping[str, float]], slow: Sequence[int]) -> str:
    """Return the phase in which the slow ranks spend more time than the others, as a sentence."""
    own, others = (
        {phase: fmean(known[rank][phase] for rank in ranks) for phase in _OF_SOME}
        for ranks in (slow, known.keys() - slow)
    )
    phase = max(_OF_SOME, key=lambda phase: own[phase] - others[phase])
    verb, what, why = _OF_SOME[phase]
    who = f"Ranks {', '.join(map(str, slow[:_MOST_NAMED]))} {verb}{what}"
    if len(slow) > _MOST_NAMED:
        who = f"{len(slow)} ranks ({', '.join(map(str, slow[:_MOST_NAMED]))}, …) {verb}{what}"
    elif len(slow) == 1:
        who = f"Rank {slow[0]} {verb}s{what}"
    why = why.replace("{its}", "its" if len(slow) == 1 else "their")
    return f"{who} {own[phase]:.0%} of the time, the others {others[phase]:.0%}: {why}."


def _of_all(known: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[float, str]]:
    """Yield the share of each phase that is too long on all ranks, and a sentence on it."""
    for phase, (too_much, what, why) in _OF_ALL.items():
        share = min((shares[phase] for shares in known.values()), default=0.0)
        if share >= too_much:
            yield share, f"{what} {share:.0%} of the time{' on all ranks' * (len(known) > 1)}: {why}."
