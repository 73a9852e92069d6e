"""The lines of the board's list: which runs fit, in which order and groups, their HTML, and the layout that is kept."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nbtools.errors import FormatError, literal, plural
from nbtools.notebook.board import cells
from nbtools.notebook.board.cells import USUAL, RunGroup, RunValues, run_values
from nbtools.notebook.board.scatter import scatter_html
from nbtools.notebook.comparison.tables_html import swatch
from nbtools.notebook.html_parts import NO_FORMULAS, act_button, eye
from nbtools.run.compare import MOST_RUNS
from nbtools.run.listing import NUM_STORED, Rows, RunList, RunRow
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json

NUM_LINES = 12
"""Lines of a page."""
_MOST_OFFERED = 500
FILE = "board.json"


class BoardLayout(BaseModel):
    """The columns, order, groups and charts of a board; see `cells` for the names of columns."""

    model_config = ConfigDict(strict=True)
    columns: list[str] = [*USUAL]
    sort: str = "age"
    is_reversed: bool = False
    group: str = ""
    """Name of the field by which the runs are grouped; empty for no groups."""
    charts: dict[str, bool] = {}
    """Charts that the user opened or closed, by key."""
    y: dict[str, list[float]] = {}
    """Limits of the y axis of charts, by key."""
    over: str = ""
    of: str = "best"
    """Columns of the x and of the y axis of the scatter; none without both."""


def read_layout(runs: Path) -> tuple[BoardLayout, str]:
    """Return the layout of a folder of runs; for a file that cannot be used, the usual one and a sentence."""
    path = runs / FILE
    try:
        if (content := read_json(path)) is not None:
            return BoardLayout.model_validate(content), ""
        return BoardLayout(), f"{path} is no JSON object: the usual layout is shown" if path.exists() else ""
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        return BoardLayout(), f"{path}: the usual layout is shown, since {where}: {error.errors()[0]['msg']}"
    except FormatError as error:
        return BoardLayout(), f"The usual layout is shown: {error}"


class RunLines:
    """The runs of one or more folders, what was read of them, and which are ticked and drawn."""

    def __init__(self, lists: Sequence[RunList], layout: BoardLayout, *, is_whole: bool) -> None:
        self._lists, self.layout, self.page = lists, layout, 0
        first = [each.listed if is_whole else each.first(NUM_STORED) for each in lists]
        self.rows: dict[str, RunRow] = {row.id: row for rows in first for row in rows}
        self.is_whole = is_whole or all(len(rows) < NUM_STORED for rows in first)
        """Whether all runs are listed; if not, `add` lists the others."""
        self.values: dict[str, RunValues] = {}
        self._read: dict[str, RunRow] = {}  # as they were when their values were read
        self.ticked: set[str] = set()
        self.slots: dict[str, int] = {}
        """The colour's number of each run that is drawn."""
        self._unfolded: set[str] = set()
        self._lines: list[RunRow | RunGroup] = []
        self._groups: list[RunGroup] = []
        self.fitting: list[RunRow] = []
        self.unread: list[RunRow] = []
        """Runs whose values the order or the groups need."""

    def _home(self, name: str) -> Rows:
        """Return the rows of the folder in which a run is."""
        return next(each.rows for each in self._lists if each is self._lists[-1] or (each.rows.runs / name).exists())

    def run(self, name: str) -> Run:
        """Return the run with an id."""
        return self._home(name).run(name)

    @property
    def chosen(self) -> list[RunRow]:
        """The ticked runs, newest first."""
        return [row for row in self.rows.values() if row.id in self.ticked]

    @property
    def watched(self) -> list[RunRow]:
        """The runs on the page, and then the others that are drawn or long."""
        shown = [line.id for line in self._shown if not isinstance(line, RunGroup)]
        return [self.rows[name] for name in dict.fromkeys([*shown, *self.slots, *self.long]) if name in self.rows]

    @property
    def long(self) -> list[str]:
        """The ended runs with unread rows."""
        return [name for name, found in self.values.items() if not found.is_whole and name in self.rows]

    @property
    def _shown(self) -> list[RunRow | RunGroup]:
        return self._lines[self.page * NUM_LINES : (self.page + 1) * NUM_LINES]

    @property
    def folded(self) -> dict[str, str]:
        """The title of the group of each run whose group is folded, by id."""
        folded = [group for group in self._groups if group.value not in self._unfolded]
        return {row.id: group.title for group in folded for row in group.rows}

    def others(self) -> dict[str, RunRow]:
        """Return the rows of all runs, whose files take a second to read where there are thousands."""
        return {row.id: row for each in self._lists for row in each.listed}

    def add(self, rows: dict[str, RunRow]) -> None:
        """List these runs, too, if all were not listed meanwhile."""
        if not self.is_whole:
            self.rows, self.is_whole = rows | self.rows, True

    def save(self) -> None:
        """Keep what was read of ended runs for the next list."""
        for each in self._lists:
            each.rows.save()

    def read(self, row: RunRow) -> None:
        """Read the records of a run, and its values if they are not known yet; OSError if it was removed."""
        home = self._home(row.id)
        now = home.completed(home.row(row.id))
        if self._read.get(row.id) != now or not now.is_final or not self.values[row.id].is_whole:
            self.values[row.id], self._read[row.id] = run_values(home.run(row.id), now), now
        if row.id in self.rows:
            self.rows[row.id] = now

    def take(self, act: object, key: object) -> str:
        """Apply a choice of the page, whose messages are untrusted; returns why it cannot be."""
        layout = self.layout
        match act, key:
            case "sort", str():
                layout.is_reversed = layout.sort == key and not layout.is_reversed
                layout.sort, self.page = key, 0
            case "turn", "-1" | "1":
                self.page += int(key)
            case "turn", _:  # new runs that the filters choose, too; a run that was renamed or stopped here stays
                self.rows, self.page = {row.id: row for each in self._lists for row in each.chosen_now(self.rows)}, 0
                self.is_whole = True
                self.save()
                self.ticked &= self.rows.keys()
                self.slots = {name: slot for name, slot in self.slots.items() if name in self.rows}
            case "compare", _:
                self.slots = {row.id: slot for slot, row in enumerate(reversed(self.chosen))}
            case "fold", str():
                self._unfolded ^= {key}
            case "tick", str() if key in self.rows:
                self.ticked ^= {key}
            case "draw", str() if key in self.rows:
                return self._draw([key])
            case "draw-group", str():
                return self._draw([row.id for group in self._groups if group.value == key for row in group.rows])
        return ""

    def _draw(self, names: Sequence[str]) -> str:
        """Draw runs, each in a colour of its own, or hide them if all are drawn; returns why some are not drawn."""
        missing = [name for name in names if name not in self.slots]
        free = sorted({*range(MOST_RUNS)}.difference(self.slots.values()))
        self.slots = {name: slot for name, slot in self.slots.items() if missing or name not in names}
        self.slots |= zip(missing, free, strict=False)
        return f"{MOST_RUNS} runs are drawn at most: hide one first" if len(missing) > len(free) else ""

    # --- the lines ---

    def fill(self, words: str) -> None:
        """Choose and order the runs that have all words; the word `drawn` is one of those that are drawn."""
        layout, every = self.layout, words.lower().split()
        found = [row for row in self.rows.values() if all(word in self._text_of(row) for word in every)]
        needs_all = cells.needs_values(layout.sort) or layout.group or layout.over
        self.unread = [row for row in found if row.id not in self.values] if needs_all else []
        self.fitting = cells.sorted_rows(found, self.values, layout.sort, is_reversed=layout.is_reversed)
        self._lines = [] if layout.group else [*self.fitting]
        self._groups = cells.groups_of(self.fitting, self.values, layout.group) if layout.group else []
        for group in self._groups:
            self._lines += [group, *(group.rows if group.value in self._unfolded else ())]
        self.page = max(0, min(self.page, (len(self._lines) - 1) // NUM_LINES))

    def _text_of(self, row: RunRow) -> str:
        drawn = "drawn" if row.id in self.slots else ""
        return " ".join((row.name, row.id, row.state, row.recipe, row.script, row.note, drawn, *row.tags)).lower()

    def html(self) -> str:
        """Return the list of the page as HTML."""
        layout, shown, first = self.layout, self._shown, self.page * NUM_LINES
        of = f"{len(self._lines):,} lines, " * bool(layout.group) + plural(len(self.fitting), "run")
        read = f", {len(self.fitting) - len(self.unread):,} read" if self.unread else ""
        read += ", the others are being listed" * (not self.is_whole)
        place = f"{first + 1:,} to {first + len(shown):,} of {of}{read}" if shown else "no runs"
        turns = (
            act_button("turn", "-1", "‹", "Earlier page", "disabled" * (not self.page)),
            act_button("turn", "1", "›", "Next page", "disabled" * (first + NUM_LINES >= len(self._lines))),
            act_button("turn", "0", "↻", "Look for new runs"),
        )
        order = "descending" if cells.is_falling(layout.sort) != layout.is_reversed else "ascending"
        heads = "".join(
            f"<th scope='col' aria-sort='{order if column == layout.sort else 'none'}'>"
            f"{act_button('sort', column, literal(column), f'Sort by {column}')}</th>"
            for column in ("run", *layout.columns)
        )
        bar = f"<div class='nbt-board-bar'><span role='status'>{place}</span>{''.join(turns)}</div>"
        body = "".join(map(self._line, shown))
        table = f"<table aria-label='Runs'><thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table>"
        scroller = f"<div class='nbt-board-scroll' tabindex='0' role='group' aria-label='Runs'>{table}</div>"
        return f"<div class='nbt-board {NO_FORMULAS}'>{bar}{scroller}</div>"

    def _line(self, line: RunRow | RunGroup) -> str:
        if isinstance(line, RunGroup):
            is_open = str(line.value in self._unfolded).lower()
            title = f"{line.title} · {plural(len(line.rows), 'run')}"
            fold = act_button("fold", line.value, literal(title), title, f"aria-expanded='{is_open}'")
            slots = [self.slots[row.id] for row in line.rows if row.id in self.slots]
            draw = eye("draw-group", line.value, f"Curves of {title}", is_drawn=bool(slots))
            draw += swatch(min(slots)) if slots and line.value not in self._unfolded else ""
            shown = "".join(f"<td>{line.cell(column, self.values)}</td>" for column in self.layout.columns)
            return f"<tr class='nbt-group'><td colspan='2'>{draw} {fold}</td>{shown}</tr>"
        row, values = self.rows.get(line.id, line), self.values.get(line.id)  # as it is now
        name, slot, ticked = f"{row.name} {row.id}", self.slots.get(row.id), " checked" * (row.id in self.ticked)
        told = f"data-act='tick' data-key='{literal(row.id)}' aria-label='Choose {literal(name)}'"
        draw = eye("draw", row.id, f"Curves of {name}", is_drawn=slot is not None)
        shown = "".join(f"<td>{cells.cell(column, row, values)}</td>" for column in ("run", *self.layout.columns))
        colour = "" if slot is None else swatch(slot)
        return f"<tr><td><input type='checkbox' {told}{ticked}>{draw}{colour}</td>{shown}</tr>"

    def scatter(self) -> str:
        """Return the scatter of the runs that fit as HTML; empty without one."""
        over, of = self.layout.over, self.layout.of
        return scatter_html(self.fitting, self.values, self.slots, (over, of)) if over and of else ""

    @property
    def offered(self) -> list[str]:
        """The columns to choose from: the usual ones, and the metrics and fields that were read."""
        metrics = sorted({name for one in self.values.values() for name in one.ends})
        names = [*USUAL, *(column for name in metrics for column in (name, f"best {name}")), *self.fields]
        return [*dict.fromkeys([*self.layout.columns, *names[:_MOST_OFFERED]])]

    @property
    def fields(self) -> list[str]:
        """The fields of the runs that were read, those of a config first."""
        return sorted({name for one in self.values.values() for name in one.fields}, key=lambda one: ("." in one, one))
