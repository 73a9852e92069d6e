"""The runs of a project, and how a notebook shows them."""

import contextlib
from pathlib import Path

from nbtools.errors import FormatError
from nbtools.project import Project, find_project
from nbtools.run.run import Run, clock, table
from nbtools.rundir.rundir import run_folders
from nbtools.script.script import digest


class RunList(list[Run]):
    """Runs, newest first; a table in a notebook."""

    def _repr_html_(self) -> str:
        rows = [("run", "state", "step", "started")]
        for run in self:
            try:
                rows.append((run.id, str(run.state), run.progress, clock(run.started_at)))
            except (FormatError, OSError) as error:  # one that cannot be read hides none of the others
                rows.append((run.id, str(error), "", ""))
        return table(rows)


def runs(project: Project | str | Path | None = None) -> RunList:
    """All runs of a project, newest first, those started by hand in a terminal too.

    Args:
        project: a project or a path in it; by default the one that the working directory belongs to.
    """
    found = project if isinstance(project, Project) else find_project(project)
    return RunList(Run(path) for path in run_folders(found.runs))


def active_run(script: Path, project: Project) -> Run | None:
    """Return the run of a script as it is now, if one is active: a second click must not train it twice."""
    wanted = digest(script)
    for run in runs(project):
        with contextlib.suppress(FormatError):  # of a newer nbtools, which this one cannot judge
            same = run.info.get("script_sha256") == wanted and not run.info.get("args")
            if same and not run.state.is_final:
                return run
    return None
