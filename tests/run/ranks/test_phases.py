"""Why a training is slow: 12 injected slownesses are named by their cause, 10 healthy runs are not blamed."""

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from nbtools.run.ranks.phases import PHASES, PhaseRows, shares_of, why_slow
from nbtools.rundir.rundir import RunDir

Seconds = Mapping[str, float]


def rank(total_s: float = 100.0, **percent: float) -> dict[str, float]:
    """The seconds of a rank, which computes in what is left of 100 percent."""
    left = 100.0 - sum(percent.values())
    passes = {"forward": 0.3 * left, "backward": 0.6 * left, "optimizer": 0.1 * left}
    return {phase: total_s * share / 100 for phase, share in (passes | percent).items()}


def many(number: int, *others: dict[str, float], **percent: float) -> list[dict[str, float]]:
    """Ranks that differ by a little, and then others."""
    draws = random.Random(1)
    return [
        rank(**{name: share * draws.uniform(0.9, 1.1) for name, share in percent.items()}) for _ in range(number)
    ] + [*others]


def sharded(**percent: float) -> dict[str, float]:
    return {**percent, "compute": 100 - sum(percent.values())}


def of(*ranks: dict[str, float]) -> dict[int, dict[str, float]]:
    return dict(enumerate(ranks))


SLOW: dict[str, tuple[list[dict[str, float]], str]] = {
    "the data of one of two": (
        [rank(data=2, waiting=29), rank(data=31)],
        "Rank 1 waits for data 31% of the time, the others 2%: its disk or its loader is slow; raise num_workers.",
    ),
    "the data of one of eight": (many(7, rank(data=20, waiting=1), data=4, waiting=18), "Rank 7 waits for data 20% of"),
    "the data of a node": (
        many(8, *many(8, data=50, waiting=2), data=2, waiting=50),
        "Ranks 8, 9, 10, 11, … wait for data 50% of the time, the others 2%: their disk or their loader is slow; ",
    ),
    "the data of one, sharded": ([sharded(data=35), sharded(data=1), sharded(data=1)], "Rank 0 waits for data 35% of"),
    "the data of all": (
        many(2, data=40, waiting=6),
        "Waiting for data takes 37% of the time on all ranks: the loader is slow; raise num_workers.",
    ),
    "the data of one process": ([rank(data=60)], "Waiting for data takes 60% of the time: the loader is slow; "),
    "the forward pass of one": (
        [rank(waiting=1), {"data": 1, "forward": 20, "backward": 40, "optimizer": 4, "waiting": 35}],
        "Rank 0 computes 99% of the time, the others 64%: they wait for its GPU or CPU, which is slow, or ",
    ),
    "the optimizer of two of six": (
        many(4, *many(2, optimizer=40, waiting=2), waiting=28),
        "Ranks 4, 5 compute 98% of the time, the others 72%: they wait for their GPU or CPU",
    ),
    "the reports of rank 0": (
        [rank(other=25, waiting=1), *many(3, waiting=25)],
        "Rank 0 reports 25% of the time, the others 0%: its rows or samples are slow to write; raise log_every.",
    ),
    "evaluation": (
        many(4, evaluation=50, data=3, waiting=4),
        "Evaluation takes 45% of the time on all ranks: raise eval_every, or lower eval_samples.",
    ),
    "the disk of the checkpoints": (
        [rank(checkpoint=35, data=2)],
        "Checkpoints take 35% of the time: the disk is slow; raise checkpoint_every.",
    ),
    "checkpoints, less than the data of one": (
        [rank(checkpoint=22, data=2, waiting=45), rank(checkpoint=22, data=48)],
        "Rank 1 waits for data 48% of the time, the others 2%",
    ),
}
HEALTHY: dict[str, list[dict[str, float]]] = {
    "one process": [rank(data=3, evaluation=8, checkpoint=2)],
    "two processes on a loaded machine": [rank(data=4, waiting=22), rank(data=6, waiting=10)],
    "sixty-four ranks": many(64, data=3, waiting=9, evaluation=5, checkpoint=2),
    "data that all wait for now and then": many(8, data=11, waiting=6),
    "many evaluations": many(2, evaluation=27, waiting=3),
    "checkpoints of a large model": many(4, checkpoint=14, waiting=3),
    "sharded": [sharded(data=6), sharded(data=2), sharded(data=3)],
    "a long pause": [{**rank(data=3), "paused": 900.0}, {**rank(data=2, waiting=5), "paused": 900.0}],
    "a run of three seconds": [rank(3.0, data=2, waiting=45), rank(3.0, data=47)],
    "no step yet": [{"other": 100.0}, {"other": 100.0}],
}


def rows_of(folder: Path, ranks: list[dict[str, float]]) -> RunDir:
    """Record the seconds in ten rows each."""
    files = RunDir(folder)
    files.ranks.mkdir()
    for number, seconds in enumerate(ranks):
        tenth = {phase: spent / 10 for phase, spent in seconds.items()}
        rows = [{"step": 20 * n, "time": 1000.0 + n, "attempt": 1, "seconds": tenth} for n in range(1, 11)]
        files.phases(number).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


@pytest.mark.parametrize("case", [*SLOW, *HEALTHY])
def test_a_slowness_is_named_with_its_evidence_and_a_healthy_run_is_not_blamed(case: str, tmp_path: Path) -> None:
    ranks, sentence = SLOW.get(case) or (HEALTHY[case], "")
    said = why_slow(PhaseRows(rows_of(tmp_path, ranks)).seconds())
    assert said.startswith(sentence) and said[-1:] == "." * bool(sentence)


@pytest.mark.parametrize("num", [3, 4, 20])
def test_checkpoints_are_judged_alike_at_any_time_between_them(num: int) -> None:
    for trained_s in (30 * num, 30 * num + 15, 30 * num + 30):  # since the start, which no checkpoint precedes
        assert why_slow({0: {"forward": trained_s, "checkpoint": 10 * num}}).startswith("Checkpoints take 2")
        assert why_slow({0: {"forward": 2 * trained_s, "checkpoint": 10 * num}}) == ""


def test_seconds_of_a_span_are_those_of_its_steps_and_rows_are_read_once(tmp_path: Path) -> None:
    files = rows_of(tmp_path, [rank(data=50), rank(data=20, waiting=30)])
    rows = PhaseRows(files)
    assert rows.seconds()[0]["data"] == pytest.approx(50)
    assert rows.seconds((21, 60))[1] == pytest.approx({**dict.fromkeys(PHASES, 0), **rank(20.0, data=20, waiting=30)})
    assert rows.seconds((500, 600)) == {}
    with files.phases(1).open("a") as file:
        file.write('{"step": 220, "seconds": {"data": 7, "forward": "x", "backward": -3, "unknown": 1}}\n{"torn')
    assert rows.seconds((201, 220)) == {1: {**dict.fromkeys(PHASES, 0), "data": 7}}


def test_rows_that_are_none_are_left_out(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    assert PhaseRows(files).seconds() == {} and why_slow({}) == "" and shares_of({"paused": 5}) == {}
    files.ranks.mkdir()
    files.phases(0).write_text('[]\nnull\n{"step": 3}\n{"step": -1, "seconds": {}}\n{"step": 3, "seconds": 4}\n')
    (files.ranks / "phases-x.jsonl").write_text('{"step": 3, "seconds": {}}\n')
    assert PhaseRows(files).seconds() == {}
