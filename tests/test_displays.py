"""What the public objects show: short texts, tables of escaped text, tables for other programs, one line per error."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch

import nbtools as nt
from nbtools.errors import ConfigError
from nbtools.launcher.checks.findings import Findings, problem
from nbtools.metrics import history
from nbtools.project import Project
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

ROWS = [
    {"step": 1, "time": 1.0, "train/loss": 3.0},
    {"step": 2, "time": 2.0, "train/loss": "NaN"},
    {"step": 3, "time": 3.0, "train/loss": 1.0, "eval/loss": 2.0},
]


@pytest.fixture
def run(project: Project) -> nt.Run:
    files = RunDir.create(project.runs, "toy")
    write_json(files.launch, {"name": "toy", "recipe": "mlm_pretraining", "time": 1.0})
    files.metrics.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    folder = files.checkpoint(3)
    folder.mkdir()
    write_json(folder / "manifest.json", {"step": 3, "time": 1.0, "files": {"x": {}}, "metrics": {"eval/loss": 2.0}})
    return nt.Run(files.path)


@pytest.mark.promise("objects")
def test_a_history_is_a_mapping_that_becomes_a_table_of_other_programs(run: nt.Run, tmp_path: Path) -> None:
    found = run.history
    assert isinstance(found, Mapping)
    assert (len(found), [*found.keys()], found.get("none")) == (2, ["train/loss", "eval/loss"], None)
    assert found == found and found != nt.History() and not nt.History()
    found.to_csv(tmp_path / "history.csv")
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["step", "train/loss", "eval/loss"], ["1", "3.0", ""], ["2", "nan", ""], ["3", "1.0", "2.0"]]
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert frame.equals(pandas.read_csv(tmp_path / "history.csv", index_col="step"))
    assert frame["train/loss"].isna().tolist() == [False, True, False]
    assert nt.History().to_pandas().empty


def test_a_table_without_pandas_is_an_error_that_names_it(run: nt.Run, monkeypatch: MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(history, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install pandas; to_csv\(path\) needs nothing"):
        run.history.to_pandas()


@pytest.mark.promise("objects")
def test_runs_are_equal_by_their_directory(run: nt.Run, project: Project) -> None:
    other = nt.Run(RunDir.create(project.runs, "toy"))
    assert run == nt.Run(str(run.dir)) and run != other and run != run.id
    assert len({run, nt.Run(run.dir), other}) == 2


@pytest.mark.promise("objects")
def test_public_objects_have_a_short_text_and_an_escaped_table(run: nt.Run, project: Project) -> None:
    config = MLMPretrainingConfig(batch_size=3)
    findings = Findings([problem("GPU", "<b>none</b>", "install one")])
    plan = nt.clean(state="lost", project=project)
    things = [run, run.history, run.checkpoints[0], RECIPES, nt.Launch(nproc_per_node=2), config, findings, plan]
    things += [nt.Program(script="<b>none.py"), nt.Slurm(preamble="<b>none"), nt.StopOn(nan=True)]
    for thing in things:
        assert 0 < len(repr(thing)) < 300
        html = thing._repr_html_()  # type: ignore[attr-defined]
        assert html.startswith("<") and "<b>none" not in html
    assert repr(config) == "MLMPretrainingConfig(batch_size=3)"
    assert eval(repr(config), {"MLMPretrainingConfig": MLMPretrainingConfig}) == config
    assert repr(run.checkpoints[0]) == "Checkpoint('step-000003', eval/loss 2)"
    assert "problem  GPU" in repr(findings)


@pytest.mark.promise("objects")
def test_clean_lists_what_it_would_remove_and_removes_it_when_asked(run: nt.Run, project: Project) -> None:
    write_json(run.files.exit, {"returncode": 1, "stopped": False, "time": 2.0})
    plan = nt.clean(state="failed", project=project)
    assert [item.path for item in plan.items] == [run.dir] and run.dir.exists()
    assert plan.remove().startswith("removed 1 item")
    assert not run.dir.exists()
    with pytest.raises(ConfigError, match="must be one of STOPPED, SUCCEEDED, FAILED, LOST"):
        nt.clean(state="RUNNING", project=project)


@pytest.mark.promise("objects")
def test_an_error_of_nbtools_is_one_line_in_a_notebook(project: Project) -> None:
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(cwd=str(project.root))
    try:
        said = []
        code = "import nbtools as nt\nnt.Run('nothing')"
        reply = client.execute_interactive(code, output_hook=said.append, timeout=300)
        assert reply["content"]["status"] == "error"
        (error,) = [message["content"] for message in said if message["msg_type"] == "error"]
        assert len(error["traceback"]) == 1
        assert error["traceback"][0].startswith("RunNotFoundError: run 'nothing': no run in ")
        client.execute_interactive("1 / 0", output_hook=said.append, timeout=300)
        (other,) = [m["content"] for m in said if m["msg_type"] == "error" and m["content"]["ename"] != error["ename"]]
        assert len(other["traceback"]) > 1, "other errors keep theirs"
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
