"""What the machine measured, in the System tab."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbtools as nt
from nbtools.launcher.supervisor import MachineSamples
from nbtools.notebook import run_html
from nbtools.notebook.panel.snapshot import SystemReader
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir


@pytest.fixture
def reader(tmp_path: Path) -> SystemReader:
    return SystemReader(tmp_path / "system.jsonl")


def row(time: float, num_gpus: int = 2, **more: Any) -> str:
    gpus = [{"index": i, "use_percent": 90.0 - i, "memory_bytes": 5e9, "power_w": 300.0} for i in range(num_gpus)]
    return json.dumps({"time": time, "cpu_percent": 50.0, "rss_bytes": 3e9, "gpus": gpus, **more}) + "\n"


def test_rows_are_read_as_they_come_and_torn_ones_are_skipped(tmp_path: Path, reader: SystemReader) -> None:
    (tmp_path / "system.jsonl").write_text(row(900) + row(1010.5) + "torn\n[]\n" + row(1050))
    assert reader.read() and reader.values["GPU memory GB/GPU 1"] == [5.0] * 3
    with (tmp_path / "system.jsonl").open("a") as file:
        file.write(row(1060))
    assert reader.read() and not reader.read() and reader.values["CPU %"] == [50.0] * 4


def test_many_gpus_are_shown_by_their_mean_and_their_extremes(tmp_path: Path, reader: SystemReader) -> None:
    (tmp_path / "system.jsonl").write_text(row(1000, num_gpus=8))
    reader.read()
    use = {name: values for name, values in reader.values.items() if "GPU %" in name}
    assert use == {"GPU %/mean": [86.5], "GPU %/least": [83.0], "GPU %/greatest": [90.0]}


def test_the_line_of_small_curves_shows_each_quantity() -> None:
    shown = run_html.machine({"CPU %": [10.0, 43.2], "GPU %/GPU 0": [5.0], "GPU %/GPU 1": [7.0]})
    assert shown.count("<svg") == 3 and "<b>43%</b>" in shown and "<b>5%</b>" in shown and "GPU 1" in shown
    assert "Nothing has been measured yet" in run_html.machine({})
    assert "<script" not in run_html.machine({"<script> GB": [float("1e300")]})
    long = run_html.machine({"CPU %": [0.0] * 5000 + [90.0] * 5000})
    points = re.findall(r"[\d.]+,([\d.]+)", long)
    assert len(points) == 120 and float(points[0]) > float(points[-1]), "the whole run"


@pytest.mark.promise("source")
def test_the_config_tab_shows_the_uncommitted_changes_escaped_and_cut(tmp_path: Path) -> None:
    files = RunDir.create(tmp_path / "runs", "toy")
    write_json(files.launch, {"name": "toy", "code": {"commit": "a" * 40, "lines": 2500, "sha256": "b" * 64}})
    assert "Uncommitted" not in run_html.config(nt.Run(files))
    files.source.write_text("+<script>alert(1)</script>\n" * 2500)
    shown = run_html.config(nt.Run(files))
    assert "Uncommitted changes (2,500 lines)" in shown and shown.count("&lt;script&gt;") == 2000
    assert "<script" not in shown and f"500 more lines: nbtools show {files.path.name} --diff" in shown


def test_what_the_supervisor_writes_is_what_is_read(
    tmp_path: Path, reader: SystemReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbtools.machine.processes.started_by", lambda process, run: [process])
    MachineSamples(RunDir(tmp_path)).sample()
    assert reader.read()
    assert np.isfinite(reader.values["CPU %"][0]) and reader.values["Memory GB"][0] > 0.01
