"""What the tests on a GPU share: a device, and a record of the whole run that can be pasted into README.md."""

import datetime
import gc
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbtools.machine.devices import driver_version

RECORD = os.environ.get("NBTOOLS_GPU_RECORD")
"""File that the record is written to; None for no record."""

_reports: list[pytest.TestReport] = []


@pytest.fixture
def fresh_memory() -> Callable[[], None]:
    """Free what an earlier test left, and count the peak from here on; the test may call it again."""

    def free() -> None:
        import torch

        # The frames of a failed test hold its model.
        for name in ("last_exc", "last_traceback", "last_type", "last_value"):
            vars(sys).pop(name, None)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    free()
    return free


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed:
        _reports.append(report)


def pytest_sessionfinish() -> None:
    if RECORD and _reports:
        Path(RECORD).write_text(_record(_reports), encoding="utf-8")


def _record(reports: list[pytest.TestReport]) -> str:
    """Render a section for README.md: the machine, then a row per test."""
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    versions = f"Driver {driver_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    versions += f", Python {platform.python_version()}"
    num_failed = sum(report.failed for report in reports)
    seconds = sum(report.duration for report in reports)
    lines = [
        f"### {datetime.date.today()}: {name}",
        "",
        f"{versions}. {len(reports)} tests in {seconds:.0f} s, {num_failed} failed.",
        "",
        "| test | outcome | seconds | figures |",
        "|---|---|---|---|",
    ]
    for report in reports:
        figures = ", ".join(f"{key} {value}" for key, value in report.user_properties)
        test = report.nodeid.removeprefix("tests/gpu/")
        lines.append(f"| `{test}` | {report.outcome} | {report.duration:.1f} | {figures} |")
    return "\n".join(lines) + "\n"
