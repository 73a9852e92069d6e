"""What the machine measured, as series beside the metrics."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import charts, history

import nbtools as nt
from nbtools.launcher.supervisor import MachineSamples
from nbtools.notebook.panel import tab_html
from nbtools.notebook.plots.system import SystemReader
from nbtools.notebook.plots.view import View
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

ROWS = history({"step": 10 * i, "time": 1000 + i, "samples": 320 * i, "train/loss": 1.0} for i in range(101))


@pytest.fixture
def reader(tmp_path: Path) -> SystemReader:
    return SystemReader(tmp_path / "system.jsonl")


def row(time: float, num_gpus: int = 2, **more: Any) -> str:
    gpus = [{"index": i, "use_percent": 90.0 - i, "memory_bytes": 5e9, "power_w": 300.0} for i in range(num_gpus)]
    return json.dumps({"time": time, "cpu_percent": 50.0, "rss_bytes": 3e9, "gpus": gpus, **more}) + "\n"


def test_rows_of_the_machine_have_the_steps_of_the_metrics_around_them(tmp_path: Path, reader: SystemReader) -> None:
    (tmp_path / "system.jsonl").write_text(row(900) + row(1010.5) + "torn\n[]\n" + row(1050))
    assert reader.read() and reader.num_rows == 3
    series = reader.series(ROWS)
    cpu = series["system/CPU %"]
    assert (cpu.steps.tolist(), cpu.samples.tolist(), cpu.times.tolist()) == ([105, 500], [3360, 16000], [1010.5, 1050])
    assert series["system/GPU memory GB/GPU 1"].values.tolist() == [5.0, 5.0]
    with (tmp_path / "system.jsonl").open("a") as file:
        file.write(row(1060) + row(2000))
    assert reader.read() and not reader.read() and reader.series(ROWS)["system/CPU %"].steps[-1] == 600


def test_the_charts_of_the_machine_are_closed_and_last_until_they_are_opened(
    tmp_path: Path, reader: SystemReader
) -> None:
    (tmp_path / "system.jsonl").write_text("".join(row(1000 + i) for i in range(50)))
    reader.read()
    view = View(ROWS, system=reader.series(ROWS), opened={"system/GPU %": True})
    drawn = charts(view)
    assert [(chart.title, chart.is_open) for chart in drawn.charts] == [
        ("Loss", True),
        ("CPU %", False),
        ("Memory GB", False),
        ("GPU %", True),
        ("GPU memory GB", False),
        ("GPU power W", False),
    ]
    assert [trace.label for trace in drawn.shown[1].series] == ["GPU 0", "GPU 1"]
    assert drawn.shown[1].y[0] == 0
    assert drawn.full == (0, 1000), "the axis is that of the metrics"


def test_many_gpus_are_shown_by_their_mean_and_their_extremes(tmp_path: Path, reader: SystemReader) -> None:
    (tmp_path / "system.jsonl").write_text(row(1000, num_gpus=8))
    reader.read()
    use = {name: values for name, values in reader.newest(9).items() if "GPU %" in name}
    assert use == {"system/GPU %/mean": [86.5], "system/GPU %/least": [83.0], "system/GPU %/greatest": [90.0]}


def test_a_long_record_is_read_from_its_end(tmp_path: Path, reader: SystemReader) -> None:
    (tmp_path / "system.jsonl").write_text("".join(row(1000 + i) for i in range(1000)))
    assert reader.read(is_whole=False) and 150 < reader.num_rows < 300 and len(reader.newest(3)["system/CPU %"]) == 3
    assert reader.read() and reader.num_rows == 1000


def test_the_line_of_small_curves_shows_each_quantity() -> None:
    shown = tab_html.machine({"system/CPU %": [10.0, 43.2], "system/GPU %/GPU 0": [5.0], "system/GPU %/GPU 1": [7.0]})
    assert shown.count("<svg") == 3 and "<b>43%</b>" in shown and "<b>5%</b>" in shown and "GPU 1" in shown
    assert "Nothing has been measured yet" in tab_html.machine({})
    assert "<script" not in tab_html.machine({"system/<script> GB": [float("1e300")]})


@pytest.mark.promise("source")
def test_the_config_tab_shows_the_uncommitted_changes_escaped_and_cut(tmp_path: Path) -> None:
    files = RunDir.create(tmp_path / "runs", "toy")
    write_json(files.launch, {"name": "toy", "code": {"commit": "a" * 40, "lines": 2500, "sha256": "b" * 64}})
    assert "Uncommitted" not in tab_html.config(nt.Run(files))
    files.source.write_text("+<script>alert(1)</script>\n" * 2500)
    shown = tab_html.config(nt.Run(files))
    assert "Uncommitted changes (2,500 lines)" in shown and shown.count("&lt;script&gt;") == 2000
    assert "<script" not in shown and f"500 more lines: nbtools show {files.path.name} --diff" in shown


def test_what_the_supervisor_writes_is_what_is_read(
    tmp_path: Path, reader: SystemReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbtools.machine.processes.started_by", lambda process, run: [process])
    MachineSamples(RunDir(tmp_path)).sample()
    assert reader.read()
    newest = reader.newest(1)
    assert np.isfinite(newest["system/CPU %"][0]) and newest["system/Memory GB"][0] > 0.01
