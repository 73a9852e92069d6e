"""The curves of a group of runs as one: the mean of the runs, with the range from the lowest to the highest of them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nbtools.errors import plural
from nbtools.run.compare import ComparedRun
from nbtools.run.curves import NUM_COLUMNS, Curves, Ends, Sketch


def joined(runs: Sequence[ComparedRun], groups: Mapping[str, str]) -> list[ComparedRun]:
    """Return the runs of each group as one, with the colour of the first, and the others as they are.

    Runs of a group stay apart if their charts are split by different values.

    Args:
        runs: the runs that are drawn.
        groups: the name of the group of each run that is in one, by the id of the run.
    """
    members: dict[tuple[str, str], list[ComparedRun]] = {}
    for run in runs:
        name = groups.get(run.run.id, "")
        members.setdefault((name, run.part if name else run.label), []).append(run)
    found = []
    for (name, part), (first, *others) in members.items():
        if name:
            label = ", ".join(filter(None, (f"{name} · {plural(1 + len(others), 'run')}", part)))
            curves = mean_curves([one.curves for one in (first, *others)])
            first = replace(first, label=label, curves=curves, sources=() if others else first.sources)
        found.append(first)
    return found


def mean_curves(runs: Sequence[Curves]) -> Curves:
    """Return the mean of each metric over the runs that have it, with their lowest and highest means as extremes.

    Between its steps a run has the values of a straight line, after its last step it no longer counts. A value that is
    not finite makes the mean not finite. Times and samples are those of the run with the last step.
    """
    if len(runs) == 1:
        return runs[0]
    names = dict.fromkeys(itertools.chain.from_iterable(runs))
    return {name: _mean([run[name] for run in runs if name in run]) for name in names}


def _mean(every: Sequence[Sketch]) -> Sketch:
    longest = max(every, key=lambda one: one.steps[-1])
    every = [one for one in every if one.unit == longest.unit]
    if len(every) == 1:
        return longest
    steps = np.unique(np.concatenate([one.steps for one in every]))
    steps = steps[np.linspace(0, len(steps) - 1, min(len(steps), NUM_COLUMNS)).astype(int)]
    values = np.array([np.interp(steps, one.steps, one.mean) for one in every])
    has_value = np.array([(one.steps[0] <= steps) & (steps <= one.steps[-1]) for one in every])
    low, high = (np.where(has_value, values, end) for end in (np.inf, -np.inf))
    mean = np.where(has_value, values, 0.0).sum(axis=0) / has_value.sum(axis=0)
    times, samples = (np.interp(steps, longest.steps, known) for known in (longest.times, longest.samples))
    columns = np.array([steps, times, samples, low.min(axis=0), high.max(axis=0), mean, np.ones(len(steps))])
    diverged = [one.diverged_at for one in every if one.diverged_at is not None]
    ends = Ends(float(mean[-1]), int(steps[-1]))
    is_complete = all(one.is_complete for one in every)
    return Sketch(columns, ends, min(diverged, default=None), is_complete, longest.unit, num_runs=len(every))
