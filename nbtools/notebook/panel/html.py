"""The panel's HTML: header, progress, failure and ranks; every text is escaped here.

A notebook trusts the output of its user's cells: JupyterLab does not remove scripts from it.
"""

from collections.abc import Collection, Sequence

from nbtools.errors import duration, literal, plural
from nbtools.failures.failure import Failure
from nbtools.notebook import html_parts
from nbtools.notebook.html_parts import BORDER, CUT, FONT, MONO, MUTED, SURFACE, TEXT, WARN, copy_button, details_html
from nbtools.notebook.panel.snapshot import Snapshot
from nbtools.run.ranks.stacks import RankStacks
from nbtools.run.ranks.stragglers import Straggler
from nbtools.run.records import local_time
from nbtools.run.slurm_job import ends_too_early
from nbtools.rundir.heartbeat import RankHeartbeat, nodes_of

_MAX_CHIPS = 16
_SHORT_SOURCE = 100
_MAX_TRACE_LINES = 200


def without_kernel(run_id: str, live_at: float | None) -> str:
    """Return the sentence that a page shows instead of a run's widgets while they have no kernel.

    `live_at` is the Unix time of the static outputs of an active run; None for a run that has ended.
    """
    line = f'import nbtools as nt; nt.LivePlot("{run_id}")'
    code, style = f"<code>{literal(line)}</code>", f"{FONT}{MUTED}margin:6px 0"
    text = f"For the controls, run {code}"
    if live_at is not None:
        style = f"{FONT}{TEXT}{SURFACE}border-left:4px solid #3f90da;padding:4px 10px;margin:6px 0"
        text = f"State at {local_time(live_at)}. Training was not affected. To see it live, run {code}"
    return f"<div role='note' style='{style}'>{text}</div>"


def header(
    name: str, run_id: str, state: str, notes: Sequence[str] = (), waiting_for: str = "", alarms: Sequence[str] = ()
) -> str:
    """Return the run's name, id and state (a `RunState`); `notes`, as the script and the commit, are below.

    `waiting_for` is what the run waits for, such as `behind mlm_tiny on GPU 0,1`, or why it was stopped; `alarms` what
    it needs help with. Without these the first line never wraps, so that its height stays when the run ends: the id is
    cut first.
    """
    sign, colour, word, meaning = html_parts.STATES[state]
    if alarms:
        sign, colour = "▲", html_parts.AMBER
    word, meaning = (f"{word} {waiting_for}", "") if waiting_for else (word, meaning)
    below = f"<span style='{MUTED}display:block'>{literal(' · '.join(notes))}</span>" if notes else ""
    detail = f"<span style='{MUTED}'> · {literal(meaning)}</span>" if meaning else ""
    detail += f"<b role='alert' style='{WARN}'> · {literal(' · '.join(alarms))}</b>" if alarms else ""
    wrap, cut = ("wrap", "") if alarms or waiting_for else ("nowrap", f"{CUT}flex:0 99 auto")
    return (
        f"<div style='{FONT}{TEXT}width:0;min-width:100%'>"
        f"<div style='display:flex;flex-wrap:{wrap};gap:2px 14px;align-items:baseline'>"
        f"<b style='{CUT}flex:0 1 auto;font-size:15px' title='{literal(name)}'>{literal(name)}</b>"
        f"<span style='{MUTED}{MONO}{CUT}flex:0 9999 auto' title='{literal(run_id)}'>{literal(run_id)}</span>"
        f"<span role='status' style='{cut}'><span aria-hidden='true' style='color:{colour};font-weight:700'>{sign}"
        f"</span> <b>{literal(word)}</b>{detail}</span></div>{below}</div>"
    )


def progress(
    facts: Snapshot, elapsed_s: float | None, remaining_s: float | None, state: str, job_s: float | None = None
) -> str:
    """Return a progress bar with the step, the elapsed and the remaining time, and the pace.

    `job_s` is the time to the end of the Slurm job; it is amber if the training needs more.
    """
    step, total_steps, pace = facts.step, facts.total_steps, facts.seconds_per_step
    share = min(1.0, step / total_steps) if total_steps else 0.0
    parts = [f"step {step:,} of {total_steps:,} · {100 * share:.0f}%" if total_steps else f"step {step:,}"]
    if elapsed_s is not None:
        parts.append(f"{'waiting for' if state == 'QUEUED' else 'elapsed'} {duration(max(1.0, elapsed_s))}")
    if remaining_s is not None:
        parts.append(f"about {duration(remaining_s)} left" if remaining_s >= 1 else "nearly done")
    if job_s is not None:
        limit = f"the job ends in {duration(job_s)}"
        is_early = ends_too_early(job_s, remaining_s)
        parts.append(f"<b style='{WARN}'>{limit}, before the training</b>" if is_early else limit)
    if pace:
        parts.append(f"{1 / pace:.3g} steps/s" if pace <= 10 else f"{pace:.3g} s/step")
    parts += map(literal, facts.use)
    bar = (
        f"<div role='progressbar' aria-label='training progress' aria-valuemin='0' aria-valuemax='100' "
        f"aria-valuenow='{100 * share:.0f}' "
        f"style='{SURFACE}height:6px;border-radius:3px;overflow:hidden;margin:5px 0 3px'>"
        f"<div style='width:{100 * share:.2f}%;height:100%;background:{html_parts.STATES[state][1]}'></div></div>"
    )
    slow = f"<div role='note' style='{WARN}'>{literal(facts.slow)}</div>" if facts.slow else ""
    return f"<div style='{FONT}{MUTED}'>{bar if total_steps else ''}<span>{' · '.join(parts)}</span>{slow}</div>"


def waiting(items: Sequence[tuple[str, bool, str]]) -> str:
    """Return the list of the stages before the first step: completed ones have a tick, the current one is bold."""
    if not items:
        return ""
    now = next((at for at, (_, is_done, _) in enumerate(items) if not is_done), len(items))
    lines = []
    for at, (name, is_done, detail) in enumerate(items):
        sign, style = ("✓", "") if is_done else ("●", "font-weight:600") if at == now else ("○", MUTED)
        label = literal(f"{'done: ' * is_done}{name}")
        content = f"{sign} {literal(name)} <span style='{MUTED}font-weight:400'>{literal(detail)}</span>"
        lines.append(f"<li style='{style};list-style:none;margin:0' aria-label='{label}'>{content}</li>")
    return f"<ul aria-label='before the first step' style='{FONT}{TEXT}padding:0;margin:8px 0'>{''.join(lines)}</ul>"


def failure(found: Failure, log_path: str) -> str:
    """Return the failure card: exception, first failing rank, place, progress and remedy; the rest is folded."""
    place = "" if found.rank is None else f"rank {found.rank}" + (f" on {found.host}" if found.host else "")
    trace = (found.traceback or "").rstrip().splitlines()
    num_cut = max(0, len(trace) - _MAX_TRACE_LINES)
    trace = [f"… {num_cut} more lines above"] * bool(num_cut) + trace[num_cut:]
    told = "\n".join([*found.lines, "", *trace, f"log: {log_path}"])
    return (
        f"<div role='alert' style='{FONT}{TEXT}box-sizing:border-box;width:0;min-width:100%;overflow-wrap:anywhere;"
        f"border-left:4px solid #d13a1f;padding:2px 0 2px 10px;margin:6px 0'>"
        f"<b style='font-size:15px'>{literal(found.message[:2000])}</b>"
        + (f"<div>{literal(place)}</div>" if place else "")
        + (f"<div style='{MONO}'>at {literal(found.where[:500])}</div>" if found.where else "")
        + (f"<div style='{MUTED}'>{literal(found.progress)}</div>" if found.progress else "")
        + (f"<div>What to do: {literal(found.advice[:1000])}</div>" if found.advice else "")
        + (f"<div style='{MONO}'>output: {literal(found.log[:500])}</div>" if found.log else "")
        + html_parts.folded_lines("traceback", trace)
        + html_parts.folded_lines(plural(len(found.others), "other rank"), found.other_lines)
        + f"<div style='{MUTED}font-size:12px'>{copy_button('Copy', told)}log: {literal(log_path)}</div></div>"
    )


def stacks(found: Sequence[RankStacks], first: Collection[int] = ()) -> str:
    """Return the Python stacks of the ranks, folded; those of the ranks in `first` come first and are open."""
    every = sorted(found, key=lambda item: (item.rank not in first, item.rank))
    titled = ((f"rank {item.rank} (pid {item.pid})", item.text.splitlines(), item.rank in first) for item in every)
    boxes = [html_parts.folded_lines(title, lines, is_open) for title, lines, is_open in titled]
    style = f"{FONT}width:0;min-width:100%;max-height:420px;overflow:auto;margin:4px 0"
    return f"<div role='region' aria-label='stacks of the ranks' style='{style}'>{''.join(boxes)}</div>"


def ranks(
    beats: Sequence[RankHeartbeat], late: Sequence[Straggler], now: float, is_running: bool, per_node: int | None = None
) -> str:
    """Return one chip per rank with its step and phase; of many ranks, the stragglers and those furthest behind.

    Stragglers, `late`, show for how long they have been silent; ranks of several nodes name theirs.
    """
    if not beats:
        return ""
    silent = {straggler.beat.rank: straggler for straggler in late}
    nodes = nodes_of(beats, per_node)
    places = {beat.rank: f" on node {node} ({beat.host[:40]})" for node, on in nodes.items() for beat in on}
    shown = sorted(beats, key=lambda beat: (beat.rank not in silent, beat.step, beat.rank))[:_MAX_CHIPS]
    chips = []
    for beat in sorted(shown, key=lambda beat: beat.rank):
        straggler, age = silent.get(beat.rank), now - beat.time
        seen = f" · {duration(age)} ago" if is_running and age >= 3 else ""
        if straggler is not None:
            condition = f", {literal(straggler.condition)}" if straggler.condition else ""
            seen = f" · <b>silent for {duration(straggler.silent_s)}{condition}</b>"
        edge = BORDER if straggler is None else f"1px solid {html_parts.AMBER};background:rgba(255,169,14,.16)"
        place = literal(places[beat.rank]) if len(nodes) > 1 else ""
        words = f"rank {beat.rank}{place} · step {beat.step:,} · {literal(beat.phase[:40])}{seen}"
        chips.append(f"<span style='border:{edge};border-radius:10px;padding:0 8px;white-space:nowrap'>{words}</span>")
    if len(beats) > len(shown):
        on = f" on {len(nodes):,} nodes" if len(nodes) > 1 else ""
        behind, ahead = min(beat.step for beat in beats), max(beat.step for beat in beats)
        steps = f"all at step {ahead:,}" if behind == ahead else f"steps {behind:,} to {ahead:,}"
        chips.append(f"<span>of {len(beats):,} ranks{on}, {steps}</span>")
    style = f"{FONT}{MUTED}font-size:12px;display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 6px;margin:5px 0"
    return f"<div style='{style}'>{''.join(chips)}</div>"


def sources(lines: Sequence[str]) -> str:
    """Return where a program's curves come from as one quiet line, which unfolds if there is more."""
    if not lines:
        return ""
    first = f"Curves: {literal(lines[0])}"
    if len(lines) == 1 and len(lines[0]) < _SHORT_SOURCE:
        return f"<div style='{FONT}{MUTED}overflow-wrap:anywhere'>{first}</div>"
    more = f" · and {plural(len(lines) - 1, 'more line')}" if len(lines) > 1 else ""
    title = f"<span style='{CUT}' title='{literal(lines[0])}'>{first}{more}</span>"
    items, style = "".join(f"<li>{literal(line)}</li>" for line in lines), "margin:4px 0 2px;padding-left:18px"
    body = f"<ul style='{FONT}{TEXT}{style};overflow-wrap:anywhere'>{items}</ul>"
    return details_html(title, body, style=f"{MUTED}{CUT}")
