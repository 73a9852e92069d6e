"""The question to Slurm whether it would accept the job of a form, asked in a thread."""

import re
from collections.abc import Callable
from pathlib import Path

from nbtools.config import Launch, Slurm
from nbtools.errors import ConfigError, LaunchError
from nbtools.launcher.sbatch import check_site, place_job
from nbtools.machine import slurm
from nbtools.notebook.background import Background
from nbtools.notebook.form.field_list import WHERE

_NO_SLURM = (
    "sbatch is not on the path of this kernel: write the script here, and launch it on a machine with Slurm's commands"
)


class JobCheck:
    """Asks Slurm in a thread whether it would accept a job, and when that would start."""

    def __init__(self, folder: Path, on_answer: Callable[[], None]) -> None:
        """Call `on_answer` from the thread after each answer; the nodes must see `folder`."""
        self._folder = folder
        self._answers = Background(self._ask, on_answer, settle_s=0.5)

    def look(self, settings: Launch) -> tuple[str, dict[str, str]]:
        """Return a line for the summary, and by row why the job cannot be submitted; nothing for a run here."""
        if settings.cluster is None:
            return "", {}
        if not slurm.is_available():
            return "", {WHERE: _NO_SLURM}
        if (found := self._answers.answer(settings)) is None:
            return "sbatch: asked for the expected start", {}
        row, words = found[0]
        return ("", {row: words}) if row else (f"sbatch: {words}", {})

    def _ask(self, settings: Launch) -> tuple[str, str]:
        """Return the row that Slurm refuses, empty if it accepts the job, and Slurm's message."""
        try:
            place_job(settings)
            *_, start = check_site(settings, self._folder)
            return "", start.sentence
        except (ConfigError, LaunchError, OSError) as error:
            named = re.match(r"(\w+)=", str(error)) or re.match(r"(preamble):", str(error))
            return named[1] if named and named[1] in (*Slurm.model_fields, "nnodes") else WHERE, str(error)
