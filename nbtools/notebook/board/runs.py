"""`nt.runs()`: the runs of a project as a sequence, which a notebook displays as a board."""

from pathlib import Path
from typing import TYPE_CHECKING

from nbtools.errors import ConfigError, shown
from nbtools.project import Project, find_project
from nbtools.run.listing import Rows, RunList
from nbtools.run.state import RunState

if TYPE_CHECKING:  # pydantic, which a list of runs does not need
    from nbtools.recipes import RecipeKey


class Runs(RunList):
    """Runs, newest first; without ipywidgets, a notebook displays a plain table."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        try:
            from nbtools.notebook.board.board import Board  # imports matplotlib, which takes a second
        except ModuleNotFoundError:  # no ipywidgets
            display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)  # type: ignore[no-untyped-call]
        else:
            display(Board([self]))  # type: ignore[no-untyped-call]


def runs(
    project: Project | str | Path | None = None,
    *,
    name: str | None = None,
    state: str | None = None,
    recipe: "RecipeKey | str | None" = None,
) -> Runs:
    """Return the runs of a project, newest first, including those started by hand in a terminal.

    As the last expression of a cell it shows the board: a list that sorts, filters and groups them by any metric or
    field, and opens, labels, stops, resumes and deletes the ticked ones; the curves of those that are drawn, at first
    the newest, and of a folded group their mean with a band from the lowest to the highest; a scatter of two columns;
    and what differs between the drawn ones.

    Args:
        project: A project or a path in it. Default: the project of the working directory.
        name: Only runs of this name; `lr_*` stands for several.
        state: Only runs in this state, such as `FAILED`.
        recipe: Only runs of this recipe.

    Raises:
        ConfigError: There is no such state.
    """
    if state is not None and state.upper() not in set(RunState):
        raise ConfigError(f"state={shown(state)}: must be one of {', '.join(RunState)}")
    found = project if isinstance(project, Project) else find_project(project)
    rows, states = Rows(found.runs.resolve()), () if state is None else (state.upper(),)
    return Runs(rows, name=name, states=states, recipe=recipe)
