"""Which patterns read the log of a run: the newest of the launch's and the user's decision."""

import json
from pathlib import Path
from typing import Any

from nbtools.metrics.printed.run_patterns import curve_patterns, curves_at_launch, log_metrics
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.user_config import config_folder, update_user_config

OWN, OTHER = "iter {step}: loss {train/loss}", "iter {step}: loss {eval/loss}"


def launched(at: float, curves: object = (OWN,)) -> dict[str, Any]:
    return {"root": "/p", "script": "/p/train.py", "time": at, "curves": curves and [*curves]}  # type: ignore[misc]


def decide(curves: list[str], at: float, *, in_script: bool = False) -> None:
    entry = {"/p/train.py": {"curves": curves, "time": at, "in_script": in_script}}
    update_user_config("curves", lambda content: content.update({"/p": entry}))


def test_the_newest_of_launch_and_decision_counts() -> None:
    assert curve_patterns(launched(10.0)) == (OWN,)
    decide([OTHER], at=20.0)
    assert curve_patterns(launched(10.0)) == (OTHER,), "a wrong name was corrected"
    assert curve_patterns(launched(30.0)) == (OWN,), "a later launch has its own"
    decide([], at=40.0)
    assert curve_patterns(launched(10.0)) == (), "the curve was removed"
    assert curve_patterns({**launched(10.0), "script": "/p/other.py"}) == (OWN,)


def test_a_launch_records_the_decision_unless_the_launcher_script_has_it() -> None:
    assert curves_at_launch((OWN,), "/p", "/p/train.py") == [OWN]
    decide([OTHER], at=20.0)
    assert curves_at_launch((), "/p", "/p/train.py") == [OTHER]
    assert curves_at_launch((OWN, OTHER), "/p", "/p/train.py") == [OTHER, OWN]
    decide([OTHER], at=20.0, in_script=True)
    assert curves_at_launch((OWN,), "/p", "/p/train.py") == [OWN], "the script may have been changed since"


def test_damaged_files_give_no_patterns(tmp_path: Path) -> None:
    decide([OTHER], at=20.0)
    (config_folder() / "curves.json").write_text("{")
    run = RunDir(tmp_path)
    run.templates.write_text("[1]")
    run.log.write_text("iter 5: loss 0.5\n")
    assert [*log_metrics(run, launched(10.0)).poll()] == ["train/loss"]
    (config_folder() / "curves.json").write_text(json.dumps({"/p": {"/p/train.py": [OTHER]}}))
    assert curve_patterns(launched(10.0, None)) == ()


def test_templates_of_the_run_directory_read_its_log(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_json(run.templates, {"templates": ["<{step}> {train/loss} zzz", 7]})
    run.log.write_text("<5> 0.5 zzz\n<6> 0.25 zzz\n")
    metrics = log_metrics(run, {})
    assert metrics.poll()["train/loss"].values.tolist() == [0.5, 0.25]
    assert [kind.source for kind in metrics.kinds] == ["template"]
