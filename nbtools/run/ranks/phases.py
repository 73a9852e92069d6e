"""The time that each rank spends in each phase, and why a training is slow.

Each rank appends a row per log interval to `ranks/phases-R.jsonl`:

    {"step": 200, "time": …, "attempt": 1, "seconds": {"data": 1.2, "forward": 3.1, …}}
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import fmean

import numpy as np
import orjson

from nbtools.rundir.json_files import finite, whole
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import Tail

PASSES = "forward", "backward", "optimizer"
PHASES = "data", *PASSES, "compute", "waiting", "evaluation", "checkpoint", "paused", "other"
"""`waiting` is for other ranks; `compute` stands for `PASSES` where they cannot be told apart."""
_UNEVEN = 0.15
"""Least difference between the shares of the slow ranks and of the others."""
_LEAST_LOST_S = 5.0
_MOST_NAMED = 4
_SHARES = "{own:.0%} of the time, the others {others:.0%}"
_OF_SOME = {
    "data": f"wait{{s}} for data {_SHARES}: {{its}} disk or {{its}} loader is slow; raise num_workers.",
    "compute": f"compute{{s}} {_SHARES}: they wait for {{its}} GPU or CPU, which is slow, or which others use as well.",
    "other": f"report{{s}} {_SHARES}: {{its}} rows or samples are slow to write; raise log_every.",
}
"""The phases in which some ranks are slower than the others, and the remedy."""
_OF_ALL = {
    "data": (0.15, "Waiting for data takes {:.0%} of the time{}: the loader is slow; raise num_workers."),
    "evaluation": (0.35, "Evaluation takes {:.0%} of the time{}: raise eval_every, or lower eval_samples."),
    # A quarter of each interval between checkpoints is a fifth of all the time just before the fourth one.
    "checkpoint": (0.2, "Checkpoints take {:.0%} of the time{}: the disk is slow; raise checkpoint_every."),
}
"""The phases that take at least this share of the time of all ranks, and the remedy."""


class PhaseRows:
    """Follows the rows of all ranks of a run."""

    def __init__(self, files: RunDir) -> None:
        self._files = files
        self._read: dict[int, tuple[Tail, array[float]]] = {}

    def seconds(self, steps: tuple[float, float] | None = None) -> dict[int, dict[str, float]]:
        """Return the seconds of each rank in each phase, in all attempts and all `steps`, or in those between two."""
        found = {}
        for path in self._files.ranks.glob("phases-*.jsonl"):
            if (rank := path.stem.removeprefix("phases-")).isdecimal():
                tail, numbers = self._read.setdefault(int(rank), (Tail(path), array("d")))
                while block := tail.read():
                    for line in block.splitlines():
                        numbers.extend(_numbers_in(line))
                rows = np.frombuffer(numbers).reshape(-1, 1 + len(PHASES))
                first, last = steps or (0.0, np.inf)
                sums = rows[(rows[:, 0] >= first) & (rows[:, 0] <= last), 1:].sum(0)
                found[int(rank)] = dict(zip(PHASES, sums.tolist(), strict=True))
        return {rank: seconds for rank, seconds in sorted(found.items()) if any(seconds.values())}


def _numbers_in(line: bytes) -> list[float]:
    """Return the step and the seconds in `PHASES` of a row; empty for another line."""
    with suppress(ValueError, AttributeError, KeyError, TypeError):
        row = orjson.loads(line)
        seconds = [max(0.0, finite(row["seconds"].get(phase)) or 0.0) for phase in PHASES]
        return [] if (step := whole(row["step"])) is None else [step, *seconds]
    return []


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the phases of a rank as shares of its time without pauses; empty without any."""
    total = _unpaused_s(seconds)
    return {phase: seconds.get(phase, 0.0) / total for phase in PHASES if phase != "paused"} if total else {}


def _unpaused_s(seconds: Mapping[str, float]) -> float:
    return sum(seconds.get(phase, 0.0) for phase in PHASES if phase != "paused")


def shares_in_words(seconds: Mapping[str, float]) -> str:
    """Return the shares of the phases of a rank that are at least half a percent: `data 31%, forward 12%`."""
    return ", ".join(f"{phase} {share:.0%}" for phase, share in shares_of(seconds).items() if share >= 0.005)


def why_slow(seconds: Mapping[int, Mapping[str, float]]) -> str:
    """Return what slows a training down the most, with its evidence and the remedy; empty for a healthy one.

    A backward pass ends on all ranks at the same time, so a rank that is slow in this pass alone is not found; nor is
    one that computes slowly where `compute` holds the waiting for its results.

    Args:
        seconds: of each rank in each phase, as `PhaseRows.seconds` returns them.
    """
    known = {rank: shares for rank, spent in seconds.items() if (shares := shares_of(spent))}
    for shares in known.values():
        shares["compute"] += sum(shares[phase] for phase in PASSES)
    lasted_s = max(map(_unpaused_s, seconds.values()), default=0.0)
    found = [(lost, said) for lost, said in _findings(known) if lost * lasted_s >= _LEAST_LOST_S]
    return max(found)[1] if found else ""


def _findings(known: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[float, str]]:
    """Yield the share of time that is lost, and a sentence: on phases that are too long, and on slow ranks."""
    for phase, (too_much, sentence) in _OF_ALL.items():
        if (share := min((shares[phase] for shares in known.values()), default=0.0)) >= too_much:
            yield share, sentence.format(share, " on all ranks" * (len(known) > 1))
    for phase, sign in (("waiting", -1), ("data", 1)):  # ranks wait for the one that waits least; not if sharded
        marks = {rank: sign * shares[phase] for rank, shares in known.items()}
        least, most = min(marks.values(), default=0.0), max(marks.values(), default=0.0)
        if most - least >= _UNEVEN:
            yield most - least, _told(known, [rank for rank in known if marks[rank] > (least + most) / 2])
            return


def _told(known: Mapping[int, Mapping[str, float]], slow: Sequence[int]) -> str:
    """Return the phase in which the slow ranks spend more time than the others, as a sentence."""
    rest, is_one = known.keys() - slow, len(slow) == 1
    shares = {phase: [fmean(known[rank][phase] for rank in ranks) for ranks in (slow, rest)] for phase in _OF_SOME}
    phase, (own, others) = max(shares.items(), key=lambda item: item[1][0] - item[1][1])
    names = ", ".join(map(str, slow[:_MOST_NAMED])) + ", …" * (len(slow) > _MOST_NAMED)
    words = {"s": "s" * is_one, "its": "its" if is_one else "their", "own": own, "others": others}
    return f"Rank{'s' * (not is_one)} {names} {_OF_SOME[phase].format(**words)}"
