"""Requests are small plain files of the run's owner, each taken once; a program of any kind polls them."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
import transformers
from file_size import file_size_limit
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from waiting import eventually

from nbtools import steering
from nbtools.errors import ConfigError
from nbtools.rundir.requests.events import held, read_events
from nbtools.rundir.requests.steer import Steerable, controls_of, write_request
from nbtools.rundir.rundir import RunDir
from nbtools.steering import Inbox, decoded, encoded

NAME = "1769868153250000000-0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_requests_are_taken_once_in_the_order_of_their_times(run: RunDir) -> None:
    inbox = Inbox(run.path)
    assert (inbox.num_waiting(), inbox.take()) == (0, []), "there is no folder yet"
    first = write_request(run, action="save")
    (run.requests / f"{NAME}.json").write_text('{"format": 1, "values": {"learning_rate": 0.1}, "by": "ana@box"}')
    assert (run.requests.stat().st_mode & 0o77, inbox.num_waiting()) == (0, 2)
    taken = inbox.take()
    assert [request.name for request in taken] == [NAME, first]
    assert (taken[0].values, taken[0].by, taken[1].action) == ({"learning_rate": 0.1}, "ana@box", "save")
    assert "@" in taken[1].by
    assert inbox.take() == list(run.requests.iterdir()) == []
    assert decoded(encoded(taken)) == taken
    name = write_request(run, action="save")
    assert Inbox(run.path, [name]).num_waiting() == 0, "it was answered before a restart"
    assert [request.name for request in Inbox(run.path).take()] == [name]


def written(text: str, file: str = f"{NAME}.json") -> Callable[[RunDir], None]:
    return lambda run: (run.requests / file).write_text(text) and None


@pytest.mark.parametrize(
    ("put", "problem"),
    [
        (lambda run: (run.requests / f"{NAME}.json").symlink_to(run.path / "elsewhere"), "cannot be opened"),
        (lambda run: (run.requests / f"{NAME}.json").hardlink_to(run.path / "elsewhere"), "is not a plain file"),
        (lambda run: os.mkfifo(run.requests / f"{NAME}.json"), "is not a plain file"),
        (lambda run: (run.requests / f"{NAME}.json").mkdir(), "is not a plain file"),
        (written("{", "notes.txt"), "is no name of a request"),
        (written(""), "is not a JSON object"),
        (written('{"format": 1, "action": "sa'), "is not a JSON object"),
        (written("[1]"), "is not a JSON object"),
        (written('{"format": 1, "values": {"a": NaN}}'), "is not a JSON object of finite numbers"),
        (written('{"format": 1, "values": {"a": [1e999]}}'), "is not a JSON object of finite numbers"),
        (written('{"format": 1, "values": {"a": %s}}' % ("9" * 4000)), "is not a JSON object of finite numbers"),
        (written('{"format": 1, "values": {"a": %s}}' % ("[" * 900 + "]" * 900)), "has more than 100 brackets"),
        (written("x" * 4097), "has 4,097 bytes"),
        (written('{"action": "save"}'), "has the format None"),
        (written('{"format": 2, "action": "save"}'), "has the format 2"),
        (written('{"format": 1, "action": "explode"}'), "asks neither for one of save, evaluate"),
        (written('{"format": 1, "action": ["save"]}'), "asks neither for one of save, evaluate"),
        (written('{"format": 1, "values": [1]}'), "asks neither for one of save, evaluate"),
        (written('{"format": 1, "action": "save", "values": {"a": 1}}'), "asks neither for one of save, evaluate"),
    ],
)
def test_what_is_no_request_is_named_once_and_not_followed(
    run: RunDir, put: Callable[[RunDir], None], problem: str
) -> None:
    run.requests.mkdir()
    (run.path / "elsewhere").write_text('{"format": 1, "action": "save"}')
    put(run)
    write_request(run, action="evaluate")
    inbox = Inbox(run.path)
    problems = {request.action: request.problem for request in inbox.take()}
    assert problems.keys() == {"", "evaluate"} and problem in problems[""]
    assert (inbox.take(), inbox.num_waiting()) == ([], 0)
    assert all(path.is_dir() or path.stat() for path in run.path.iterdir()), "what a link leads to stays"


def test_a_folder_that_is_a_link_holds_no_requests(run: RunDir) -> None:
    write_request(run, action="save")
    run.requests.rename(run.path / "other")
    run.requests.symlink_to(run.path / "other")
    assert (Inbox(run.path).num_waiting(), Inbox(run.path).take()) == (0, [])


def test_a_file_of_another_user_is_no_request(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_request(run, action="save")
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert [request.problem for request in Inbox(run.path).take()] == ["belongs to another user"]


def test_a_flood_of_files_is_taken_in_parts(run: RunDir) -> None:
    for _ in range(150):
        write_request(run, action="save")
    inbox = Inbox(run.path)
    assert [len(inbox.take()) for _ in range(4)] == [64, 64, 22, 0]


@pytest.mark.parametrize("values", [{"a": float("nan")}, {"a": {1}}, {"a": "x" * 5000}])
def test_values_that_fit_no_request_are_refused_before_anything_is_written(run: RunDir, values: object) -> None:
    with pytest.raises(ConfigError, match="a"):
        write_request(run, values=values)  # type: ignore[arg-type]
    assert not run.requests.exists()


# --- programs -------------------------------------------------------------------------------------


@pytest.fixture
def launched(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(run.path))
    return run


def test_a_program_polls_changes_and_says_what_it_takes(launched: RunDir) -> None:
    steerable = Steerable(("save", "pause", "continue"), {"lr": 0.1}, False)
    assert steering.poll(9, {"lr": 0.1}, ["save"]) == []
    assert controls_of(launched) is None, "step 9 is none of those at which it looks"
    assert steering.poll(10, {"lr": 0.1}, ["save"]) == []
    assert controls_of(launched) == steerable
    write_request(launched, action="profile")
    for values in ({"lr": 0.5}, {"lr": 0.01, "momentum": 0.5}, {"lr": "fast"}, {"lr": 0.05}):
        write_request(launched, values=values)
    assert steering.poll(15, {"lr": 0.1}, ["save"]) == []
    assert steering.poll(20, {"lr": 0.1}, ["save"]) == [("lr", 0.5), ("lr", 0.05)]
    assert [(event.step, str(event)) for event in read_events(launched)] == [
        (20, "refused: profile: the program takes save, pause, continue"),
        (20, "lr 0.1 -> 0.5"),
        (20, "refused: momentum: the program takes new values of lr"),
        (20, "refused: lr=fast: must be a number, as 0.5"),
        (20, "lr 0.5 -> 0.05"),
    ]
    assert controls_of(launched) == replace(steerable, values={"lr": 0.05})
    steering._polled.cache_clear()  # a restart begins with the value that the panel shows
    assert steering.poll(10, {"lr": 0.1}) == [("lr", 0.05)]
    assert steering.poll(20, {"lr": 0.05}) == []


def test_a_value_without_a_limit_is_shown_and_may_get_one(launched: RunDir) -> None:
    assert steering.poll(10, {"clip": float("inf")}) == []
    assert controls_of(launched) == Steerable(("pause", "continue"), {"clip": "Infinity"}, False)
    write_request(launched, values={"clip": 1})
    assert steering.poll(20, {"clip": float("inf")}) == [("clip", 1)]
    assert [str(event) for event in read_events(launched)] == ["clip 'Infinity' -> 1"]


def test_a_program_is_held_in_a_pause(launched: RunDir) -> None:
    write_request(launched, action="pause")
    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(steering.poll, 10, {"lr": 0.1}, ["save"])
        eventually(lambda: held(read_events(launched)) is not None)
        write_request(launched, action="save")
        write_request(launched, values={"lr": 0.2})
        eventually(lambda: len(read_events(launched)) == 3)
        write_request(launched, values={"lr": 0.3})
        assert not polled.done()
        write_request(launched, action="continue")
        assert polled.result(60) == [("lr", 0.2), ("lr", 0.3)]
    said = [str(event) for event in read_events(launched)]
    assert said[2:] == ["lr 0.1 -> 0.2", "lr 0.2 -> 0.3", "continue"] and "the training is paused" in said[1]


def test_what_a_full_disk_has_no_room_for_is_written_whole_at_a_later_look(launched: RunDir) -> None:
    write_request(launched, values={"lr": 0.2})
    with file_size_limit(10):  # the first bytes of a row have room
        assert steering.poll(10, {"lr": 0.1}) == [("lr", 0.2)]
    assert (launched.events.read_bytes(), controls_of(launched)) == (b"", None)
    assert steering.poll(20, {"lr": 0.2}) == []
    assert [(event.step, str(event)) for event in read_events(launched)] == [(10, "lr 0.1 -> 0.2")]
    assert controls_of(launched) == Steerable(("pause", "continue"), {"lr": 0.2}, False)


def documented(parent: type) -> Any:
    """Return an instance of the class `Steer` that the docstring of `nbtools.steering` has for a callback's class."""
    head = f"    class Steer({parent.__name__}):"
    body = str(steering.__doc__).split(head, 1)[1].split("\n\n", 1)[0]
    names = {"steering": steering, parent.__name__: parent}
    exec(textwrap.dedent(head + body), names)
    return names["Steer"]()


class Line(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"loss": super().forward(x).square().mean()}


def test_a_trainer_of_transformers_takes_a_new_peak_and_saves(launched: RunDir) -> None:
    write_request(launched, values={"learning_rate": 0.0005})
    write_request(launched, action="save")
    plain: dict[str, Any] = {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(launched.path), learning_rate=0.001, max_steps=20, **plain)
    callbacks, data = [documented(transformers.TrainerCallback)], [{"x": torch.ones(1)}] * 8
    taken: list[float] = []
    with register_optimizer_step_pre_hook(lambda optimizer, *_: taken.append(optimizer.param_groups[0]["lr"])):
        transformers.Trainer(Line(1, 1), arguments, train_dataset=data, callbacks=callbacks).train()
    rates = [(0.001 if step < 10 else 0.0005) * (1 - step / 20) for step in range(20)]
    assert taken == pytest.approx(rates, rel=1e-12)
    assert (launched.path / "checkpoint-10").is_dir()


@pytest.mark.filterwarnings("ignore")  # Lightning's hints
def test_a_trainer_of_lightning_takes_a_new_rate_and_saves(launched: RunDir) -> None:
    write_request(launched, values={"lr": 0.05})
    write_request(launched, action="save")
    plain: dict[str, Any] = {"accelerator": "cpu", "logger": False, "default_root_dir": launched.path}
    trainer = lightning.Trainer(max_steps=20, callbacks=[documented(lightning.Callback)], **plain)
    trainer.fit(BoringModel())
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.05
    assert (launched.path / "step-10.ckpt").is_file()


_PROGRAM = """
import sys
sys.modules["nbtools"] = None
import steering
import torch.distributed as dist

dist.init_process_group("gloo")
lr = step = 1
while lr:
    step += 1
    for name, value in steering.poll(step, {"lr": lr}, ["save"], every=5):
        print(step, name, value, file=open(f"{dist.get_rank()}.txt", "a"))
        lr = lr if name == "save" else value
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_with_a_copy_of_the_file_change_at_the_same_steps(launched: RunDir) -> None:
    shutil.copy(str(steering.__file__), launched.path)
    (launched.path / "train.py").write_text(_PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    with subprocess.Popen(command, cwd=launched.path, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}) as program:
        eventually(launched.controls.exists)
        for rate in (0.5, 0.2, 0):
            write_request(launched, action="save")
            write_request(launched, values={"lr": rate})
        assert program.wait(120) == 0
    first, second = ((launched.path / f"{rank}.txt").read_text() for rank in range(2))
    assert first == second
    assert first.count("save None") == 3
