"""The conditions of `stop_on` and `notify_on`: on rows of their own, and in a supervisor of real processes."""

import json
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import MonkeyPatch, Start
from launched import TRAINER, agent, at_step
from waiting import eventually

from nbtools.config import Launch, NotifyOn, StopOn
from nbtools.errors import ConfigError, LaunchError
from nbtools.failures import notify
from nbtools.failures.stop_conditions import NoticeConditions, StopConditions
from nbtools.machine.processes import members
from nbtools.notebook.panel.html import header
from nbtools.notebook.plots.view import view_of
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.run import Run
from nbtools.run.state import RunState, why_stopped
from nbtools.rundir.json_files import read_json, strict_number, write_json
from nbtools.rundir.requests.conditions import NONE_SET, conditions_of
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import parse_script, render
from nbtools.steering import Request
from nbtools.user_config import update_user_config

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


def processes_about(run: Run, *words: str) -> list[psutil.Process]:
    """Return the processes whose command has the path of a run, and these words."""
    every = psutil.process_iter(["cmdline"])
    return [one for one in every if {str(run.dir), *words} <= {*(one.info["cmdline"] or ())}]


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
    launch = Launch(stop_on={"nan": True, "no_improvement": True}, notify_on={"values": ("a<.5",)}, on_end=("true",))
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
        ({"notify_on": {"values": ["eval/loss <"]}}, "each must be METRIC < NUMBER or METRIC > NUMBER"),
        ({"on_end": "echo done"}, "give a list, for a command of words"),
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
    options = ["--nan-from", "25", "--checkpoint-every", "10", "--steps", "100000"]
    run = supervised(*agent(TRAINER, *options), launch={"stop_on": {"nan": True}})
    assert run.wait(timeout_s=300) is RunState.STOPPED
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


def test_a_run_that_ends_by_itself_has_no_condition_and_needs_no_notifier(supervised: Start) -> None:
    run = supervised(sys.executable, TRAINER, "--steps", "60", launch={"stop_on": USUAL, "notify_on": USUAL})
    eventually(lambda: processes_about(run, "nbtools.failures.notify"))
    processes_about(run, "nbtools.failures.notify")[0].kill()
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
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
    assert run.wait(timeout_s=300) is RunState.STOPPED
    stopped_on = (read_json(run.files.exit) or {})["stopped_on"]
    assert stopped_on["condition"] == "nan" and stopped_on["metric"].endswith("loss")
    assert stopped_on["step"] >= 20
    eventually(lambda: not processes_about(run, "nbtools.metrics.readers.print_rows"))


# --- notices ----------------------------------------------------------------------------------------


@pytest.fixture
def posted() -> Iterator[list[Any]]:
    """What a server gets, which is the user's address and answers with the number in the path; first its address."""
    bodies: list[Any] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            time.sleep(3 if self.path.endswith("late") else 0)
            self.send_response(int(self.path[1:4]))
            self.send_header("Location", "/204/elsewhere")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever).start()
        bodies.append({"address": f"http://127.0.0.1:{server.server_port}"})
        update_user_config(notify.CONFIG, lambda kept: kept.update(address=f"{bodies[0]['address']}/204/secret"))
        yield bodies
        server.shutdown()


def test_all_conditions_of_a_notice_are_found(found: Callable[..., object], tmp_path: Path) -> None:
    found([{"step": 1, "train/loss": 2, "eval/loss": 1}, {"step": 2, "train/loss": "NaN", "eval/loss": 3}], {})
    limits = ["train/loss < 1e9", "eval/loss > 2", "eval/loss < 0.5"]
    settings = {"nan": True, "no_improvement": 1, "stalled_min": 1e-9, "values": limits}
    conditions = NoticeConditions(RunDir(tmp_path), settings, "eval/loss")
    kinds = [notice["condition"] for _ in range(2) for notice in conditions.found()]
    assert kinds == ["train/loss < 1e9", "nan", "no_improvement", "eval/loss > 2", "stalled_min"]


def test_rows_before_a_change_count_and_tell_nothing(found: Callable[..., object], tmp_path: Path) -> None:
    found([{"step": step, "time": step, "eval/loss": step} for step in range(1, 5)], {})
    settings = {"no_improvement": 2, "values": ["eval/loss > 0", "train/loss > 0"]}
    conditions = NoticeConditions(RunDir(tmp_path), settings, since=4)
    notices = [notice["sentence"] for notice in conditions.found()]
    has_not = "eval/loss has not improved in 2 evaluations (best 1 at step 1)"
    assert notices == [has_not, "eval/loss is 4 at step 4, above 0"] and conditions.unseen == {"train/loss"}
    tmp_path.joinpath("ranks").touch()
    with pytest.raises(OSError, match="Not a directory"):  # as on a full disk: what is not on record does not change
        notify.Notifier(RunDir(tmp_path), "x", ()).changes(Request("a", values={"ended": True}), NONE_SET, 1)
    assert json.loads(NotifyOn().model_dump_json()) == conditions_of(RunDir(tmp_path)) == NONE_SET


def test_the_owner_changes_the_conditions_of_a_program_that_runs(supervised: Start, posted: Any) -> None:
    run = supervised(sys.executable, TRAINER, "--steps", "100000")
    at_step(run, 1, 1)
    said = run.steer(notify_on={"values": ["train/loss < 2"], "ended": True}, timeout_s=300)
    assert said.endswith("notify_on.values [] -> ['train/loss < 2'], notify_on.ended False -> True")
    eventually(lambda: [body["kind"] for body in posted[1:]] == ["train/loss < 2"])
    link, large, *others = [run.files.notice_requests / f"1769868153250000000-{part * 12}.json" for part in "abcde"]
    link.symlink_to(run.files.launch)
    large.write_text("x" * 5000)
    forged: Any = {"values": {"address": "http://127.0.0.1:1/"}}, {"values": {"ended": 1}}, {"action": "save"}
    for path, content in zip(others, forged, strict=True):
        write_json(path, content)
    eventually(lambda: len([line for line in run.summary()["notices"] if " refused: " in line]) == 5)
    in_force = {**NONE_SET, "values": ["train/loss < 2"], "ended": True}
    assert (conditions_of(run.files), view_of(run).limits) == (in_force, [("train/loss", "<", "2")])
    with pytest.raises(ConfigError, match=r"address'=.*is no condition of notify_on; nan, ended, failed are True or"):
        run.steer(notify_on={"address": "http://127.0.0.1:1/"})
    with pytest.raises(LaunchError, match="takes no requests"):
        run.steer("save")
    run.stop()
    eventually(lambda: posted[-1]["kind"] == "ended")


def test_a_post_that_fails_is_explained_without_its_address(posted: Any, monkeypatch: MonkeyPatch) -> None:
    no_address = "notify.json of the user's configuration has no address that begins with https:// or http://"
    for address, why in (
        ("{}/302/secret", "the server answered 302, a redirect, which is not followed"),
        ("{}/500/secret", "the server answered 500"),
        ("{}/204/secret/late", "the server did not answer within 1 s"),
        ("http://127.0.0.1:1/secret", "the server was not reached (ConnectionRefusedError)"),
        ("http://127.0.0.1/ secret", "the server was not reached (InvalidURL)"),
        ("file:///secret", no_address),
    ):
        update_user_config(notify.CONFIG, lambda kept, to=address: kept.update(address=to.format(posted[0]["address"])))
        monkeypatch.setattr(notify, "_POST_WITHIN_S", 1.0 if address.endswith("late") else 60.0)
        assert notify.post({"kind": "test"}) == why


@pytest.mark.parametrize(("option", "kind"), [("--steps", "ended"), ("--fail-at", "failed")])
def test_a_run_tells_its_end_and_leaves_no_process(supervised: Start, posted: Any, option: str, kind: str) -> None:
    words = [sys.executable, "-c", "import sys; sys.exit('{sentence}' in sys.argv or 3)", "{sentence}"]
    settings = {"ended": True, "failed": True, "values": ["train/loss > 0", "no/metric < 1"]}
    run = supervised(sys.executable, TRAINER, option, "3", launch={"notify_on": settings}, notify_with=words)
    state = run.wait(timeout_s=300, check=False)
    eventually(lambda: not processes_about(run))
    assert [body["kind"] for body in posted[1:]] == ["train/loss > 0", kind, "no no/metric"]
    assert posted[2]["text"].startswith(f"Run fake {state.lower()} after ")
    assert [line.endswith(" ended with exit code 3") for line in run.summary()["notices"]].count(True) == 1
    assert not any(b"/secret" in path.read_bytes() for path in run.dir.rglob("*") if path.is_file())
