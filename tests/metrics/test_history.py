"""Metric rows: what the writer leaves on disk, and what a history makes of it."""

import errno
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import orjson
import pytest
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

from nbtools.metrics.history import History
from nbtools.metrics.writer import MetricWriter
from nbtools.rundir.json_files import MAX_STEP
from nbtools.rundir.tail import Tail

FIVE = {
    "train/loss": 2.31,
    "train/learning_rate": 1e-4,
    "train/grad_norm": 1.2,
    "train/tokens_per_s": 1e5,
    "train/epoch": 0.5,
}


def rows_of(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def row(step: int, attempt: int | None = None, **values: float | str) -> bytes:
    named = {f"train/{name}": value for name, value in values.items()}
    return orjson.dumps({"step": step, **({"attempt": attempt} if attempt else {}), **named}) + b"\n"


def history_of(*blocks: bytes) -> History:
    history = History()
    for block in blocks:
        history.extend(block)
    return history


def points(history: History, name: str = "train/loss") -> list[tuple[int, float]]:
    series = history[name]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def same(a: History, b: History) -> bool:
    counts = [(h.num_rows, h.num_skipped, h.num_dropped, h.last_step, [*h]) for h in (a, b)]
    if counts[0] != counts[1]:
        return False
    return all(
        np.array_equal(getattr(a[name], column), getattr(b[name], column), equal_nan=column != "steps")
        for name in a
        for column in ("steps", "values", "times", "samples")
    )


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=300, check=False)


# --- the writer ---------------------------------------------------------------------------------


@pytest.mark.promise("fault-13")
def test_non_finite_values_are_strings_and_come_back_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with MetricWriter(path) as writer:
        writer.write(1, {"train/loss": math.nan, "train/a": math.inf, "train/b": -math.inf})
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert (found["train/loss"], found["train/a"], found["train/b"]) == ("NaN", "Infinity", "-Infinity")
    history = history_of(path.read_bytes())
    assert math.isnan(history.last("train/loss"))  # type: ignore[arg-type]
    assert history.last("train/a") == math.inf
    assert history.last("train/b") == -math.inf


def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom nbtools.metrics.writer import MetricWriter\nwriter = MetricWriter(sys.argv[1])\n"
        "for step in range(500): writer.write(step, {'train/loss': step / 7})\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = run_python(code, str(tmp_path / "m.jsonl"))
    assert done.returncode == -signal.SIGKILL
    history = history_of((tmp_path / "m.jsonl").read_bytes())
    assert points(history) == [(step, step / 7) for step in range(500)]
    assert history.num_skipped == 0


@pytest.mark.parametrize("name", ["step", "time", "samples", "attempt", "dropped", "", 3, "\ud800"])
def test_a_reserved_or_impossible_name_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with MetricWriter(tmp_path / "m.jsonl") as writer, pytest.raises(ValueError, match="metric name"):
        writer.write(1, {"train/loss": 1.0, name: 2.0})
    assert (tmp_path / "m.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.float32(0.5), 0.5),
        (np.float64("nan"), "NaN"),
        (np.int64(7), 7.0),
        (np.array([2.5]), 2.5),
        (True, 1.0),
        (3, 3),
        (10**400, "Infinity"),
        (-(10**400), "-Infinity"),
    ],
)
def test_whatever_converts_to_one_number_is_a_line_of_strict_json(
    tmp_path: Path, value: float, written: object
) -> None:
    before = time.time()
    with MetricWriter(tmp_path / "m.jsonl") as writer:
        writer.write(np.int64(1), {"train/x": value}, samples=np.int32(5))
    assert (tmp_path / "m.jsonl").read_bytes().endswith(b"}\n")
    (found,) = rows_of(tmp_path / "m.jsonl")
    assert before <= found.pop("time") <= time.time()  # type: ignore[operator]
    assert found == {"step": 1, "samples": 5, "train/x": written}


@pytest.mark.parametrize("value", ["2.3", None, [1.0], 1j, np.array([1.0, 2.0]), {}])
def test_what_is_not_one_number_is_refused_with_the_name(tmp_path: Path, value: object) -> None:
    with MetricWriter(tmp_path / "m.jsonl") as writer, pytest.raises(TypeError, match="train/x"):
        writer.write(1, {"train/x": value})  # type: ignore[dict-item]


def test_torch_scalars_are_written_even_if_they_need_a_gradient(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with MetricWriter(tmp_path / "m.jsonl") as writer:
        writer.write(
            1, {"train/x": torch.tensor(0.5, requires_grad=True), "train/y": torch.tensor(2, dtype=torch.bfloat16)}
        )
        with pytest.raises(RuntimeError) as caught:
            writer.write(2, {"train/x": torch.zeros(2)})
    assert any("train/x" in note for note in caught.value.__notes__)
    (found,) = rows_of(tmp_path / "m.jsonl")
    assert (found["train/x"], found["train/y"]) == (0.5, 2.0)


def refuse_write(descriptor: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.promise("fault-10")
def test_a_full_disk_does_not_stop_the_training_and_the_lost_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.jsonl"
    with MetricWriter(path) as writer:
        with monkeypatch.context() as full:
            full.setattr(os, "write", refuse_write)
            for step in range(3):
                writer.write(step, FIVE)
        assert writer.num_dropped == 3
        writer.write(3, FIVE)  # space again
        assert writer.num_dropped == 0
        writer.write(4, FIVE)
        with monkeypatch.context() as full:
            full.setattr(os, "write", refuse_write)
            writer.write(5, FIVE)
    assert [(found["step"], found.get("dropped")) for found in rows_of(path)] == [(3, 3), (4, None), (5, 1)]
    assert history_of(path.read_bytes()).num_dropped == 4


def test_a_row_torn_by_a_full_disk_is_closed_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    code = (
        "import resource, sys\nfrom nbtools.metrics.writer import MetricWriter\nwriter = MetricWriter(sys.argv[1])\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "writer.write(0, {'train/loss': 0.0})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))\n"
        "for step in (1, 2, 3): writer.write(step, {'train/loss': 1.0})\n"
        "print(writer.num_dropped)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "for step in (4, 5): writer.write(step, {'train/loss': 2.0})\n"
    )
    done = run_python(code, str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    lines = path.read_bytes().split(b"\n")
    assert len(path.read_bytes()) > 100
    assert not lines[1].endswith(b"}"), "the limit must have torn the second row for this test to mean anything"
    history = history_of(path.read_bytes())
    assert points(history) == [(0, 0.0), (4, 2.0), (5, 2.0)]
    assert (history.num_dropped, history.num_skipped) == (3, 1)


def test_a_line_torn_by_a_crash_is_closed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(row(1, loss=1.0) + b'{"step": 2, "train/lo')
    with MetricWriter(path, attempt=2) as writer:
        writer.write(2, {"train/loss": 2.0})
    assert b'"attempt":2' in path.read_bytes()
    history = history_of(path.read_bytes())
    assert points(history) == [(1, 1.0), (2, 2.0)]
    assert history.num_skipped == 1


def test_a_closed_writer_refuses_rows(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path / "m.jsonl")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(1, FIVE)


# --- the history --------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**53),
            st.dictionaries(st.sampled_from(["train/loss", "eval/loss", 'train/é\n"x']), st.floats(), max_size=3),
        ),
        max_size=12,
        unique_by=lambda pair: pair[0],
    )
)
@examples(300)
def test_what_was_written_is_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    path = tmp_path_factory.mktemp("m") / "m.jsonl"
    with MetricWriter(path) as writer:
        for step, values in rows:
            writer.write(step, values, samples=step)
    history = history_of(path.read_bytes())
    assert (history.num_rows, history.num_skipped) == (len(rows), 0)
    for name in {name for _, values in rows for name in values}:
        expected = sorted((step, values[name]) for step, values in rows if name in values)
        series = history[name]
        assert series.steps.tolist() == [step for step, _ in expected]
        assert np.array_equal(series.values, [value for _, value in expected], equal_nan=True)
        assert np.array_equal(series.samples, series.steps.astype(float))


json_like = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.sampled_from(["NaN", "},{", "x"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
keys = st.sampled_from(["step", "time", "samples", "attempt", "dropped", "train/loss", "eval/loss", "},{", ""])
lines = st.one_of(
    st.builds(lambda content: json.dumps(content).encode(), st.dictionaries(keys, json_like, max_size=6)),
    st.builds(
        lambda step, attempt, name, loss: json.dumps({"step": step, "attempt": attempt, name: loss}).encode(),
        st.integers(0, 20),
        st.integers(1, 3),
        st.sampled_from(["train/loss", "eval/loss"]),
        st.floats(),
    ),
    st.sampled_from(
        [
            *(b"", b"{", b"}", b'{"a":1', b'"b":2}', b"{},{}", b'{"a":[{}', b"{}]}", b'{"a":"x}'),
            *(b'{y"}', b"\xff\xfe", b"1,2"),
        ]
    ),
    st.binary(max_size=20),
)


@given(st.lists(lines, max_size=15), st.lists(st.integers(0, 400), max_size=8))
@examples(300)
def test_any_bytes_cut_anywhere_give_the_history_of_the_whole(found: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(found) + b"\n"
    whole = history_of(data)
    edges = [0, *sorted(cuts), len(data)]
    assert same(whole, history_of(*(data[a:b] for a, b in itertools.pairwise(edges))))
    assert same(whole, history_of(*(line + b"\n" for line in data[:-1].split(b"\n")))), "bulk and single lines differ"
    assert whole.num_rows + whole.num_skipped <= data.count(b"\n")
    for name in whole:
        assert (np.diff(whole[name].steps) > 0).all()


@pytest.mark.parametrize(
    "damaged", [b'{"a":1\n"b":2}', b'{"a":[{}\n{}]}', b'{"a":"x}\n{y"}', b'{"a":[{}\n{}]}\n{},{}', b'{"a":"},{\n']
)
def test_lines_that_would_only_parse_together_are_damaged(damaged: bytes) -> None:
    history = history_of(row(1, loss=1.0) + damaged + b"\n" + row(2, loss=2.0))
    assert points(history) == [(1, 1.0), (2, 2.0)]
    assert history.num_skipped == damaged.rstrip().count(b"\n") + 1


@pytest.mark.promise("fault-12")
@pytest.mark.parametrize(
    "line",
    [
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"step": 1, "x": ' + b"9" * 10_000, b"\xff" * 1000),
        *(b"\0" * 1000, b"null", b"3"),
    ],
)
def test_a_hostile_line_is_skipped_and_counted(line: bytes) -> None:
    history = history_of(row(1, loss=1.0) + line + b"\n" + row(2, loss=2.0))
    assert points(history) == [(1, 1.0), (2, 2.0)]
    assert history.num_skipped == 1


@pytest.mark.promise("fault-15")
def test_a_step_written_twice_counts_as_written_last() -> None:
    history = history_of(row(1, loss=1.0) + row(2, loss=2.0) + row(3, loss=3.0), row(2, loss=2.5))
    assert points(history) == [(1, 1.0), (2, 2.5), (3, 3.0)]


@pytest.mark.promise("fault-15")
def test_a_later_attempt_replaces_the_curve_from_its_first_step_on() -> None:
    first = b"".join(row(step, loss=1.0) for step in (10, 20, 30, 40, 50))
    second = b"".join(row(step, attempt=2, loss=2.0) for step in (25, 35))
    for history in (history_of(first, second), history_of(first + second), history_of(second, first)):
        assert points(history) == [(10, 1.0), (20, 1.0), (25, 2.0), (35, 2.0)]
        assert history.last_step == 35


def test_a_later_attempt_also_ends_the_curves_that_it_has_not_reached_yet() -> None:
    evaluation = b'{"step": 40, "eval/loss": 1.0}\n'
    history = history_of(row(20, loss=1.0) + row(40, loss=1.0) + evaluation + row(30, attempt=2, loss=2.0))
    assert "eval/loss" not in history
    assert history.last("eval/loss") is None
    assert points(history) == [(20, 1.0), (30, 2.0)]
    kept = history_of(row(20, loss=1.0) + b'{"step": 20, "eval/loss": 3.0}\n' + row(20, attempt=2, loss=2.0))
    assert (points(kept), points(kept, "eval/loss")) == ([(20, 2.0)], [(20, 3.0)]), "where the attempt takes over"


def test_a_metric_in_rows_of_different_shapes_is_one_series() -> None:
    blocks = [row(1, loss=1.0), row(2, loss=2.0, lr=0.1), row(3, lr=0.2), row(4, loss=4.0), row(2, loss=2.5)]
    history = History()
    for block in blocks:
        history.extend(block)
        for name in history:
            assert len(history[name])
    assert points(history) == [(1, 1.0), (2, 2.5), (4, 4.0)]
    assert points(history, "train/lr") == [(2, 0.1), (3, 0.2)]
    assert same(history, history_of(b"".join(blocks)))


def test_an_unchanged_series_is_the_same_object_and_older_ones_never_change() -> None:
    history = history_of(row(1, loss=1.0))
    before = history["train/loss"]
    assert history["train/loss"] is before
    version = history.version
    history.extend(b"")
    assert history.version == version
    history.extend(row(2, loss=2.0))
    history.extend(row(1, loss=9.0))
    assert history.version != version
    assert (before.steps.tolist(), before.values.tolist()) == ([1], [1.0])
    assert points(history) == [(1, 9.0), (2, 2.0)]
    with pytest.raises(ValueError, match="read-only"):
        history["train/loss"].values[0] = 0


def test_of_a_row_of_other_json_the_numbers_are_read() -> None:
    history = history_of(
        b'{"step": 3.0, "loss": NaN, "phase": "train", "ok": true, "x": null, "y": [1], "z": {"a": 1}}\n'
        b'{"type": "note", "text": "hello"}\n{"step": 4, "lr": -Infinity, "n": ' + b"9" * 30 + b"}\n"
    )
    assert [*history] == ["loss", "lr", "n"]
    assert (history.num_rows, history.num_skipped) == (2, 0)
    assert math.isnan(history["loss"].values[0])
    assert (history.last("lr"), history.last("n")) == (-math.inf, pytest.approx(1e30))


def test_an_unknown_metric_is_a_key_error_that_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="train/loss"):
        history_of(row(1, loss=1.0))["loss"]
    assert history_of(row(1, loss=1.0)).last("loss") is None
    assert History().last_step is None


def test_a_resumed_run_continues_its_parents_curve() -> None:
    parent = history_of(b"".join(row(step, loss=1.0) for step in (10, 20, 30, 40)))
    child = history_of(row(30, loss=2.0) + row(40, loss=2.0))
    joined = History.chained([(parent, 20), (child, MAX_STEP)])
    assert points(joined) == [(10, 1.0), (20, 1.0), (30, 2.0), (40, 2.0)]
    grandchild = History.chained([(joined, 30), (history_of(row(35, loss=3.0)), MAX_STEP)])
    assert points(grandchild) == [(10, 1.0), (20, 1.0), (30, 2.0), (35, 3.0)]
    assert points(parent) == [(10, 1.0), (20, 1.0), (30, 1.0), (40, 1.0)]
    parent.add("eval/loss", [1, 2, 3], [3.0, 2.0, 1.0], [math.nan] * 3, unit="epoch")
    child.add("eval/loss", [3, 4], [0.9, 0.8], [math.nan] * 2, unit="epoch")
    joined = History.chained([(parent, 2), (child, MAX_STEP)])
    assert points(joined, "eval/loss") == [(1, 3.0), (2, 2.0), (3, 0.9), (4, 0.8)]
    assert units(joined) == {"train/loss": "step", "eval/loss": "epoch"}


def test_a_file_that_starts_over_replaces_the_curve(tmp_path: Path) -> None:
    path, history = tmp_path / "m.jsonl", History()
    tail = Tail(path)
    path.write_bytes(b"".join(row(step, loss=1.0) for step in (10, 20, 30)))
    history.follow(tail)
    path.write_bytes(row(15, loss=2.0))
    history.follow(tail)
    assert points(history) == [(10, 1.0), (15, 2.0)]


@pytest.mark.promise("fault-14")
@pytest.mark.parametrize("seed", range(40))
def test_no_step_is_missing_or_doubled_while_the_file_grows_is_rotated_and_truncated(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "m.jsonl"
    history, tail = History(), Tail(path)
    writer, num_rotated = path.open("ab", buffering=0), 0
    for step in range(1, 200):
        line = row(step, loss=float(step))
        cut = chance.randrange(len(line))
        writer.write(line[:cut])
        if chance.random() < 0.3:
            history.follow(tail)  # sees half a line
        if chance.random() < 0.1:
            history.follow(tail)
            num_rotated += 1
            path.rename(tmp_path / f"m.jsonl.{num_rotated}")  # the writer has it open still
            writer.write(line[cut:])
            writer.close()
            writer = path.open("ab", buffering=0)
            continue
        writer.write(line[cut:])
        if chance.random() < 0.05:
            history.follow(tail)
            os.truncate(path, 0)  # what was read stays
    writer.close()
    history.follow(tail)
    assert num_rotated > 5
    assert points(history) == [(step, float(step)) for step in range(1, 200)]
    assert (history.num_rows, history.num_skipped) == (199, 0)


def test_readers_in_other_threads_see_whole_series_while_the_history_grows() -> None:
    history = history_of(row(0, loss=0.0, lr=0.0))
    done, wrong = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            for name in history:
                series = history[name]
                if not np.array_equal(series.values, series.steps) or (np.diff(series.steps) <= 0).any():
                    wrong.append(series)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(1, 3000, 10):
        steps = [*range(start, start + 10), start]
        history.extend(b"".join(row(step, loss=float(step), lr=float(step)) for step in steps))
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert history["train/loss"].steps.tolist() == list(range(3001))


def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    names = {f"name_{i}": i / 7 for i in range(8)}
    block = b"".join(row(step, **names) for step in range(1000))
    with path.open("wb") as file:
        for _ in range(250):
            file.write(block)  # the same steps again and again: many bytes, few points
    assert path.stat().st_size > 60e6
    code = (
        "import re, sys\nfrom pathlib import Path\n"
        "from nbtools.metrics.history import History\nfrom nbtools.rundir.tail import Tail\n"
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before = peak()\nhistory = History()\nhistory.follow(Tail(sys.argv[1]))\n"
        "print(history.num_rows, len(history['train/name_0']), (peak() - before) // 1000)"
    )
    done = run_python(code, str(path))
    num_rows, num_points, grown_mb = map(int, done.stdout.split())
    assert (num_rows, num_points) == (250_000, 1000)
    assert grown_mb < 30


@pytest.mark.promise("safety-many-metrics")
def test_the_last_values_of_many_metrics_are_found_without_listing_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    history, names = History(), [f"layer_{number}/norm" for number in range(1000)]
    for step in (1, 2):
        row = {"step": step, "time": float(step), **{name: step + index for index, name in enumerate(names)}}
        history.extend(json.dumps(row).encode() + b"\n")
    history.extend(b'{"step": 3, "time": 3.0, "layer_7/norm": 0.5}\n')
    calls: list[object] = []
    listed = History.keys
    monkeypatch.setattr(History, "keys", lambda self: calls.append(self) or listed(self))
    assert [history.last(name) for name in names[6:9]] == [8.0, 0.5, 10.0]
    assert "layer_7/norm" in history
    assert history.last("none") is None
    assert history.pace() == (1.0, 3.0)
    assert calls == []


@pytest.mark.promise("safety-many-metrics")
def test_a_chain_of_resumed_runs_is_joined_at_once_as_it_would_be_pair_by_pair() -> None:
    chosen = random.Random(3)
    parts, first = [], 1
    for number in range(40):
        part = History()
        for step in range(first, first + chosen.randint(0, 12)):
            part.extend(
                b'{"step":%d,"a":%d,"b":%d}\n' % (step, number, -step)
                if step % 3
                else b'{"step":%d,"a":%d}\n' % (step, number)
            )
        resumed_at = max(0, (part.last_step or first) - chosen.randint(0, 9))
        parts.append((part, resumed_at))
        first = resumed_at + 1
    pairwise = History()
    for index, (part, _) in enumerate(parts):
        pairwise = History.chained([(pairwise, parts[index - 1][1] if index else 0), (part, MAX_STEP)])
    chained = History.chained([*parts[:-1], (parts[-1][0], 2**53)])
    for name in ("a", "b"):
        np.testing.assert_array_equal(chained[name].steps, pairwise[name].steps)
        np.testing.assert_array_equal(chained[name].values, pairwise[name].values)


def units(history: History) -> dict[str, str]:
    return {name: series.unit for name, series in history.items()}


def test_a_series_has_the_unit_of_its_rows_and_the_last_step_counts_in_one():
    history = History()
    history.add("eval/loss", [1, 2], [1.0, 0.5], [10.0, 20.0], unit="epoch")
    assert (history.unit, history.last_step) == ("epoch", 2)
    history.extend(orjson.dumps({"step": 640, "eval/accuracy": 0.5}) + b"\n", unit="sample")
    assert (history.unit, history.last_step) == ("sample", 640)
    history.extend(row(20, loss=2.0))
    assert (history.unit, history.last_step) == ("step", 20)
    assert units(history) == {"train/loss": "step", "eval/loss": "epoch", "eval/accuracy": "sample"}


def test_a_restart_replaces_only_rows_of_the_same_unit():
    history = history_of(row(100, loss=3.0), row(200, loss=2.0))
    history.add("eval/loss", [1, 2], [1.0, 0.5], [math.nan] * 2, unit="epoch")
    history.add("eval/loss", [2, 3], [0.6, 0.4], [math.nan] * 2, unit="epoch", attempt=2)
    assert points(history) == [(100, 3.0), (200, 2.0)]
    assert points(history, "eval/loss") == [(1, 1.0), (2, 0.6), (3, 0.4)]


def test_a_curve_takes_the_unit_of_its_newest_rows():
    history = history_of(row(1, loss=3.0, lr=0.1))
    history.add("train/loss", [64], [2.0], [math.nan], unit="sample")
    assert points(history) == [(64, 2.0)]
    history.extend(row(2, loss=1.0, lr=0.1))
    assert (points(history), units(history)) == ([(1, 3.0), (2, 1.0)], {"train/loss": "step", "train/lr": "step"})


def test_a_table_of_several_units_names_that_of_each_row(tmp_path: Path):
    history = history_of(row(20, loss=2.0), row(40, loss=1.0))
    history.add("eval/loss", [1], [math.nan], [math.nan], unit="epoch")
    columns = history.columns()
    assert (columns["step"].tolist(), columns["unit"].tolist()) == ([20, 40, 1], ["step", "step", "epoch"])
    history.to_csv(tmp_path / "history.csv")
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert lines == ["step,unit,train/loss,eval/loss", "20,step,2.0,", "40,step,1.0,", "1,epoch,,nan"]
