"""The texts of a panel: header, progress, ranks, failure and what it waits for above the curves, sources below."""

from pathlib import Path

from nbtools.machine.processes import removed_in_words
from nbtools.notebook.html_parts import NO_FORMULAS, note
from nbtools.notebook.panel import html
from nbtools.notebook.panel.snapshot import ShownRun, alarms_of, notes_of, waits_of
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.widgets import html_widget
from nbtools.run.slurm_job import time_left_s
from nbtools.run.state import RunState, waiting_for, why_stopped


class RunTexts:
    """One widget for each text; an empty one takes no room."""

    def __init__(self) -> None:
        self.header, self.progress, self.ranks = (html_widget() for _ in range(3))
        self.failure, self.waiting, self.sources, self.losses = (html_widget() for _ in range(4))
        self.above = (self.header, self.progress, self.ranks, self.failure, self.waiting)
        """In their order above the curves."""
        self.alarms: list[str] = []
        """Sentences on problems of a running training."""

    def static(self) -> str:
        """Return the texts above the curves for a page without widgets."""
        words = "".join(part.value for part in self.above)
        return f"<div class='{NO_FORMULAS}' style='max-width:{WIDTH}px'>{words}</div>"

    def show(self, shown: ShownRun, state: RunState, now: float) -> None:
        """Write the texts, which differ at each look: ages and the remaining time."""
        run, facts = shown.run, shown.snapshot
        is_running, job_s = state is RunState.RUNNING, time_left_s(run.records)
        script, notes = Path(str(run.info.get("script") or "")), notes_of(run, facts.restarts)
        notes = notes if run.name.endswith(script.stem) else [script.name, *notes]  # below the name
        why = why_stopped(run.records) if state is RunState.STOPPED else ""
        blocker = f"by stop_on: {why}" if why else "" if state.is_final else waiting_for(run.records)
        self.alarms = alarms_of(facts, shown.stragglers, job_s, now) if is_running else []
        remaining_s = facts.remaining_s(now) if is_running else None
        notes += filter(None, [shown.reading])
        self.header.value = html.header(run.name, run.id, state, notes, blocker, self.alarms)
        self.progress.value = html.progress(facts, _elapsed_s(shown, state, now), remaining_s, state, job_s)
        self.waiting.value = html.waiting(waits_of(run, state, facts))
        self.failure.value = html.failure(facts.failure, str(run.files.log)) if facts.failure else ""
        self.ranks.value = html.ranks(facts.ranks, shown.stragglers, now, is_running, facts.nproc_per_node)
        self.sources.value = html.sources(facts.sources)
        self.losses.value = note("\n".join(facts.warnings), is_warning=True)

    def show_removed(self, shown: ShownRun) -> None:
        """Say that the run directory was removed."""
        run, why = shown.run, f"since {removed_in_words(shown.run.files)}"
        self.header.value = html.header(run.name, run.id, RunState.LOST, waiting_for=why)
        self.progress.value = html.progress(shown.snapshot, None, None, RunState.LOST)
        self.failure.value = self.ranks.value = self.waiting.value = ""


def _elapsed_s(shown: ShownRun, state: RunState, now: float) -> float | None:
    """Return how long a run took, or takes by now; of one that is queued again, since then."""
    records, facts = shown.run.records, shown.snapshot
    if records.duration_s is not None:
        return records.duration_s
    is_queued_again = state is RunState.QUEUED and facts.restarts
    started = facts.restarts[-1].time if is_queued_again else records.began_at
    ended = (records.ended_at or facts.last_row) if state.is_final else now
    return ended - started if ended and started else None
