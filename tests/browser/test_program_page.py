"""The panel of a program of the user's: its checkpoints, and the run that continues from one of them."""

from pathlib import Path
from typing import Any

import pytest
from pages import see

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PROGRAMS = Path(__file__).parents[1] / "programs"
LAUNCH = """import nbtools as nt
run = nt.launch({path!r}, torchrun=False, gpus=(), args={args!r})
nt.LivePlot(run)"""


def test_a_program_is_resumed_with_other_arguments_from_its_panel(notebook: Any, eventually: Any) -> None:
    args = ["--steps", "60", "--every", "20", "--out-dir", "saved"]
    source = LAUNCH.format(path=str(PROGRAMS / "saves.py"), args=args)
    notebook.open(notebook.lab.write_notebook("program.ipynb", source))
    notebook.run_cell(0)
    panel = notebook.output(0)
    see(panel, "SUCCEEDED")
    panel.locator(".nbt-chart").first.wait_for()
    panel.get_by_role("tab", name="Checkpoints").click()
    see(panel, "saved/ckpt_step60.pt")
    notebook.shoot("program-checkpoints", panel)
    panel.get_by_role("button", name="Verify").click()
    see(panel, "3 of 3 checkpoints whole")
    panel.get_by_role("button", name="Continue from here…").nth(1).click()
    chosen = panel.get_by_label("Continue from")
    eventually(lambda: "ckpt_step40" in chosen.evaluate("box => box.selectedOptions[0].text"), "the row is chosen")
    panel.get_by_label("Arguments").fill("--steps 90")
    see(panel, "Resume adds the arguments --steps 90")
    notebook.shoot("program-fork", panel)
    panel.get_by_role("button", name="Start").click()
    see(panel, "at step 40: adds the arguments --steps 90")
    see(panel, "SUCCEEDED")
    see(panel, "saved/ckpt_step80.pt")
    notebook.shoot("program-resumed", panel)
    assert notebook.mistakes == []


def test_a_program_without_known_words_says_why_it_cannot_resume(notebook: Any, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "for step in range(9): print('step', step, 'loss', 9.0 - step)\nopen('plain_last.ckpt', 'w').write('x')\n"
    )
    notebook.open(notebook.lab.write_notebook("plain.ipynb", LAUNCH.format(path=str(tmp_path / "plain.py"), args=[])))
    notebook.run_cell(0)
    panel = notebook.output(0)
    see(panel, "SUCCEEDED")
    panel.get_by_role("tab", name="Checkpoints").click()
    see(panel, "plain_last.ckpt")
    see(panel, "no argument of plain.py is known to resume it; name one")
    for name in ("Resume", "Start"):
        assert panel.get_by_role("button", name=name).is_disabled()
    notebook.shoot("program-without-words", panel)
    assert notebook.mistakes == []
