"""The runs of a project, as a list and as a table."""

import contextlib
from pathlib import Path

from nbtools.errors import FormatError
from nbtools.project import Project, file_digest, find_project
from nbtools.run.records import local_time
from nbtools.run.run import Run, html_table, step_of_total
from nbtools.rundir.rundir import run_folders


class RunList(list[Run]):
    """Runs, newest first; a notebook displays them as a table."""

    def _repr_html_(self) -> str:
        rows = [("run", "state", "step", "started")]
        for run in self:
            try:
                rows.append((run.id, str(run.state), step_of_total(run), local_time(run.records.started_at)))
            except (FormatError, OSError) as error:  # the other runs are still listed
                rows.append((run.id, str(error), "", ""))
        return html_table(rows)


def runs(project: Project | str | Path | None = None) -> RunList:
    """Return all runs of a project, newest first, including those started by hand in a terminal.

    Args:
        project: A project or a path in it. Default: the project of the working directory.
    """
    found = project if isinstance(project, Project) else find_project(project)
    return RunList(Run(path) for path in run_folders(found.runs))


def active_run(script: Path, project: Project) -> Run | None:
    """Return the newest active run of these very script bytes without extra arguments; None if there is none."""
    wanted = file_digest(script)
    for run in runs(project):
        with contextlib.suppress(FormatError):  # written by a newer nbtools
            same = run.info.get("script_sha256") == wanted and not run.info.get("args")
            if same and not run.state.is_final:
                return run
    return None
