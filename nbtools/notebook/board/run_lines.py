"""The lines of the board's list: which runs fit, in which order and groups, and their HTML."""

from collections.abc import Iterator, Sequence

from nbtools.errors import literal, plural
from nbtools.notebook.board import cells
from nbtools.notebook.board.cells import RunGroup
from nbtools.notebook.board.row_values import RunValues, run_values
from nbtools.notebook.board.saved_layout import USUAL, Layout, is_column
from nbtools.notebook.board.tables_html import swatch
from nbtools.run.compare import MOST_RUNS
from nbtools.run.listing import Rows, RunList, RunRow
from nbtools.run.run import Run

NUM_LINES = 12
"""Lines of a page."""
_MOST_OFFERED, _MOST_DIFFERING = 500, 4
_EYE, _STRUCK = "M1 6Q8 -2 15 6Q8 14 1 6ZM8 3.6a2.4 2.4 0 1 0 .01 0Z", "M2.5 11.5L13.5.5"


class RunLines:
    """The runs of one or more folders, what was read of them, and which are ticked and drawn."""

    def __init__(self, lists: Sequence[RunList], layout: Layout) -> None:
        self._lists, self.layout, self.page = lists, layout, 0
        self.rows: dict[str, RunRow] = {row.id: row for each in lists for row in each.listed}
        self.values: dict[str, RunValues] = {}
        self._read: dict[str, RunRow] = {}  # as they were when their values were read
        self.ticked: set[str] = set()
        self.slots: dict[str, int] = {}
        """The colour's number of each run that is drawn."""
        self._unfolded: set[str] = set()
        self._lines: list[RunRow | RunGroup] = []
        self.fitting: list[RunRow] = []
        self.unread: list[RunRow] = []
        """Runs whose values the order or the groups need."""

    def home(self, name: str) -> Rows:
        """Return the rows of the folder in which a run is."""
        return next(each.rows for each in self._lists if each is self._lists[-1] or (each.rows.runs / name).exists())

    def run(self, name: str) -> Run:
        """Return the run with an id."""
        return self.home(name).run(name)

    @property
    def chosen(self) -> list[RunRow]:
        """The ticked runs, newest first."""
        return [row for row in self.rows.values() if row.id in self.ticked]

    @property
    def on_page(self) -> list[RunRow]:
        return [self.rows.get(line.id, line) for line in self._shown if not isinstance(line, RunGroup)]

    @property
    def _shown(self) -> list[RunRow | RunGroup]:
        return self._lines[self.page * NUM_LINES : (self.page + 1) * NUM_LINES]

    def plain(self) -> str:
        """Return the runs as HTML for a page without a kernel."""
        return "".join(each._repr_html_() for each in self._lists)

    def look_again(self) -> None:
        """Add new runs that the filters choose; a run that was renamed or stopped here stays."""
        self.rows, self.page = {row.id: row for each in self._lists for row in each.chosen_now(self.rows)}, 0
        self.save()
        self.ticked &= self.rows.keys()
        self.slots = {name: slot for name, slot in self.slots.items() if name in self.rows}

    def save(self) -> None:
        """Keep what was read of ended runs for the next list."""
        for each in self._lists:
            each.rows.save()

    def read(self, row: RunRow) -> None:
        """Read the records of a run, and its values if they were not read yet; OSError if it was removed."""
        home = self.home(row.id)
        now = home.completed(home.row(row.id))
        if self._read.get(row.id) != now or not now.is_final:
            self.values[row.id], self._read[row.id] = run_values(home, now), now
        if row.id in self.rows:
            self.rows[row.id] = now

    # --- choices of the page, whose messages are untrusted ---

    def sort_by(self, column: object) -> None:
        """Order the runs by a column, or turn the order."""
        if is_column(column):
            self.layout.is_reversed = self.layout.sort == column and not self.layout.is_reversed
            self.layout.sort, self.page = str(column), 0

    def use_column(self, column: object, is_used: object) -> None:
        """Add or remove a column."""
        if is_column(column) and column != "run":
            others = [name for name in self.layout.columns if name != column]
            self.layout.columns = [str(column), *others] if is_used is True else others  # a new one is seen at once

    def draw(self, name: object, is_drawn: object) -> bool:
        """Draw a run, or hide it; returns whether there is a colour for it."""
        self.slots.pop(str(name), None)
        free = min({*range(MOST_RUNS)}.difference(self.slots.values()), default=None)
        if is_drawn is True and name in self.rows and free is not None:
            self.slots[str(name)] = free
        return free is not None

    def fold(self, value: object) -> None:
        """Fold a group, or unfold it."""
        self._unfolded ^= {str(value)}

    # --- the lines ---

    def fill(self, words: str, *, only_drawn: bool) -> None:
        """Choose and order the runs that have all words."""
        layout, every = self.layout, words.lower().split()
        found = [row for row in self.rows.values() if row.id in self.slots or not only_drawn]
        found = [row for row in found if all(word in _text_of(row) for word in every)]
        needs_all = cells.needs_values(layout.sort) or bool(layout.group)
        self.unread = [row for row in found if row.id not in self.values] if needs_all else []
        self.fitting = cells.sorted_rows(found, self.values, layout.sort, is_reversed=layout.is_reversed)
        self._lines = [*self._in_groups()] if layout.group else [*self.fitting]
        self.page = max(0, min(self.page, (len(self._lines) - 1) // NUM_LINES))

    def _in_groups(self) -> Iterator[RunRow | RunGroup]:
        for group in cells.groups_of(self.fitting, self.values, self.layout.group):
            yield group
            yield from group.rows if group.value in self._unfolded else ()

    def html(self) -> str:
        """Return the list of the page as HTML."""
        layout, shown, first = self.layout, self._shown, self.page * NUM_LINES
        of = plural(len(self.fitting), "run")
        of = f"{len(self._lines):,} lines, {of}" if layout.group else of
        read = f", {len(self.fitting) - len(self.unread):,} read" if self.unread else ""
        place = f"{first + 1:,} to {first + len(shown):,} of {of}{read}" if shown else "no runs"
        turns = (
            _button("turn", "-1", "‹", "Earlier page", "disabled" * (not self.page)),
            _button("turn", "1", "›", "Next page", "disabled" * (first + NUM_LINES >= len(self._lines))),
            _button("turn", "0", "↻", "Look for new runs"),
        )
        is_falling = cells.is_falling(layout.sort, is_reversed=layout.is_reversed)
        heads, order = "", ("descending", " ▼") if is_falling else ("ascending", " ▲")
        for key in ("run", *layout.columns):
            sort, sign = order if key == layout.sort else ("none", "")
            name = cells.title_of(key)
            sorter = _button("sort", key, f"{literal(name)}{sign}", f"Sort by {name}")
            heads += f"<th scope='col' aria-sort='{sort}' class='{_kind(key)}'>{sorter}</th>"
        lines = "".join(self._line(line, self._differing()) for line in shown)
        head = f"<thead><tr><td></td>{heads}</tr></thead>"
        table = f"<table aria-label='Runs'>{head}<tbody>{lines}</tbody></table>"
        bar = f"<div class='nbt-board-bar'><span role='status'>{place}</span>{''.join(turns)}</div>"
        return f"{bar}<div class='nbt-board-scroll' tabindex='0' role='region' aria-label='Runs'>{table}</div>"

    def _line(self, line: RunRow | RunGroup, differing: Sequence[str]) -> str:
        used = self.layout.columns
        if isinstance(line, RunGroup):
            is_open = line.value in self._unfolded
            sign, more = ("▾", "aria-expanded='true'") if is_open else ("▸", "aria-expanded='false'")
            fold = _button("fold", line.value, f"{sign} {literal(line.title)}", line.title, more)
            shown = "".join(f"<td class='{_kind(key)}'>{line.cell(key, self.values)}</td>" for key in used)
            return f"<tr class='nbt-group'><td colspan='2'>{fold}</td>{shown}</tr>"
        row, values = self.rows.get(line.id, line), self.values.get(line.id)  # as it is now
        name, slot, ticked = f"{row.name} {row.id}", self.slots.get(row.id), " checked" * (row.id in self.ticked)
        told = f"data-act='tick' data-key='{literal(row.id)}' aria-label='Choose {literal(name)}'"
        shape, is_drawn = (_EYE + _STRUCK, "false") if slot is None else (_EYE, "true")
        eye = f"<svg width='16' height='12' aria-hidden='true'><path d='{shape}'/></svg>"
        draw = _button("draw", row.id, eye, f"Curves of {name}", f"aria-pressed='{is_drawn}'")
        shown = "".join(
            f"<td class='{_kind(key)}'>{cells.cell(key, row, values, differing)}</td>" for key in ("run", *used)
        )
        colour = "" if slot is None or self.layout.group else swatch(slot)  # a group has one colour of its own
        return f"<tr><td><input type='checkbox' {told}{ticked}>{draw}{colour}</td>{shown}</tr>"

    def _differing(self) -> list[str]:
        """Return the first fields of the config that are not equal in all runs on the page that have them."""
        known = [self.values[row.id].fields for row in self.on_page if row.id in self.values]
        names = dict.fromkeys(name for fields in known for name in fields if "." not in name)
        return [name for name in names if len({one[name] for one in known if name in one}) > 1][:_MOST_DIFFERING]

    def menu(self) -> str:
        """Return the columns to choose from as HTML: the usual ones, and all metrics and fields that were read."""
        metrics = sorted({name for one in self.values.values() for name in one.ends})
        names = [*self.layout.columns, *USUAL, *(f"{kind}:{name}" for name in metrics for kind in ("metric", "best"))]
        boxes = ""
        for key in [*dict.fromkeys([*names, *(f"field:{name}" for name in self.fields)])][:_MOST_OFFERED]:
            checked = " checked" if key in self.layout.columns else ""
            box = f"<input type='checkbox' data-act='column' data-key='{literal(key)}'{checked}>"
            boxes += f"<label>{box}<span dir='auto'>{literal(cells.title_of(key))}</span></label>"
        find = "<input type='search' placeholder='find a metric or a field' aria-label='Find a column'>"
        group = f"<div role='group' aria-label='Columns'>{boxes}</div>"
        return f"<details><summary>Columns</summary><div>{find}{group}</div></details>"

    @property
    def fields(self) -> list[str]:
        """The fields of the runs that were read, those of a config first."""
        return sorted({name for one in self.values.values() for name in one.fields}, key=lambda one: ("." in one, one))


def _button(act: str, key: str, html: str, label: str, more: str = "") -> str:
    told = f"data-act='{act}' data-key='{literal(key)}' title='{literal(label)}' aria-label='{literal(label)}'"
    return f"<button type='button' {told} {more}>{html}</button>"


def _kind(column: str) -> str:
    return "nbt-number" if cells.is_number(column) else "nbt-text"


def _text_of(row: RunRow) -> str:
    return " ".join((row.name, row.id, row.state, row.recipe, row.script, row.note, *row.tags)).lower()
