"""Steps of a program's checkpoints: exact where a name says one, else about that of the last row before."""

from pathlib import Path

from nbtools.metrics.columns import Unit
from nbtools.metrics.history import History
from nbtools.metrics.readers.checkpoint_steps import with_steps
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint


def saved(name: str, at_s: float, step: int | None = None, epoch: int | None = None) -> ForeignCheckpoint:
    return ForeignCheckpoint(Path(name), name, step, at_s, 1, {}, epoch)


def rows(*steps: int, unit: Unit = "step") -> History:
    """A history with a row every second."""
    history = History()
    history.add("train/loss", steps, [1.0] * len(steps), range(len(steps)), unit=unit)
    return history


def placed(one: ForeignCheckpoint, own: History, shift: int = 0) -> str:
    (found,) = with_steps([one], own, shift)
    return found.about


def test_a_step_in_a_name_is_exact_and_every_other_one_is_about(tmp_path: Path) -> None:
    own = rows(0, 10, 20, 30)
    assert placed(saved("step_25.pt", 2.6, step=25), own) == "step 25"
    for at_s, about in ((2.2, 20), (2.9, 30), (9.0, 30), (-1, 0)):
        assert placed(saved("last.pt", at_s), own) == f"about step {about}", "of the row nearest in time"
    assert placed(saved("epoch_1.pt", 2.2, epoch=1), own) == "about step 20"
    assert placed(saved("step_25.pt", 2.6, step=25), History()) == "step 25"
    assert placed(saved("last.pt", 2.6), History()) == "step ?", "no row is known"


def test_a_named_step_counts_from_the_first_run_on_or_from_the_resume_on() -> None:
    own = rows(10, 20, 30)
    for step in (25, 125):
        assert placed(saved(f"step_{step}.pt", 1.6, step=step), own, shift=100) == "step 125"
    assert placed(saved("last.pt", 1.2), own, shift=100) == "about step 120"


def test_an_epoch_in_a_name_is_exact_where_the_curve_counts_epochs() -> None:
    own = rows(1, 2, 3, 4, unit="epoch")
    assert placed(saved("epoch_2.pt", 1.1, epoch=2), own) == "step 2"
    assert placed(saved("epoch_9.pt", 1.1, epoch=9), own) == "about step 2", "of another count"
    assert placed(saved("step_700.pt", 1.1, step=700), own) == "about step 2", "which has no place on this axis"
