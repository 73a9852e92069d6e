"""The time of each rank in each phase, as one stacked bar of HTML per rank."""

from collections.abc import Mapping, Sequence

from nbtools.errors import literal
from nbtools.notebook.html_parts import FONT, MUTED, SURFACE, TEXT, WARN
from nbtools.notebook.plots.view import Limits
from nbtools.run.ranks.phases import PhaseRows, shares_in_words, shares_of, why_slow

# White numbers are readable on each of them, in both themes.
_COLOURS = {"data": "#b35900", "waiting": "#b3261e", "forward": "#2a74b8", "backward": "#1d5488"}
_COLOURS |= {"optimizer": "#4a6a99", "compute": "#1d5488", "evaluation": "#267a4b"}
_COLOURS |= {"checkpoint": "#7a5195", "other": "#5f6368"}
_MOST_BARS = 16
_LABELLED = 0.05


def phase_bars(phases: PhaseRows, parts: Sequence[Limits] = ()) -> str:
    """Return the bars of the whole run, and of parts of its steps; empty without phases."""
    titled = ((f"In steps {part[0]:,.0f} to {part[1]:,.0f}", phases.seconds(part)) for part in parts)
    return _bars("Time of each rank", phases.seconds()) + "".join(_bars(*each) for each in titled)


def _bars(title: str, seconds: Mapping[int, Mapping[str, float]]) -> str:
    if not seconds:
        return ""
    shares = {rank: shares_of(spent) for rank, spent in seconds.items()}
    shown = sorted(seconds, key=lambda rank: shares[rank].get("waiting", 0.0))[:_MOST_BARS]
    title += f": {len(shown)} of {len(shares):,}, which wait least for the others" * (len(shown) < len(shares))
    bars = "".join(_bar(f"rank {rank}", shares[rank], shares_in_words(seconds[rank])) for rank in sorted(shown))
    found = (phase for phase in _COLOURS if any(each.get(phase) for each in shares.values()))
    legend = " ".join(f"{_box(phase, 'width:10px;height:10px')} {phase} &emsp;" for phase in found)
    why = f"<div style='{WARN}'>{literal(why_slow(seconds))}</div>"
    bars += f"<div style='{MUTED}'>{legend}</div>"
    return f"<div style='{FONT}{TEXT}margin:0 0 10px'><b>{title}</b>{why}{bars}</div>"


def _bar(name: str, shares: Mapping[str, float], words: str) -> str:
    labels = {phase: f"{share:.0%}" * (share >= _LABELLED) for phase, share in shares.items() if share}
    boxes = "".join(_box(phase, f"width:{shares[phase]:.3%}", label) for phase, label in labels.items())
    style = f"{SURFACE}display:flex;flex:1;overflow:hidden;color:#fff;font-size:11px;text-align:center"
    return (
        f"<div style='display:flex;margin:2px 0'><span style='{MUTED}flex:0 0 6em'>{name}</span>"
        f"<span role='img' title='{words}' aria-label='{name}: {words}' style='{style}'>{boxes}</span></div>"
    )


def _box(phase: str, style: str, label: str = "") -> str:
    style += f";display:inline-block;overflow:hidden;background:{_COLOURS[phase]}"
    return f"<span style='{style}'>{label}</span>"
