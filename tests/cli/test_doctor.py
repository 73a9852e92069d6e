"""Doctor: what older guides' troubleshooting pages ask for by hand is looked at, with the next step."""

import os
import sys
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch

from nbtools.cli import doctor
from nbtools.machine import devices, slurm
from nbtools.machine.devices import Device

from slurm_cluster import SlurmCluster

FACTS = {"version": "2.13.0", "build": "13.0", "error": "", "num_gpus": 1, "gloo": True, "nccl": True}
GPU = Device(0, "GPU-1", "NVIDIA H200", 10**11, 0, (), "0")


@pytest.mark.promise("safety-wheel")
@pytest.mark.parametrize(("name", "is_other"), [("nbtools", True), ("nbtools.fork", True), ("nbtools_ddp", False)])
def test_another_distribution_of_this_name_is_a_problem(
    tmp_path: Path, monkeypatch: MonkeyPatch, name: str, is_other: bool
) -> None:
    """The package index has another project called nbtools; its wheel has these files, and no top_level.txt."""
    assert [finding.level for finding in doctor._versions() if finding.subject == "nbtools"] == ["ok"]
    (tmp_path / "nbtools").mkdir()
    for file in ("__init__.py", "uibuilder.py"):
        (tmp_path / "nbtools" / file).touch()  # Python 3.12 ignores files that are listed and missing
    info = tmp_path / f"{name}-24.8.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.3\nName: {name}\nVersion: 24.8.0\nRequires-Python: >=3.6\n")
    files = ["nbtools/__init__.py", "nbtools/uibuilder.py", f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    found = [finding for finding in doctor._versions() if finding.subject == "nbtools"]
    assert [finding.level for finding in found] == ["ok", *["problem"] * is_other]
    assert not is_other or f"the distribution {name} 24.8.0 is another project" in found[1].text
    assert not is_other or found[1].next_step.startswith(f"pip uninstall {name}, ")


@pytest.mark.parametrize("has_extension", [True, False])
def test_a_server_without_anywidget_is_a_warning(tmp_path: Path, monkeypatch: MonkeyPatch, has_extension: bool) -> None:
    pytest.importorskip("anywidget")
    (program := tmp_path / "jupyter").write_text(f'#!/bin/sh\necho \'{{"data": ["{tmp_path}"]}}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if has_extension:
        (folder := tmp_path / "labextensions/anywidget").mkdir(parents=True)
        (folder / "package.json").write_text('{"version": "0.11.0"}')
    _, finding = doctor._front_ends()
    assert finding.level == ("ok" if has_extension else "warn")
    assert has_extension or f"none of the server's folders has it: {tmp_path}/labextensions" in finding.text
    assert has_extension or finding.next_step.startswith("pip install -U anywidget where JupyterLab runs")


@pytest.mark.parametrize(("version", "level"), [("5.0.16", "ok"), ("4.0.1", "problem")])
def test_widgets_of_another_protocol_are_a_problem(
    tmp_path: Path, monkeypatch: MonkeyPatch, version: str, level: str
) -> None:
    monkeypatch.setattr(doctor, "_extension_folders", lambda: [str(tmp_path)])
    monkeypatch.setattr(doctor, "_version", {"ipywidgets": "8.1.9"}.get)
    (folder := tmp_path / "@jupyter-widgets/jupyterlab-manager").mkdir(parents=True)
    (folder / "package.json").write_text(f'{{"version": "{version}"}}')
    assert next(doctor._front_ends()).level == level


def test_a_kernel_without_anywidget_is_a_warning_with_the_command(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # where distributions are looked for
    _, finding = doctor._front_ends()
    assert finding.level == "warn" and finding.text == "anywidget is not installed: no panel"
    assert finding.next_step == 'pip install -e ".[notebook]"'


@pytest.mark.promise("guide-L2", "guide-A14")
def test_nccl_is_told_with_its_version_and_a_build_without_it_is_no_error(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "driver_version", lambda: "580.1")
    told = {finding.subject: finding.text for finding in doctor._torch([GPU], {**FACTS, "nccl_version": "2.27.3"})}
    assert told["nccl"] == "available 2.27.3 (GPU collectives)"
    facts = {**FACTS, "nccl": False, "num_gpus": 0, "build": None, "nccl_version": ""}
    assert "nccl" not in {finding.subject for finding in doctor._torch([], facts)}


@pytest.mark.needs("slurm")
def test_slurm_is_told_with_its_version_or_why_it_does_not_answer(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (told,) = doctor._slurm()
    assert told.level == "ok" and told.text.startswith("2")
    assert ", cluster nbtools; 30 sec from SIGTERM to SIGKILL" in told.text
    monkeypatch.setattr(slurm, "_queues", {})
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    (silent,) = doctor._slurm()
    assert silent.level == "warn" and "SLURM_CONF=/nowhere/slurm.conf: cannot be read" in silent.text


def test_nothing_is_told_of_slurm_where_it_is_not_installed(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert list(doctor._slurm()) == []


OF_GPUS = """
import pytest
pytestmark = pytest.mark.gpu
def test_a(record_property): record_property("peak", "2 GB")
def test_b(): assert 1 == 2
def test_c(): pytest.skip("needs two GPUs")
"""


def test_tests_of_gpus_are_findings_with_figures_and_what_was_left_out(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    (folder := tmp_path / "tests" / "gpu").mkdir(parents=True)
    (folder / "test_x.py").write_text(OF_GPUS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    monkeypatch.setattr(doctor, "_GPU_TESTS", folder)
    passed, failed, skipped = doctor._gpu_tests()
    assert [each.level for each in (passed, failed, skipped)] == ["ok", "problem", "warn"]
    assert passed.text.startswith("test_x.py::test_a (") and passed.text.endswith(" s, peak 2 GB)")
    assert failed.text.endswith(": assert 1 == 2") and failed.next_step.endswith("tests/gpu/test_x.py::test_b")
    assert (skipped.text, skipped.next_step) == ("test_x.py::test_c: left out", "needs two GPUs")
    monkeypatch.setattr(doctor, "_GPU_TESTS_S", 0.01)
    assert next(doctor._gpu_tests()).text.startswith("stopped after 0.01 s: the tests that are not listed here")
