"""The conditions of `stop_on`: on rows of their own, and in a supervisor that stops real processes."""

import json
import math
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import eventually

from nbtools.config import Launch, StopOn
from nbtools.errors import ConfigError
from nbtools.failures.stop_conditions import StopConditions
from nbtools.machine.processes import members
from nbtools.notebook.panel.html import header
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.run import Run
from nbtools.run.state import RunState, why_stopped
from nbtools.rundir.json_files import read_json, strict_number, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import parse_script, render

PROGRAMS = Path(__file__).parents[1] / "programs"
TRAINER = PROGRAMS / "fake_trainer.py"
Start = Callable[..., Run]
USUAL = StopOn(nan=True, no_improvement=True, loss_above=True).model_dump()


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., dict[str, Any] | None]:
    """Write rows as a recipe's rank 0 does, and return what the conditions find in them."""

    def check(
        rows: Iterable[dict[str, Any]], settings: dict[str, Any], best_by: str = "eval/loss", *, lower: bool = True
    ) -> dict[str, Any] | None:
        run = RunDir(tmp_path)
        write_json(run.launch, {"recipe": "mlm_pretraining"})
        run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return StopConditions(run, settings, best_by, lower=lower).look()

    return check


# --- the conditions ---------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_found_and_a_norm_is_not(found: Callable[..., dict[str, Any] | None]) -> None:
    rows: list[dict[str, Any]] = [
        {"step": 10, "train/loss": 2.5, "train/grad_norm": "Infinity"},  # fp16 skips such a step
        {"step": 20, "train/loss": "NaN"},
    ]
    assert found(rows[:1], {"nan": True}) is None
    hit = found(rows, {"nan": True})
    assert hit is not None
    assert (hit["condition"], hit["step"], hit["metric"], hit["value"]) == ("nan", 20, "train/loss", "NaN")
    assert (hit["finite_step"], hit["sentence"]) == (10, "train/loss is NaN at step 20")


def test_evaluations_are_counted_since_the_best_and_in_its_direction(
    found: Callable[..., dict[str, Any] | None],
) -> None:
    losses = [3.0, 2.0, 2.5, 2.1, 2.0]
    rows = [{"step": step, "eval/loss": loss} for step, loss in enumerate(losses, 1)]
    assert found(rows, {"no_improvement": 4}) is None
    hit = found(rows, {"no_improvement": 3})
    assert hit is not None
    assert hit["sentence"] == "eval/loss has not improved in 3 evaluations (best 2 at step 2)"
    assert found([*rows[:4], *rows[2:4]], {"no_improvement": 3}) is None, "a restarted attempt repeats steps"
    rising = [{"step": step, "eval/return_last": 1.0 * step} for step in range(1, 50)]
    assert found(rising, {"no_improvement": 3}, "eval/return_last", lower=False) is None
    assert found(rising, {"no_improvement": 3}, "eval/return_last", lower=True) is not None


def test_evaluations_of_a_stage_that_trains_another_model_do_not_count(
    found: Callable[..., dict[str, Any] | None],
) -> None:
    rows = [{"step": step, "train/loss": 1.0, "eval/loss": 2.0 / step} for step in range(1, 4)]
    rows += [{"step": step, "train/judge_loss": 0.5, "eval/loss": 0.67} for step in range(4, 40)]
    assert found(rows, {"no_improvement": 3}) is None


def test_a_loss_far_above_its_median_is_found_once_three_of_five_rows_show_it(
    found: Callable[..., dict[str, Any] | None],
) -> None:
    healthy = [{"step": step, "train/loss": 2.0} for step in range(30)]
    spike = {"step": 30, "train/loss": 1000.0}
    assert found([*healthy, spike, spike, *healthy], {"loss_above": 5.0}) is None
    hit = found([*healthy, spike, spike, {"step": 31, "train/loss": 11.0}], {"loss_above": 5.0})
    assert hit is not None
    assert hit["sentence"] == "train/loss is above 5 x 2, its median, at step 31"
    around_zero = [{"step": step, "train/loss": 0.001 * (-1) ** step} for step in range(30)]
    assert found([*around_zero, spike, spike, spike], {"loss_above": 5.0}) is None


def test_a_time_budget_is_over(tmp_path: Path) -> None:
    hit = StopConditions(RunDir(tmp_path), {"time_budget_h": 1e-15}).look()  # less than a clock tick
    assert hit is not None
    assert hit["condition"] == "time_budget_h"
    assert StopConditions(RunDir(tmp_path), {"time_budget_h": 5.0, "nan": False}).look() is None


@pytest.mark.promise("fault-34")
@pytest.mark.parametrize("kind", ["falling", "memorized", "plateau"])
@pytest.mark.parametrize("seed", range(5))
def test_the_usual_values_give_no_false_alarm_on_noisy_healthy_curves(
    found: Callable[..., dict[str, Any] | None], kind: str, seed: int
) -> None:
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for step in range(1, 1500):
        level = {"falling": 8 * step**-0.3, "memorized": 0.01 + 3 * math.exp(-step / 200), "plateau": 2.0}[kind]
        spike = 30.0 if chance.random() < 0.005 else 1.0
        rows.append({"step": step, "train/loss": level * chance.lognormvariate(0, 0.4) * spike})
        rows[-1]["train/grad_norm"] = strict_number(math.inf if step % 100 == 0 else 1.0)
        if step % 100 == 0:
            rows[-1]["eval/loss"] = level * chance.lognormvariate(0, 0.1)
    assert found(rows, USUAL) is None


# --- the settings -----------------------------------------------------------------------------------


def test_conditions_are_written_into_a_script_and_read_back(tmp_path: Path) -> None:
    launch = Launch(stop_on={"nan": True, "no_improvement": True}, on_end=("notify-send", "{sentence}"))
    assert launch.stop_on == StopOn(nan=True, no_improvement=20)
    path = tmp_path / "x.py"
    path.write_text(render(MLMPretrainingConfig(), "x", launch))
    script = parse_script(path)
    assert (script.launch, script.hand_edited) == (launch, False)
    path.write_text(render(MLMPretrainingConfig(), "x").replace("stop_on=None", 'stop_on={"nan": True}'))
    assert parse_script(path).launch.stop_on == StopOn(nan=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stop_on": {"nann": True}}, "StopOn has no such field; did you mean nan"),
        ({"stop_on": {"no_improvement": 0}}, "no_improvement=0: must be >= 1"),
        ({"stop_on": {"loss_above": 1.0}}, r"loss_above=1\.0: must be > 1"),
        ({"stop_on": {"time_budget_h": True}}, "True is a truth value, not a number"),
        ({"on_end": "echo done"}, "give a list of words, since no shell divides it"),
        ({"on_end": ("sh", "-c", "echo {sentence}")}, "must be an argument of its own"),
        ({"on_end": ("{sentence}",)}, "must begin with a program"),
    ],
)
def test_a_wrong_condition_or_command_is_refused_with_what_is_allowed(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Launch(**given)


# --- in the supervisor ------------------------------------------------------------------------------


@pytest.mark.promise("fault-34")
def test_a_nan_stops_all_ranks_with_a_checkpoint_and_the_run_says_why(supervised: Start) -> None:
    fake = [sys.executable, PROGRAMS / "fake_agent.py", "--nproc-per-node=2", "--shutdown-timeout=5"]
    options = ["--nan-from", "25", "--checkpoint-every", "10", "--steps", "100000"]
    run = supervised(*fake, TRAINER, *options, launch={"stop_on": {"nan": True}})
    assert run.wait(timeout_s=180) is RunState.STOPPED
    ended = read_json(run.files.exit)
    assert ended is not None
    stopped_on = ended["stopped_on"]
    assert (stopped_on["condition"], stopped_on["step"], stopped_on["value"]) == ("nan", 25, "NaN")
    assert stopped_on["checkpoint"] == "step-000020"
    said = "train/loss is NaN at step 25; last checkpoint before it: step-000020"
    assert why_stopped(run.records) == run.summary()["stopped_on"] == said
    assert said in header("tiny", run.id, "STOPPED", (), f"by stop_on: {said}")
    assert run.checkpoints[-1].step > 25, "the stop saves one too"
    eventually(lambda: not members(run.files))  # the supervisor ends after it has recorded the end


def test_a_run_that_ends_by_itself_has_no_condition_in_its_record(supervised: Start) -> None:
    run = supervised(sys.executable, TRAINER, "--steps", "3", launch={"stop_on": USUAL})
    assert run.wait(timeout_s=60) is RunState.SUCCEEDED
    assert "stopped_on" not in (read_json(run.files.exit) or {})
    assert run.summary()["stopped_on"] == ""


@pytest.mark.promise("fault-34")
@pytest.mark.parametrize(
    ("opens", "prints"),
    [
        ("file = None", "f'step {step} loss {loss}'"),
        (
            "folder = os.environ['TENSORBOARD_LOGGING_DIR']\nos.makedirs(folder)\nfile = open(f'{folder}/x.jsonl','w')",
            "json.dumps({'step': step, 'loss': loss})",
        ),
    ],
    ids=["printed", "jsonl"],
)
def test_a_nan_that_a_script_prints_or_writes_stops_it(
    supervised: Start, tmp_path: Path, opens: str, prints: str
) -> None:
    script = tmp_path / "prints.py"
    script.write_text(
        f"import json, os, time\n{opens}\nfor step in range(1, 10_000):\n    time.sleep(0.05)\n"
        f"    loss = 2.5 if step < 20 else float('nan')\n    print({prints}, file=file, flush=True)\n"
    )
    run = supervised(sys.executable, script, launch={"stop_on": {"nan": True}})
    assert run.wait(timeout_s=60) is RunState.STOPPED
    stopped_on = (read_json(run.files.exit) or {})["stopped_on"]
    assert stopped_on["condition"] == "nan" and stopped_on["metric"].endswith("loss")
    assert stopped_on["step"] >= 20
    reader = {"nbtools.metrics.readers.print_rows", str(run.dir)}
    eventually(lambda: not any(reader <= {*(one.info["cmdline"] or ())} for one in psutil.process_iter(["cmdline"])))
