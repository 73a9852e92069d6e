"""The layout of a project's board, kept in one file beside its runs: columns, order, groups, and open charts."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from nbtools.errors import FormatError
from nbtools.rundir.json_files import read_json, write_json

FILE = "board.json"
USUAL = "state", "curve", "best", "last", "steps", "took", "age", "recipe"
"""The columns after the one of the runs, for every run."""
COLUMN = rf"^(run|{'|'.join(USUAL)}|(metric|best|field):.{{1,300}})$"
"""Pattern of the columns: the usual ones, or `metric:NAME` (the last value), `best:NAME`, `field:NAME`."""


class Layout(BaseModel):
    """The columns, order, groups and charts of a board."""

    model_config = ConfigDict(strict=True)
    columns: list[Annotated[str, StringConstraints(pattern=COLUMN)]] = [*USUAL]
    sort: Annotated[str, StringConstraints(pattern=COLUMN)] = "age"
    is_reversed: bool = False
    group: str = ""
    """Name of the field by which the runs are grouped; empty for no groups."""
    charts: dict[str, bool] = {}
    """Charts that the user opened or closed, by key."""


def read_layout(runs: Path) -> tuple[Layout, str]:
    """Return the layout of a folder of runs; for a file that cannot be used, the usual one and a sentence."""
    path = runs / FILE
    try:
        if (content := read_json(path)) is not None:
            return Layout.model_validate(content), ""
        return Layout(), f"{path} is no JSON object: the usual layout is shown" if path.exists() else ""
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        return Layout(), f"{path}: the usual layout is shown, since {where}: {error.errors()[0]['msg']}"
    except FormatError as error:
        return Layout(), f"The usual layout is shown: {error}"


def save_layout(runs: Path, layout: Layout) -> str:
    """Write the layout of a folder of runs; returns why it is not kept, or an empty text."""
    try:
        write_json(runs / FILE, layout.model_dump())
    except (OSError, ValueError) as error:  # another user's folder, or a full disk
        return f"The layout is not kept: {error}"
    return ""


def is_column(name: object) -> bool:
    """Whether a name, perhaps from the page, is that of a column."""
    return isinstance(name, str) and re.search(COLUMN, name) is not None
