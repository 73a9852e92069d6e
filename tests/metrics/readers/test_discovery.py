"""Metrics in the files of other programs, written by their own writers in child processes."""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launched import python, record_launch
from waiting import eventually

from nbtools.launcher.launch import launch
from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers import discovery, wandb_offline
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.points import Points
from nbtools.metrics.readers.reader import Reader
from nbtools.metrics.readers.tabular import holds_rows
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.metrics.readers.wandb_offline import WandbFile
from nbtools.notebook.panel.panel import LivePlot
from nbtools.project import Project
from nbtools.run.run import silent_s
from nbtools.run.state import RunState

from capabilities import ANOTHER_UID, require

EVENTS = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

def event(step, **value):
    return Event(wall_time=1000.5 + step, step=step, summary=Summary(value=[Summary.Value(**value)]))

writer = EventFileWriter(sys.argv[1])
for step in range(100):
    writer.add_event(event(step * 3, tag="Loss/train", simple_value=1 / (step + 1)))
writer.add_event(event(7, tag="val/acc", tensor=TensorProto(dtype=1, float_val=[0.25])))
writer.add_event(event(8, tag="val/acc", tensor=TensorProto(dtype=2, double_val=[0.125])))
writer.add_event(event(9, tag="val/acc", tensor=TensorProto(dtype=1, tensor_content=b"\\0\\0\\0?")))
writer.add_event(event(9, tag="an image", tensor=TensorProto(dtype=7, string_val=[b"x" * 9000])))
writer.add_event(event(9, tag="a" * 150, simple_value=float("nan")))
writer.close()
"""
WANDB = """
import sys, wandb
settings = wandb.Settings(silent=True, x_disable_stats=True)
run = wandb.init(mode="offline", project="p", dir=sys.argv[1], settings=settings)
for step in range(300):
    run.log({"train/loss": 1 / (step + 1), "nested": {"acc": step / 4}, "text": "x" * 300}, step=step * 10)
run.log({"eval/loss": float("nan")}, step=3000)
run.finish()
run = wandb.init(mode="offline", project="p", dir=sys.argv[2], settings=settings)
for step, num in enumerate((0, 16 << 20, 0, 17 << 20, 0)):
    run.log({"train/loss": 1.0 / (step + 1), "text": "x" * num}, step=step)
run.finish()
"""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    python("-c", EVENTS, folder)
    return next(folder.glob("events.*"))


@pytest.fixture(scope="module")
def wandb_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    require("wandb")
    folders = tmp_path_factory.mktemp("wandb"), tmp_path_factory.mktemp("large")
    python("-c", WANDB, *folders)
    return [next(folder.glob("wandb/offline-run-*/run-*.wandb")) for folder in folders]


@pytest.fixture
def wandb_file(wandb_files: list[Path]) -> Path:
    return wandb_files[0]


def points_of(history: History) -> Points:
    return {name: (one.steps.tolist(), one.values.tolist(), one.times.tolist()) for name, one in history.items()}


def in_pieces(make: Callable[[Path], Reader], source: Path, path: Path, num_pieces: int) -> Points:
    """Read a file that grows by pieces, with a look after each."""
    data, reader = source.read_bytes(), make(path)
    size = -(-len(data) // num_pieces)
    for start in range(0, len(data), size):
        with path.open("ab") as file:
            file.write(data[start : start + size])
        reader.poll()
    return points_of(reader.history)


# --- TensorBoard --------------------------------------------------------------------------------


def test_scalars_of_an_event_file_are_those_of_tensorboards_own_reader(events: Path) -> None:
    points = points_of(EventFile(events).poll())
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    theirs: dict[str, list[tuple[int, float, float]]] = {}
    for event in EventFileLoader(str(events)).Load():
        for value in event.summary.value:
            if value.tensor.dtype in (1, 2):
                number = float(make_ndarray(value.tensor))
                theirs.setdefault(value.tag, []).append((event.step, number, event.wall_time))
    assert list(zip(*points["train/loss"], strict=True)) == theirs["Loss/train"]
    assert list(zip(*points["eval/accuracy"], strict=True)) == theirs["val/acc"]
    assert math.isnan(points["a" * 150][1][0])
    assert len(points) == len(theirs) == 3


def test_an_event_file_reads_the_same_while_it_grows(events: Path, tmp_path: Path) -> None:
    grown = in_pieces(EventFile, events, tmp_path / "events", 97)
    assert repr(grown) == repr(points_of(EventFile(events).poll()))


def test_a_damaged_event_file_is_left_with_a_reason(events: Path, tmp_path: Path) -> None:
    data = bytearray(events.read_bytes())
    data[200:260] = b"\xff" * 60
    (tmp_path / "events").write_bytes(data)
    reader = EventFile(tmp_path / "events")
    for _ in range(3):
        reader.poll()
    assert reader.note == "its records are damaged"


# --- Weights & Biases ---------------------------------------------------------------------------


@pytest.mark.slow
def test_every_row_that_wandb_wrote_is_read_also_while_it_grows(wandb_file: Path, tmp_path: Path) -> None:
    points = points_of(WandbFile(wandb_file).poll())
    steps, values, times = points["train/loss"]
    assert (steps, values) == ([10 * i for i in range(300)], [1 / (i + 1) for i in range(300)])
    assert points["nested_accuracy"][1] == [i / 4 for i in range(300)]
    assert points["eval/loss"][0] == [3000] and math.isnan(points["eval/loss"][1][0])
    assert all(abs(when - time.time()) < 3600 for when in times)
    assert wandb_file.stat().st_size > 3 * (32 << 10), "rows go over the ends of blocks"
    assert repr(in_pieces(WandbFile, wandb_file, tmp_path / "run-x.wandb", 97)) == repr(points)
    (tmp_path / "run-y.wandb").write_bytes(b":W&B\xe1\xbe\x01" + wandb_file.read_bytes()[7:])
    other = WandbFile(tmp_path / "run-y.wandb")
    assert not other.poll()
    assert other.note.startswith("its version is not known")


@pytest.mark.slow
def test_a_large_record_costs_linear_time_and_one_beyond_the_limit_is_skipped(
    wandb_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_offline, "_MAX_RECORD_BYTES", 17 << 20)
    reader = WandbFile(wandb_files[1])
    began = time.thread_time()
    points = points_of(reader.poll())
    assert time.thread_time() - began < 15, "0.1 to 0.2 here"
    assert points["train/loss"][:2] == ([0, 1, 2, 4], [1.0, 1 / 2, 1 / 3, 1 / 5])
    assert reader.note == "a record of more than 17 MB"


def test_a_file_that_was_replaced_or_cut_is_read_from_its_beginning(
    events: Path, wandb_file: Path, tmp_path: Path, cwd: Path
) -> None:
    for source, steps, cut in ((events, 100, 2_000), (wandb_file, 300, 50_000)):
        data, path = source.read_bytes(), cwd / source.name
        path.write_bytes(data)
        metrics = FoundMetrics(tmp_path, LogMetrics(tmp_path / "rank0.log"))

        def look() -> int:
            return len(metrics.history(None).get("train/loss", ()))  # noqa: B023

        def replace(content: bytes) -> None:
            (cwd / "new").write_bytes(content)
            (cwd / "new").rename(path)  # noqa: B023

        assert look() == steps
        os.truncate(path, cut)
        num_left = look()
        assert 0 < num_left < steps
        with path.open("ab") as file:
            file.write(data[cut:])
        assert look() == steps
        for content, is_found in ((data[:cut], num_left.__eq__), (data[: cut * 4 // 5], num_left.__gt__)):
            replace(content)
            assert is_found(look())
        replace(data)
        assert look() == steps
        path.unlink()


# --- discovery ----------------------------------------------------------------------------------


def found(tmp_path: Path, args: tuple[str, ...] = ()) -> tuple[History, list[str]]:
    record_launch(tmp_path, tmp_path / "cwd", *args, age_s=10)
    metrics = FoundMetrics(tmp_path, LogMetrics(tmp_path / "rank0.log"))
    return metrics.history(None), metrics.notes()


def neighbour(tmp_path: Path, name: str, seconds: tuple[float, float], *args: str) -> None:
    """Make a run in the same working directory that began and ended so many seconds ago; 0 for one that goes on."""
    folder, (began, ended) = tmp_path.parent / f"{tmp_path.name}{name}", seconds
    folder.mkdir()
    (folder / "rank0.log").touch()
    record_launch(folder, tmp_path / "cwd", *args, age_s=began)
    if ended:
        (folder / "exit.json").write_text(json.dumps({"time": time.time() - ended}))


def row(step: int, loss: float) -> str:
    return json.dumps({"step": step, "loss": loss}) + "\n"


def test_files_below_the_working_directory_and_in_named_folders_are_found(tmp_path: Path, cwd: Path) -> None:
    (cwd / "a/b").mkdir(parents=True)
    (cwd / "a/b/log.jsonl").write_text(row(1, 2.0))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/results.csv").write_text("step,val_loss\n5,1.5\n")
    history, notes = found(tmp_path, ("--output_dir", str(tmp_path / "elsewhere")))
    assert (history["train/loss"].steps.tolist(), history["eval/loss"].steps.tolist()) == ([1], [5])
    assert notes == [
        f"{tmp_path / 'elsewhere/results.csv'}: eval/loss; counter: step",
        f"{cwd / 'a/b/log.jsonl'}: train/loss; counter: step",
    ]


ROWS = {
    "detectron2/metrics.json": '{"data_time": 0.1, "eta_seconds": 9, "iteration": 19, "total_loss": 2.5, "lr": 0.1}\n',
    "mmengine/vis_data/scalars.json": '{"lr": 0.02, "data_time": 0.5, "loss": 2.5, "iter": 19, "step": 19}\n',
    "mmcv/none.log.json": '{"env_info": "sys.platform: linux"}\n'
    '{"mode": "train", "epoch": 1, "iter": 19, "lr": 0.02, "loss": 2.5}\n',
    "detr/log.txt": json.dumps({"train_loss": 2.5, "test_bbox": [0.1] * 900, "epoch": 19, "n_parameters": 41}) + "\n",
    "keras/training.log": "epoch,accuracy,loss,val_accuracy,val_loss\n19,0.5,2.5,0.4,2.6\n",
    "fairseq/scores.tsv": "step\tloss\n19\t2.5\n",
    "own/rows.ndjson": row(19, 2.5),
}
OTHERS = {
    "config.json": json.dumps({"epochs": 3, "step": 5, "loss": "mse"}, indent=2),
    "summary.json": '{"_step": 19, "loss": 1.0}',
    "args.json": '{"epochs": 3, "batch_size": 4}\n',
    "train.log": "2026-01-31 INFO epoch, step, loss\nstep 1, loss 2.0\n",
    "prose.txt": "Each epoch, step, and loss\nis named here.\n",
    "array.json": '[{"step": 1, "loss": 2.0}]\n',
    "wandb/latest-run/files/output.log": row(1, 2.0),
    "binary.txt": "\x00\xff{step\n" * 9,
    "empty.log": "",
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_found_in_files_of_other_names(tmp_path: Path, cwd: Path, name: str) -> None:
    (cwd / name).parent.mkdir(parents=True)
    (cwd / name).write_text(ROWS[name])
    history, notes = found(tmp_path)
    (losses,) = (series for metric, series in history.items() if metric in ("train/loss", "train/total_loss"))
    assert (losses.steps.tolist(), losses.values.tolist()) == ([19], [2.5])
    assert notes[0].startswith(f"{cwd / name}: ")


def test_files_of_such_names_without_rows_are_passed_over_without_a_word(tmp_path: Path, cwd: Path) -> None:
    for name, text in OTHERS.items():
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text(text)
    history, notes = found(tmp_path, ("--output_dir", str(tmp_path)))
    assert not history
    assert len(notes) == 1 and notes[0].startswith("no metrics yet")


def test_the_beginning_of_a_file_is_read_once_and_again_until_it_tells(
    tmp_path: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(discovery, "holds_rows", lambda path: (opened.append(Path(path).name), holds_rows(path))[1])
    monkeypatch.setattr(discovery, "_LOOK_EVERY_S", (0.0, 0.0))
    (cwd / "prose.txt").write_text("This is no table.\n")
    (cwd / "log.txt").write_text('{"epoch": 0, "train')
    metrics = FoundMetrics(tmp_path, LogMetrics(tmp_path / "rank0.log"))
    look = lambda: metrics.history(None)  # noqa: E731
    assert not look() and not look()
    assert sorted(opened) == ["log.txt", "prose.txt"]
    with (cwd / "log.txt").open("a") as file:
        file.write('_loss": 2.5}\n')
    assert look()["train/loss"].values.tolist() == [2.5]
    look()
    assert sorted(opened) == ["log.txt", "log.txt", "prose.txt"]


def test_a_folder_of_too_many_files_is_named(tmp_path: Path, cwd: Path) -> None:
    for number in range(2_100):
        (cwd / f"{number}.png").touch()
    history, notes = found(tmp_path)
    assert not history and f"{cwd}: too many entries; name a folder with --output_dir" in notes


@pytest.mark.needs("another user")
def test_files_of_another_user_are_not_read(tmp_path: Path, cwd: Path) -> None:
    for name, text in (("log.jsonl", row(1, 2.0)), ("log.txt", row(1, 2.0)), ("results.csv", "step,val_loss\n1,2.0\n")):
        (cwd / name).write_text(text)
        os.chown(cwd / name, ANOTHER_UID, -1)
    history, notes = found(tmp_path)
    assert not history and len(notes) == 1
    os.chown(cwd / "results.csv", os.getuid(), -1)
    assert [*found(tmp_path)[0]] == ["eval/loss"]


def test_old_files_links_pipes_and_other_runs_are_passed_over(tmp_path: Path, cwd: Path) -> None:
    (tmp_path / "real.jsonl").write_text(row(1, 2.0))
    (cwd / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    (cwd / "out").symlink_to(tmp_path)
    os.mkfifo(cwd / "pipe.jsonl")
    (cwd / "old.jsonl").write_text(row(1, 2.0))
    os.utime(cwd / "old.jsonl", (1e9, 1e9))
    (cwd / "runs/2026-01-31_142233_other").mkdir(parents=True)
    (cwd / "runs/2026-01-31_142233_other/metrics.jsonl").write_text(row(1, 2.0))
    history, notes = found(tmp_path)
    assert len(history) == 0
    assert len(notes) == 1 and notes[0].startswith("no metrics yet; click a number")


def test_files_that_another_run_may_have_written_are_left_out(tmp_path: Path, cwd: Path) -> None:
    (cwd / "log.jsonl").write_text(row(1, 2.0))
    (cwd / "out").mkdir()
    (cwd / "out/results.csv").write_text("step,val_loss\n5,1.5\n")
    neighbour(tmp_path, "_before", (100, 11))
    assert {*found(tmp_path)[0]} == {"eval/loss", "train/loss"}, "the other run had ended"
    neighbour(tmp_path, "_beside", (5, 0), "--output_dir", "elsewhere")
    history, notes = found(tmp_path, ("--output_dir", "out"))
    assert [*history] == ["eval/loss"], "the folder is this run's alone"
    wanted = f"{cwd}: not read: run {tmp_path.name}_beside ran there at the same time"
    assert any(note.startswith(wanted) for note in notes), notes
    neighbour(tmp_path, "_in", (5, 0), "--output_dir", "out")
    assert len(found(tmp_path, ("--output_dir", "out"))[0]) == 0


def test_a_run_that_waited_in_a_queue_begins_with_its_first_line(tmp_path: Path, cwd: Path) -> None:
    (cwd / "log.jsonl").write_text(row(1, 2.0))
    neighbour(tmp_path, "_before", (100, 5))
    assert len(found(tmp_path)[0]) == 0
    (tmp_path / "rank0.times.jsonl").write_text(f"[10,{time.time() - 4:.2f},1]\n")
    assert [*found(tmp_path)[0]] == ["train/loss"]


def test_each_metric_comes_from_the_source_with_the_most_points(tmp_path: Path, cwd: Path, events: Path) -> None:
    (tmp_path / "rank0.log").write_text("step 1 loss 9.0\nstep 2 loss 8.0\nstep 3 val loss 7.0\nstep 4 val loss 6.0\n")
    (cwd / events.name).write_bytes(events.read_bytes())
    (cwd / "log.jsonl").write_text(row(1, 2.0) + json.dumps({"step": 5, "eval_loss": 1.0}) + "\n")
    history, notes = found(tmp_path)
    assert len(history["train/loss"]) == 100
    assert history["eval/loss"].values.tolist() == [7.0, 6.0]
    assert notes[0].startswith(f"{cwd / events.name}: train/loss") and "printed lines: eval/loss" in notes
    others = f"{cwd / 'log.jsonl'} (train/loss, eval/loss), printed lines (train/loss)"
    assert f"also found, but not drawn: {others}" in notes


def test_a_program_that_ends_without_a_metric_says_so_and_names_what_it_wrote(
    project: Project, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (work := project.root / "work").mkdir()
    (work / "old.txt").touch()
    os.utime(work / "old.txt", (1, 1))
    monkeypatch.chdir(work)
    script = work / "quiet.py"
    script.write_text("open('model.pt', 'w').write('x')\nprint('done')\n")
    os.utime(script, (1, 1))
    run = launch(script, torchrun=False, gpus=())
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    first, second = run.rows.notes
    assert first.startswith("no metrics were found; click a number")
    assert second == f"files that it wrote: {work / 'model.pt'}"
    assert second in cli("show", run.id).stdout
    panel = LivePlot(run.dir)
    panel.refresh()
    shown = panel._widgets.words.sources.value
    panel.close()
    assert "<details" in shown and "no metrics were found" in shown and "model.pt" in shown


def test_a_program_that_prints_nothing_for_long_is_said_to_be_silent(
    project: Project, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    script = project.root / "quiet.py"
    script.write_text("import time\nprint('loading', flush=True)\ntime.sleep(600)\n")
    run = launch(script, torchrun=False, gpus=())
    eventually(lambda: "loading" in run.log())
    assert "none for" not in cli("show", run.id).stdout
    before = time.time() - 720
    os.utime(run.files.log, (before, before))
    assert "none for 12m" in cli("show", run.id).stdout
    panel = LivePlot(run.dir)
    panel.refresh()
    header = panel._widgets.words.header
    eventually(lambda: "no output for 12m" in header.value, lambda: header.value)
    panel.close()
    run.stop(timeout_s=1)
    assert silent_s(run) is None
