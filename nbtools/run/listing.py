"""The runs of a project, as a list and as a table."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from nbtools.errors import FormatError, RunNotFoundError, plural
from nbtools.project import Project, file_digest, find_project
from nbtools.run.records import local_time
from nbtools.run.run import Run, html_table, newest_metrics, step_of_total
from nbtools.run.state import RunState
from nbtools.rundir.rundir import RunDir, found_runs, newest_first

_NUM_DISPLAYED = 100


class RunList(list[Run]):
    """Runs, newest first; a notebook displays the newest 100 as a table."""

    def _repr_html_(self) -> str:
        rows = [("run", "state", "step", "started")]
        for run in self[:_NUM_DISPLAYED]:
            try:
                rows.append((run.id, str(run.state), step_of_total(run), local_time(run.records.started_at)))
            except (FormatError, OSError) as error:  # the other runs are still listed
                rows.append((run.id, str(error), "", ""))
        if (others := len(self) - _NUM_DISPLAYED) > 0:
            rows.append((f"and {plural(others, 'earlier run')}", "", "", "nbtools runs --all lists them"))
        return html_table(rows)


def runs(project: Project | str | Path | None = None) -> RunList:
    """Return all runs of a project, newest first, including those started by hand in a terminal.

    Args:
        project: A project or a path in it. Default: the project of the working directory.
    """
    found = project if isinstance(project, Project) else find_project(project)
    return RunList(newest(found))


def newest(project: Project, states: Collection[RunState] = ()) -> Iterator[Run]:
    """Yield the runs in one of these states, newest first; no file of a run is opened before its turn.

    One that cannot be read (FormatError, OSError) is yielded too, whatever the states.
    """
    for path in newest_first(project.runs.resolve()):
        try:
            run = _listed(path)
        except RunNotFoundError:  # a link to a run that has just been removed
            continue
        with contextlib.suppress(FormatError, OSError):
            if states and run.state not in states:
                continue
        yield run


def _listed(path: Path) -> Run:
    """Return the run in a folder that has just been listed, without looking for it again; a link is followed."""
    return Run(path if path.is_symlink() else RunDir(path))


def run_line(run: Run) -> tuple[str, str, str, str, str]:
    """Return id, state, step, loss and start of a run, for a list of runs.

    Raises:
        FormatError: A newer nbtools wrote the run.
    """
    metrics = newest_metrics(run)
    loss = metrics.get("train/loss", metrics.get("loss"))
    started = local_time(run.records.started_at)
    return run.id, str(run.state), step_of_total(run), "" if loss is None else f"{loss:.5g}", started


def active_run(script: Path, project: Project) -> Run | None:
    """Return the newest active run of these very script bytes without extra arguments; None if there is none."""
    wanted, active = file_digest(script), []
    for path in found_runs(project.runs):
        if RunDir(path).exit.exists():  # it has ended, whatever else its files contain
            continue
        with contextlib.suppress(FormatError, RunNotFoundError, OSError):  # of a newer nbtools, or just removed
            run = _listed(path)
            same = run.info.get("script_sha256") == wanted and not run.info.get("args")
            if same and not run.state.is_final:
                active.append(run)
    return max(active, key=lambda run: (run.records.started_at or 0.0, run.id), default=None)
