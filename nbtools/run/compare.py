"""Differences between runs: fields, launch, versions, code; and the best and last value of each metric."""

import ast
import contextlib
import difflib
import fnmatch
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nbtools.errors import ConfigError, FormatError, RunNotFoundError, plural, shown
from nbtools.metrics.columns import Series
from nbtools.metrics.direction import direction_of, is_cost
from nbtools.parsing import syntax_tree
from nbtools.project import find_project
from nbtools.run.curves import Curves
from nbtools.run.facts import origin as origin_of
from nbtools.run.lineage import ancestors
from nbtools.run.listing import Rows
from nbtools.run.records import mapping_at, recorded_arguments
from nbtools.run.run import Run
from nbtools.rundir.json_files import whole
from nbtools.rundir.rundir import RunDir, is_run
from nbtools.rundir.secret_values import MASK

MOST_RUNS = 20
"""Runs that one comparison draws; it names the others."""
Facts = dict[str, str]
"""Field -> value as text. Fields of the config have their own names, all others a prefix: `launch.nproc_per_node`."""

_UNLIKE = "_wait", "/mfu"
"""Ends of the names of further metrics that differ between two equal trainings."""
_OF_LAUNCH = "versions.", "code.", "launch.", "machine.", "variables."
_OWN_VARIABLES = "NBTOOLS_RUN_", "NBTOOLS_ATTEMPT"
_IN_VERSIONS = "torch", "python"
_MOST_CHARACTERS = 60
_NEAR = 10_000  # rows among which a first difference lies
_MOST_SCRIPT_BYTES = 1 << 20


@dataclass(frozen=True)
class Difference:
    """A field that is not equal in all compared runs."""

    name: str
    values: tuple[str, ...]
    """One per run, as text; `–` where a run has none."""


@dataclass(frozen=True)
class ComparedRun:
    """One of several runs, and what is drawn of it."""

    run: Run
    facts: Facts
    label: str
    """Differs from those of the others: the run's name, else with the fields that differ between runs of that name,
    else its id."""
    slot: int
    """The number of its colour, which it keeps while others are hidden."""
    sources: Sequence[tuple[str, int]]
    """The runs whose rows precede its own, nearest first, each with its last step."""
    nproc: int | None
    """The number of its processes; None if it is not recorded."""
    curves: Curves = field(default_factory=dict)
    """Empty until they are read."""
    part: str = ""
    """The value of the field by which charts are split; empty without one."""


@dataclass(frozen=True)
class Comparison:
    """Runs and their differences."""

    members: Sequence[ComparedRun]
    differences: Sequence[Difference]
    notes: Sequence[str] = ()
    """Sentences on omitted runs: unreadable ones, repeated ones, and those beyond `MOST_RUNS`."""

    @property
    def runs(self) -> list[Run]:
        return [one.run for one in self.members]

    def with_curves(self, read: Callable[[Run], Curves]) -> "Comparison":
        """Return this comparison with the curves that `read` returns for each run."""
        return replace(self, members=[replace(one, curves=read(one.run)) for one in self.members])

    def split_by(self, name: str) -> Sequence[ComparedRun]:
        """Return the runs with their values of a field, whose name may be empty."""
        values = self.values(name) if name else [""] * len(self.members)
        return [replace(one, part=value) for one, value in zip(self.members, values, strict=True)]

    def values(self, name: str) -> tuple[str, ...]:
        """Return a field's value in each run, also if all are equal; `nproc_per_node` is found without prefix.

        Raises:
            ConfigError: no run has such a field.
        """
        known = dict.fromkeys(itertools.chain.from_iterable(one.facts for one in self.members))
        found = [name] if name in known else [each for each in known if each.rpartition(".")[2] == name]
        if not found:
            close = difflib.get_close_matches(name, known, 3) or [difference.name for difference in self.differences]
            raise ConfigError(f"split={shown(name)}: no compared run has such a field; there are {', '.join(close)}")
        differing = [one.values for one in self.differences if one.name == found[0]]
        return differing[0] if differing else tuple(_cut(one.facts.get(found[0], "–")) for one in self.members)


def compare_runs(*refs: object, least: int = 2) -> Comparison:
    """Read what differs between runs, of any script and in any state; curves are not read.

    Args:
        refs: runs, ids, names, paths of run directories, or patterns such as `lr_*` for names and ids in the project of
            the working directory; lists of these.
        least: how many runs are needed.

    Raises:
        RunNotFoundError: a reference or pattern fits no run.
        ConfigError: fewer runs can be read.
    """
    notes: list[str] = []
    readable: dict[Run, Facts] = {}
    for run in _chosen(refs, notes):
        try:
            readable[run] = facts_of(run)
        except (OSError, FormatError) as error:  # by a newer nbtools
            notes.append(f"{run.id}: left out, it cannot be read: {error}")
    if len(readable) < least:
        given = "; ".join([f"{plural(len(readable), 'run')} to compare, at least {least} are needed", *notes])
        raise ConfigError(f"{given}; nbtools runs lists all")
    runs = [*readable][:MOST_RUNS]
    if others := [*readable][MOST_RUNS:]:
        names = ", ".join(run.id for run in others)
        notes.append(f"{MOST_RUNS} of {len(readable)} runs are drawn; left out: {names}")
    differences = _differences(runs, [readable[run] for run in runs])
    members = []
    for slot, (run, label) in enumerate(zip(runs, _labels(runs, differences), strict=True)):
        sources = [(path.name, step) for path, step in ancestors(run.dir, run.info)]
        members.append(ComparedRun(run, readable[run], label, slot, sources, world_size(run)))
    return Comparison(members, differences, notes)


def world_size(run: Run) -> int | None:
    """Return the number of a run's processes on all machines; None if it is not recorded."""
    recorded = whole(mapping_at(run.config or {}, "derived").get("world_size"))
    return recorded or (len(run.files.world) if mapping_at(run.info, "launch").get("nproc_per_node") else None)


# --- a run that repeats another ---------------------------------------------------------------------


def not_as(parent: Run, child: Run) -> list[str]:
    """Return what a launch records that is not as in the run which it repeats: versions, code, settings, machine."""
    before, after = facts_of(parent), facts_of(child)
    names = [name for name in after if name.startswith(_OF_LAUNCH) and before.get(name, MASK) != MASK != after[name]]
    return [f"{name} {_cut(before[name])} -> {_cut(after[name])}" for name in names if before[name] != after[name]]


def reproduced(run: Run) -> str:
    """Return how far a run has the same values as the one that it repeats; empty if it repeats none.

    Times, speeds and memory are not compared.
    """
    if not (name := run.info.get("reproduces")):
        return ""
    path = run.dir.parent / Path(str(name)).name
    if not is_run(path):
        return f"repeats {name}, which was removed"
    parent = Run(path)
    last, parted = parting(run, parent, is_repeat=True)
    if not last:
        return f"repeats {parent.id}: no rows to compare yet"
    if not parted:
        count = last - (whole(mapping_at(run.info, "resumed_from").get("step")) or 0)
        return f"repeats {parent.id}: equal to the bit for {count:,} steps"
    unlike = "; ".join(not_as(parent, run)) or "nothing that is recorded"
    return f"repeats {parent.id}: differs from {parted}; not as there: {unlike}"


def parting(run: Run, other: Run, *, is_repeat: bool) -> tuple[int, str]:
    """Return the last step that both runs have, 0 without one, and where the values of a run first differ from another.

    The second is `step 120 on: train/loss 1.2 there, 1.3 here (0.1, relative 0.083)`, empty if all are equal. Of a run
    that is no repetition, only losses and scores are compared, where both have a row.
    """
    found = [
        {
            metric: one
            for metric, one in each.own_history.items()
            if not is_cost(metric) | metric.endswith(_UNLIKE) and (is_repeat or direction_of(metric))
        }
        for each in (other, run)
    ]
    last = min(int(max((one.steps[-1] for one in each.values()), default=0)) for each in found)
    places = [_parted(found, metric, last, is_repeat) for metric in found[0].keys() | found[1].keys()]
    if (first := min(filter(None, places), default=None)) is None:
        return last, ""
    step, metric, here, there = first
    size = "" if "no row" in (here, there) else f" ({_apart(float(here), float(there))})"
    return last, f"step {step:,} on: {metric} {there} there, {here} here{size}"


def _parted(
    histories: Sequence[Mapping[str, Series]], metric: str, last: int, is_repeat: bool
) -> tuple[int, str, str, str] | None:
    """Return the first step up to `last` at which a metric differs, its name, and both values; None if none does."""
    columns = []
    for series in (history.get(metric) for history in histories):
        known = np.empty((2, 0)) if series is None else np.stack((series.steps, series.values))
        columns.append(known[:, known[0] <= last])
    if np.array_equal(columns[0], columns[1], equal_nan=True):  # of long runs in milliseconds
        return None
    common = min(column.shape[1] for column in columns)
    one, other = (column[:, :common] for column in columns)
    unlike = np.any((one != other) & ~(np.isnan(one) & np.isnan(other)), axis=0)
    start = int(unlike.argmax()) if unlike.any() else common
    near = (column[:, start : start + _NEAR].T.tolist() for column in columns)
    there, here = ({int(step): repr(value) for step, value in rows} for rows in near)
    steps = there.keys() | here.keys() if is_repeat else there.keys() & here.keys()
    parted = [step for step in steps if there.get(step) != here.get(step)]
    step = min(parted, default=None)
    return None if step is None else (step, metric, here.get(step, "no row"), there.get(step, "no row"))


def _apart(here: float, there: float) -> str:
    difference = abs(here - there)
    return f"{difference:.2g}, relative {difference / max(abs(there), 1e-300):.2g}"


# --- which runs ------------------------------------------------------------------------------------


def _chosen(refs: Iterable[object], notes: list[str]) -> list[Run]:
    found: dict[Path, Run] = {}
    for ref in _flat(refs):
        if isinstance(ref, str) and any(sign in ref for sign in "*?["):
            for run in _fitting(ref):
                found.setdefault(run.dir.resolve(), run)
            continue
        run = ref if isinstance(ref, Run) else Run(ref)
        if run.dir.resolve() in found:
            notes.append(f"{run.id}: was given twice and is drawn once")
        found.setdefault(run.dir.resolve(), run)
    return list(found.values())


def _flat(refs: Iterable[object]) -> Iterator[str | Path | RunDir | Run]:
    for ref in refs:
        if isinstance(ref, str | Path | RunDir | Run):
            yield ref
        elif isinstance(ref, Iterable):
            yield from _flat(ref)
        else:
            raise ConfigError(f"{shown(ref)}: is no run; give runs, ids, names, or a pattern such as 'lr_*'")


def _fitting(pattern: str) -> list[Run]:
    """Return the runs whose name or id fits a pattern, oldest first."""
    runs = find_project().runs
    rows = Rows(runs.resolve())
    listed = list(rows.newest())
    fitting = [rows.run(row.id) for row in listed if any(fnmatch.filter((row.id, row.name), pattern))]
    if not fitting:
        known = ", ".join(list(dict.fromkeys(row.name for row in listed))[:8]) or "no run yet"
        raise RunNotFoundError(f"{shown(pattern)}: fits no name or id of a run in {runs}; there are: {known}")
    return fitting[::-1]


# --- what is recorded of a run ----------------------------------------------------------------------


def facts_of(run: Run) -> Facts:
    """Return all recorded values of a run that may differ, as text; FormatError if a newer nbtools wrote the run."""
    launch, config = run.info, run.config or {}
    found: Facts = {"code.recipe": str(launch["recipe"] or "none")} if "recipe" in launch else {}
    values = mapping_at(config, "config")
    found |= _flattened("", values)
    found |= {} if values else _arguments(recorded_arguments(launch), f"{run.dir.resolve()}/")
    folder = f"{run.files.configs}/"
    changed = [str(word).removeprefix(folder) for word in mapping_at(launch, "program").get("config_values") or ()]
    found |= {f"arguments.config.{name}": value for name, _, value in (word.partition("=") for word in changed)}
    found |= _flattened("derived.", mapping_at(config, "derived"))
    found |= _flattened("launch.", _settings(mapping_at(launch, "launch")))
    found |= _flattened("versions.", mapping_at(launch, "versions"))
    found |= _code(run)
    device = {name: v for name, v in mapping_at(config, "environment").items() if name not in _IN_VERSIONS}
    found |= _flattened("machine.", {"host": launch.get("host"), **device})
    variables = mapping_at(launch, "env").items()
    found |= _flattened("variables.", {k: v for k, v in variables if not k.startswith(_OWN_VARIABLES)})
    if origin := origin_of(launch):
        found["origin"] = origin
    found |= {
        f"steered.{one.field or one.action} after step {one.step}": str(one) for one in run.events if not one.refused
    }
    return found


def _flattened(prefix: str, values: Mapping[str, Any]) -> Facts:
    found: Facts = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found |= _flattened(f"{prefix}{name}.", value)
        else:
            found[f"{prefix}{name}"] = _text(value)
    return found


def _text(value: object) -> str:
    text = value if isinstance(value, str) and value.strip() == value and value else json.dumps(value, default=repr)
    return {"null": "None", "true": "True", "false": "False"}.get(text, text)


def _settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a launch, and the given ones of Slurm."""
    if not recorded:
        return {}
    settings = dict(recorded)
    if not isinstance(cluster := settings.pop("cluster", None), dict):
        return {**settings, "on": "this machine"}
    asked = {f"slurm.{name}": value for name, value in cluster.items() if value not in (None, "")}
    return {**settings, "on": "Slurm", **asked}


def _arguments(args: Sequence[str], own: str) -> Facts:
    """Return the arguments of a script without a config: `--lr 0.1`, `--lr=0.1`, `lr=0.1`, `--fast`, and the others."""
    found: Facts = {}
    words = [word.replace(own, "") for word in args]  # the copy of a config in each run directory
    flag, number = "", 0
    for word in words:
        name, is_assigned, value = word.partition("=")
        is_flag = word.startswith("-") and not word[1:2].isdigit()
        if is_flag or (is_assigned and name.isidentifier()):
            key = f"arguments.{name.lstrip('-').replace('-', '_')}"
            found[key] = value if is_assigned else "given"
            flag = "" if is_assigned else key
        elif flag:
            found[flag] = word if found[flag] == "given" else f"{found[flag]} {word}"
        else:
            number += 1
            found[f"arguments.{number}"] = word
    return found


def _code(run: Run) -> Facts:
    """Return the commit, its uncommitted changes, and the lines of the script.

    Of a recipe's script the values of its config are left out: they are compared as fields.
    """
    code, found = mapping_at(run.info, "code"), Facts()
    if commit := code.get("commit"):
        found["code.commit"] = str(commit)[:12]
        changed = f"{plural(whole(code.get('lines')) or 0, 'line')} ({str(code.get('sha256'))[:8]})"
        found["code.uncommitted"] = changed if code.get("lines") else "none"
    try:
        with run.files.script.open("rb") as file:
            source = file.read(_MOST_SCRIPT_BYTES).decode(errors="replace")
    except OSError:
        return found
    lines = source.splitlines()
    if run.info.get("recipe") is not None:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            for node in reversed(syntax_tree(source).body):
                is_value = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("launch", "config")
                if is_value or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                    del lines[node.lineno - 1 : node.end_lineno]
        lines = [line for line in lines if not line.startswith("#")]  # the last one has a checksum of the values
    return {**found, "code.script": "\n".join(line.rstrip() for line in lines if line.strip())}


# --- what differs ------------------------------------------------------------------------------------


def _differences(runs: Sequence[Run], facts: Sequence[Facts]) -> list[Difference]:
    """Return the fields with different values, config first.

    Hidden values are not compared, and neither are runs without the field, such as runs of another recipe.
    """
    found = []
    are_arguments = not any(mapping_at(run.config or {}, "config") for run in runs)
    for name in dict.fromkeys(itertools.chain.from_iterable(facts)):
        missing = "from its beginning" if name == "origin" else None
        missing = "–" if name.startswith(("launch.slurm.", "steered.")) else missing
        if name.startswith("arguments.") and are_arguments:
            missing = "not given"
        values = [one.get(name, missing) for one in facts]
        known = {value for value in values if value is not None and value != MASK}
        if len(known) > 1:
            shown_values = _scripts(values) if name == "code.script" else values
            found.append(Difference(name, tuple("–" if value is None else _cut(value) for value in shown_values)))
    order = {prefix: i for i, prefix in enumerate(("", "arguments", "launch", "code", "origin", "versions", "derived"))}

    def rank(difference: Difference) -> int:
        prefix, dot, _ = difference.name.partition(".")
        return order.get(prefix if dot or prefix == "origin" else "", len(order))

    return sorted(found, key=rank)


def _scripts(sources: Sequence[str | None]) -> list[str | None]:
    """Return, for each script, how many lines it has, or how many differ from those of the first."""
    first = next(source for source in sources if source is not None).splitlines()
    found: list[str | None] = []
    for source in sources:
        if source is None or source.splitlines() == first:
            found.append(None if source is None else f"{plural(len(first), 'line')}")
            continue
        signs = [line[:1] for line in [*difflib.unified_diff(first, source.splitlines(), n=0)][2:]]
        found.append(f"+{signs.count('+')} −{signs.count('-')} lines")
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _labels(runs: Sequence[Run], differences: Sequence[Difference]) -> list[str]:
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    fields = [difference for difference in differences if not difference.name.startswith(("versions", "derived"))]
    fields.sort(key=lambda one: (one.name != "launch.nproc_per_node", one.name == "origin", "/" in "".join(one.values)))
    fields = fields[:12]
    for count in (1, 2):
        for chosen in itertools.combinations(fields, count):
            told = [
                ", ".join(f"{one.name.rpartition('.')[2]} {one.values[i].rpartition('/')[2]}" for one in chosen)
                for i in range(len(runs))
            ]
            labels = [f"{name} · {text}" for name, text in zip(names, told, strict=True)]
            if len(set(labels)) == len(labels):
                return labels
    return [run.id for run in runs]
