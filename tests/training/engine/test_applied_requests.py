"""Requests to a running training: applied after one step on all ranks, on record, and again after a restart."""

import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Train
from waiting import eventually

from nbtools.config import Launch
from nbtools.errors import ConfigError, LaunchError
from nbtools.launcher.launch import launch
from nbtools.launcher.resume import resume
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.compare import compare_runs
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json
from nbtools.rundir.requests.events import Event, append_events, held, read_events
from nbtools.rundir.requests.steer import write_request
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import write_script
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.process import vote

from trainings import TINY, ByHand, assert_same_checkpoints, rows, script_text, write_inputs

Requests = Mapping[int, list[Mapping[str, Any]]]
"""What is asked for while a step is taken, by the step."""


@pytest.fixture
def steered(trained: Train, cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train in this process; each request is written within the step after which it is applied."""
    monkeypatch.setattr(vote, "_EVERY_S", 0.0)
    real = Optimizer.step

    def start(
        key: str, asked: Requests, *, resume: Path | None = None, files: RunDir | None = None, **changes: Any
    ) -> RunDir:
        if not any(cpu_project.root.glob("texts")):
            write_inputs(key, cpu_project)
        left = dict(asked)
        files = files or RunDir.create(cpu_project.runs, key)

        def step(optimizer: Optimizer, number: int, rate: float | None = None) -> None:
            for request in left.pop(number, ()):  # a step of several optimizers asks once
                write_request(files, **request)
            real(optimizer, number, rate)

        with monkeypatch.context() as patch:
            patch.setattr(Optimizer, "step", step)
            config = RECIPES[key].config_class(**{**TINY[key], "max_steps": 12, "log_every": 1, **changes})
            return trained(config, resume, files)

    return start


def linear(peak: float, step: int, total: int, warmup: int) -> float:
    """The rate of a step, written anew: a straight line up to the peak, and one down to zero after the last step."""
    return peak * min(step / warmup if warmup else math.inf, (total + 1 - step) / (total + 1 - warmup), 1.0)


def test_rates_after_a_change_are_those_of_the_formula(steered: Train) -> None:
    asked = {4: [{"values": {"learning_rate": 0.05}}], 8: [{"values": {"max_steps": 20, "learning_rate": 0.02}}]}
    files = steered("mlm_pretraining", asked, learning_rate=0.1, warmup_ratio=0.25, epochs=20)
    rates = {row["step"]: row["train/learning_rate"] for row in rows(files)}
    assert rates.keys() == set(range(1, 21))
    for step, rate in rates.items():
        peak, total = (0.1, 12) if step <= 4 else (0.05, 12) if step <= 8 else (0.02, 20)
        assert rate == pytest.approx(linear(peak, step, total, total // 4), abs=1e-12), step
    events = [(event.step, event.field, event.before, event.after) for event in read_events(files)]
    assert events == [(4, "learning_rate", 0.1, 0.05), (8, "max_steps", 12, 20), (8, "learning_rate", 0.05, 0.02)]
    assert Run(files).total_steps == 20
    assert Checkpoint.read(files.checkpoint(20)).manifest["steered"] == {"learning_rate": 0.02, "max_steps": 20}
    assert "steered" not in Checkpoint.read(files.checkpoint(3)).manifest


@pytest.mark.parametrize("key", TINY)
def test_every_recipe_saves_evaluates_and_takes_each_of_its_rates(key: str, steered: Train) -> None:
    fields = [name for name in RECIPES[key].config_class.steerable() if "learning_rate" in name]
    values = {"values": dict.fromkeys(fields, 0.004)}
    asked = {2: [{"action": "save"}], 7: [{"action": "evaluate"}, values, {"values": {"max_steps": 10}}]}
    every = {"eval_every": 100, "checkpoint_every": 100, "keep_last": 1, "keep_best": 0, "checkpoint_epochs": False}
    if key == "llm_gan":
        every |= {"generator_warmup_steps": 1, "judge_warmup_steps": 1}
    files = steered(key, asked, **every, lr_schedule="constant", warmup_ratio=0.0)
    measured = [row for row in rows(files) if any(name.startswith("eval/") for name in row)]
    assert {7, 10} <= {row["step"] for row in measured}
    assert [saved.step for saved in Run(files).checkpoints] == [2, 10], "one that was asked for is kept"
    rates = {row["step"]: row["train/learning_rate"] for row in rows(files) if "train/learning_rate" in row}
    assert rates[7] != 0.004
    assert rates[8] == 0.004
    assert max(rates) == 10
    assert [event.refused for event in read_events(files)] == [""] * (3 + len(fields))
    controls = read_json(files.controls) or {}
    named = {"max_steps", "log_every", "eval_every", "checkpoint_every", "ema_decay"}
    assert controls["values"].keys() == {*fields, *named}


def test_what_cannot_be_done_is_refused_with_a_reason_and_changes_nothing(steered: Train) -> None:
    wrong = {
        "learning_rate=-1": "must be > 0",
        'learning_rate="fast"': "is text; give a number",
        "batch_size=3": "cannot change while the training runs; stop it, and resume it with the change",
        "no_such_field=3": "MLMPretrainingConfig has no such field",
        "max_steps=3": "step 4 is done; give 4 to 160",
        "max_steps=161": "epochs=20 ends at step 160; give 4 to 160",
        "log_every=0": "must be >= 1",
    }
    values = [{"values": {name: json.loads(text)}} for name, _, text in (word.partition("=") for word in wrong)]
    both = {"values": {"log_every": 2, "eval_every": 0}}
    asked = {4: [*values, both, {"action": "continue"}], 12: [{"action": "save"}]}
    files, plain = (steered("mlm_pretraining", each, epochs=20) for each in (asked, {}))
    refused = [event.refused for event in read_events(files)]
    assert len(refused) == len(wrong) + 3
    for said, expected in zip(refused, (*wrong.values(), "must be >= 1", "the training is not paused"), strict=False):
        assert expected in said
    assert rows(files) == rows(plain)
    assert_same_checkpoints(files.checkpoint(12), plain.checkpoint(12))


def test_a_request_that_comes_after_the_last_step_is_answered(steered: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vote, "_EVERY_S", 3600.0)
    files = steered("mlm_pretraining", {12: [{"action": "save"}]})
    assert [event.refused for event in read_events(files)] == ["the training has completed after step 12"]


def test_a_restart_applies_later_events_again_at_their_steps(steered: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {2: [{"values": {"learning_rate": 0.02}}], 7: [{"values": {"learning_rate": 0.005, "max_steps": 15}}]}
    options: dict[str, Any] = {"checkpoint_every": 5, "epochs": 20}
    straight = steered("mlm_pretraining", asked, **options)
    before = rows(straight)
    kept = straight.checkpoint(15).rename(straight.path / "kept")
    monkeypatch.setenv("NBTOOLS_ATTEMPT", "2")
    # The supervisor gives the values that were changed before the checkpoint as flags.
    again = steered("mlm_pretraining", {}, resume=straight.checkpoint(5), files=straight, learning_rate=0.02, **options)
    repeated = [{k: v for k, v in row.items() if k != "attempt"} for row in rows(again)[len(before) :]]
    assert repeated == [row for row in before if row["step"] > 5]
    kept.rename(straight.path / "checkpoints" / "step-900015")
    assert_same_checkpoints(straight.path / "checkpoints" / "step-900015", again.checkpoint(15))
    assert len(read_events(again)) == 3, "no event is recorded twice"
    assert Checkpoint.read(again.checkpoint(15)).manifest["steered"] == {"learning_rate": 0.005, "max_steps": 15}


@contextlib.contextmanager
def beside(act: Callable[[], None]) -> Iterator[None]:
    """Run a function in a thread beside a training; its error is the test's."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(act)
        yield
        done.result()


def test_a_third_attempt_repeats_the_events_of_both_before_by_their_steps(
    steered: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = steered("mlm_pretraining", {}, lr_schedule="constant", warmup_ratio=0.0)
    assert not files.events.exists(), "nothing was asked for"
    rate = {"field": "learning_rate", "before": 0.01}
    append_events(files, [Event("a", 9, 1.0, after=0.002, **rate), Event("b", 9, 1.5, action="pause")])
    append_events(files, [Event("c", 7, 2.0, after=0.005, attempt=2, **rate)])
    monkeypatch.setenv("NBTOOLS_ATTEMPT", "3")
    before = len(rows(files))
    steered("mlm_pretraining", {}, resume=files.checkpoint(6), files=files, lr_schedule="constant", warmup_ratio=0.0)
    rates = {row["step"]: row["train/learning_rate"] for row in rows(files)[before:]}
    assert rates == {7: 0.01, 8: 0.005, 9: 0.005, 10: 0.002, 11: 0.002, 12: 0.002}
    assert held(read_events(files)) is None, "a pause ends with its attempt"


def test_a_paused_training_keeps_its_place_and_continues_to_the_bit(steered: Train) -> None:
    files = RunDir(steered("mlm_pretraining", {}, checkpoint_every=100, keep_last=1).path)
    held: list[dict[str, Any]] = []

    def act(paused: RunDir) -> None:
        eventually(lambda: [event.action for event in read_events(paused)] == ["pause"])
        time.sleep(1.5)  # a heartbeat is written once a second
        held.append(read_json(paused.heartbeat(0)) or {})
        write_request(paused, action="continue")

    other = RunDir.create(files.path.parent, "paused")
    with beside(lambda: act(other)):
        steered("mlm_pretraining", {6: [{"action": "pause"}]}, files=other, checkpoint_every=100, keep_last=1)
    assert (held[0]["phase"], held[0]["step"]) == ("paused", 6)
    assert rows(other) == rows(files)
    assert_same_checkpoints(files.checkpoint(12), other.checkpoint(12))
    rates = [json.loads(line).get("train/tokens_per_s", 0) for line in other.metrics.read_text().splitlines()]
    assert rates[6] > 0.1 * rates[5], "the pause does not count in the throughput"


def test_what_is_asked_for_in_a_pause_is_done_and_holds_after_a_restart_from_its_checkpoint(
    steered: Train, cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> None:
        eventually(lambda: [event.action for event in read_events(files)] == ["pause"])
        batch = RunDir(files.path / "batch")
        batch.path.mkdir()
        for asked in ({"values": {"learning_rate": 0.003}}, {"action": "continue"}, {"action": "save"}):
            write_request(batch, **asked)
        files.requests.rename(files.path / "taken")
        batch.requests.rename(files.requests)  # all three at once

    files = RunDir.create(cpu_project.runs, "paused")
    options: dict[str, Any] = {"checkpoint_every": 100, "lr_schedule": "constant", "warmup_ratio": 0.0}
    with beside(act):
        steered("mlm_pretraining", {6: [{"action": "pause"}]}, files=files, **options)
    before = rows(files)
    assert [row["train/learning_rate"] for row in before] == [0.01] * 6 + [0.003] * 6
    assert Checkpoint.read(files.checkpoint(7)).manifest["asked"], "after the next step"
    monkeypatch.setenv("NBTOOLS_ATTEMPT", "2")
    steered("mlm_pretraining", {}, resume=files.checkpoint(6), files=files, **options)
    repeated = [{key: value for key, value in row.items() if key != "attempt"} for row in rows(files)[len(before) :]]
    assert repeated == before[6:]


_NOTED = """
from pathlib import Path
from nbtools.training.engine.worker import Worker

real, stop = Worker.advance, Path("stop")

def advance(worker, plan):
    due = real(worker, plan)
    with open(f"values-{worker.rank}.txt", "a") as file:
        print(worker.progress.step, plan.config.learning_rate, plan.config.log_every, plan.total_steps, due, file=file)
    worker.vote.stop.requested |= worker.rank == 1 and stop.exists()
    return due

Worker.advance = advance
"""
"""Lines of a script before it starts: each rank writes its values after every step; rank 1 is asked to stop."""


def answered(files: RunDir, num_requests: int) -> bool:
    return len({event.request for event in read_events(files)}) >= num_requests


@pytest.mark.slow
@pytest.mark.parametrize(("nproc", "num_asked"), [(2, 60), pytest.param(4, 200, marks=pytest.mark.soak)])
def test_ranks_take_random_requests_after_the_same_steps(
    nproc: int, num_asked: int, start: ByHand, texts: Project
) -> None:
    """Each rank writes the values of every step; requests come at any time, and pauses and a stop are among them."""
    seldom = {"max_steps": 1_000_000, "epochs": 10_000, "eval_every": 10**6, "checkpoint_every": 10**6}
    config = RECIPES["mlm_pretraining"].config_class(**{**TINY["mlm_pretraining"], **seldom})
    start.script.write_text(script_text(config, _NOTED))
    chance = random.Random(0)

    def ask() -> None:
        eventually(lambda: any(texts.runs.glob("20*/controls.json")))
        files = RunDir(next(texts.runs.glob("20*")))
        for number in range(num_asked):
            rate, every = {"learning_rate": 1e-3 * (number + 1)}, {"log_every": chance.randint(1, 9)}
            if values := chance.choice((rate, rate, {**rate, **every}, {"batch_size": number}, None)):
                write_request(files, values=values)
            else:
                write_request(files, action="pause")
                write_request(files, action="continue")
            time.sleep(chance.uniform(0, 0.1))
            if number % 5 == 4:  # of the requests that are taken after one step, the last rate counts
                eventually(partial(answered, files, number + 1))
        write_request(files, values={"max_steps": None})
        (texts.root / "stop").touch()

    with beside(ask):
        finished = start.ended(start.script, nproc=nproc)
    assert finished[0] == [0] * nproc, finished[1][-3000:]
    first, *others = ((texts.root / f"values-{rank}.txt").read_text() for rank in range(nproc))
    assert {first} == {*others}
    assert len({line.split()[1] for line in first.splitlines()}) > 5, "many rates were taken"


@pytest.mark.slow
def test_a_resume_has_the_values_of_its_checkpoint_and_an_earlier_fork_has_not(texts: Project) -> None:
    values = {"max_steps": 3000, "epochs": 1000, "eval_every": 10**6, "checkpoint_every": 10**6, "log_every": 1}
    more = {"checkpoint_epochs": False, "lr_schedule": "constant", "warmup_ratio": 0.0}
    config = RECIPES["mlm_pretraining"].config_class(**{**TINY["mlm_pretraining"], **values, **more})
    run = launch(write_script(config, "tiny", Launch(nproc_per_node=1, gpus=()), project=texts))
    eventually(lambda: run.files.controls.exists() and run.step > 3)
    assert run.steer("save").endswith(": save")
    assert "learning_rate 0.01 -> 0.002" in run.steer(learning_rate=0.002, max_steps=2000)
    with pytest.raises(ConfigError, match="did you mean learning_rate"):
        run.steer(learning_rat=1.0)
    eventually(lambda: run.checkpoints)
    run.stop()
    first, last = run.checkpoints
    with pytest.raises(LaunchError, match="is STOPPED; only a running training can be steered"):
        run.steer("save")
    child = resume(run, args=["--max-steps", str(last.step + 3)])
    assert child.wait(timeout_s=300) is RunState.SUCCEEDED
    assert {row["train/learning_rate"] for row in rows(child.files)} == {0.002}
    assert child.info["resumed_from"]["changes"].keys() == {"max_steps"}
    fork = resume(run, first.step, changes={"max_steps": first.step + 3})
    assert fork.wait(timeout_s=300) is RunState.SUCCEEDED
    assert {row["train/learning_rate"] for row in rows(fork.files)} == {0.01}
    assert [difference.name for difference in compare_runs(run, fork).differences if "steered" in difference.name] == [
        f"steered.{name} after step {event.step}" for event in run.events for name in [event.field or event.action]
    ]
