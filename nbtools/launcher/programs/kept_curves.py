"""Curves that the user chose from the printed lines of a run: kept in its launcher script, or for the user."""

from collections.abc import Sequence
from pathlib import Path

from nbtools.errors import plural
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.run_patterns import decide_curves
from nbtools.run.run import Run
from nbtools.script.script import change_program


def keep_curves(run: Run, curves: Sequence[str], *, overwrite: bool = False) -> str:
    """Keep all patterns of the curves of a run's script, for this run and later ones.

    They stand in the launcher script as `Program(curves=...)`, else in the user's configuration; later launches record
    them in launch.json. The decision counts for the runs that were launched before, too.

    Args:
        run: a run of the program.
        curves: texts of patterns; those that are left out are forgotten.
        overwrite: change a launcher script that was edited by hand, whose comments and layout are then lost.

    Returns:
        Where they are kept, in one sentence.

    Raises:
        ConfigError: a text is no pattern, or the user's configuration cannot be written.
        HandEditedError: the launcher script was edited by hand; the patterns are kept in the user's configuration.
        ProjectError: the launcher script cannot be written.
    """
    for text in curves:
        Pattern(text)
    decide_curves(run.info, curves, in_script=False)
    path = Path(str(run.info.get("script")))
    if not change_program(path, overwrite=overwrite, curves=tuple(curves)):
        return f"{plural(len(curves), 'pattern')} kept for {path.name} in your configuration"
    decide_curves(run.info, curves, in_script=True)
    return f"{plural(len(curves), 'pattern')} written into {path}"
