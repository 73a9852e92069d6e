"""The panel of a program of the user's: its checkpoints, and the run that continues from one of them."""

from pathlib import Path
from typing import Any

import pytest
from pages import choose_checkpoint, see

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PROGRAMS = Path(__file__).parents[1] / "programs"
LAUNCH = """import nbtools as nt
run = nt.launch({path!r}, torchrun=False, gpus=(), args={args!r})
nt.LivePlot(run)"""


def test_a_program_is_resumed_with_other_arguments_from_its_panel(notebook: Any) -> None:
    args = ["--steps", "60", "--every", "20", "--out-dir", "saved"]
    source = LAUNCH.format(path=str(PROGRAMS / "saves.py"), args=args)
    panel = notebook.run("program.ipynb", source)
    see(panel, "SUCCEEDED")
    panel.locator(".nbt-chart").first.wait_for()
    panel.get_by_role("tab", name="Checkpoints").click()
    see(panel, "saved/ckpt_step60.pt")
    notebook.shoot("program-checkpoints", panel)
    panel.get_by_role("button", name="Verify").click()
    see(panel, "3 of 3 checkpoints whole")
    choose_checkpoint(panel, "ckpt_step40")
    panel.get_by_label("Arguments").fill("--steps 90")
    see(panel, "Resume adds the arguments --steps 90")
    notebook.shoot("program-fork", panel)
    panel.get_by_role("button", name="Start").click()
    see(panel, "at step 40: adds the arguments --steps 90")
    see(panel, "SUCCEEDED")
    see(panel, "saved/ckpt_step80.pt")
    notebook.shoot("program-resumed", panel)
    assert notebook.mistakes == []
