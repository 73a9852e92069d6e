"""The curves of a group of runs as one: the mean of the runs, with the range from the lowest to the highest of them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nbtools.errors import plural
from nbtools.run.compare import Comparison, Ends
from nbtools.run.curves import NUM_COLUMNS, Curves, Sketch


def joined(
    comparison: Comparison, curves: Sequence[Curves], groups: Mapping[str, str], split: Sequence[str]
) -> tuple[Comparison, list[Curves]]:
    """Return a comparison in which the runs of a group are one, with the colour of the first, and its curves.

    Args:
        comparison: the runs that are drawn.
        curves: the curves of each run.
        groups: the name of the group of each run that is in one, by the id of the run.
        split: the value of each run by which its charts are chosen: runs of a group with different ones stay apart.
    """
    members: dict[tuple[str, str], list[int]] = {}
    for index, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True)):
        members.setdefault((groups.get(run.id, f"\0{label}"), split[index]), []).append(index)
    first, labels, sources = [indices[0] for indices in members.values()], [], []
    for (name, value), indices in members.items():
        label = ", ".join(filter(None, (f"{name} · {plural(len(indices), 'run')}", value)))
        labels.append(name[1:] if name.startswith("\0") else label)
        sources.append(comparison.sources[indices[0]] if len(indices) == 1 else ())
    one_of = replace(
        comparison,
        runs=[comparison.runs[i] for i in first],
        labels=labels,
        facts=[comparison.facts[i] for i in first],
        differences=[replace(one, values=tuple(one.values[i] for i in first)) for one in comparison.differences],
        sources=sources,
        slots=[comparison.slots[i] for i in first],
    )
    return one_of, [mean_curves([curves[i] for i in indices]) for indices in members.values()]


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
