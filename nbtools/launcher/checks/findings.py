"""Findings of a check: facts with a level and a next step, rendered as text lines or as an HTML table."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from nbtools.config import TrainConfig
from nbtools.errors import literal, plural
from nbtools.rundir.tail import printable

if TYPE_CHECKING:
    from nbtools.launcher.checks.step_count import Schedule  # imports the recipes, which a job does not need


@dataclass(frozen=True)
class Finding:
    """One fact, and the next step for a warning or a problem."""

    level: Literal["ok", "warn", "problem"]
    subject: str
    text: str
    next_step: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<8} {self.subject:<12} {self.text}"
        return f"{line}\n{'':<22}-> {self.next_step}" if self.next_step else line

    @property
    def sentence(self) -> str:
        """The fact and the next step in one sentence."""
        return f"{self.text}: {self.next_step}" if self.next_step else self.text


class Findings(tuple[Finding, ...]):
    """Findings that are displayed as lines or as a table."""

    def __repr__(self) -> str:
        return render_text("", self).lstrip("\n")

    def _repr_html_(self) -> str:
        return render_html("", self)


ok = partial(Finding, "ok")
"""A finding that needs no action."""
warn = partial(Finding, "warn")
"""A finding about something that does not work, or not as expected."""
problem = partial(Finding, "problem")
"""A finding that prevents every launch."""


_SIGNS = {"ok": ("✓", "#2e8b57"), "warn": ("!", "#c77700"), "problem": ("✕", "#d13a1f")}


def render_text(title: str, findings: Iterable[Finding]) -> str:
    """Return the findings as lines, without terminal control characters."""
    return "\n".join([printable(line) for line in (title, *map(str, findings))])


def render_html(title: str, findings: Iterable[Finding]) -> str:
    """Return the findings as a small table; every text is escaped."""
    rows = []
    for finding in findings:
        sign, colour = _SIGNS[finding.level]
        step = f"<br>→ {literal(finding.next_step)}" if finding.next_step else ""
        cells = (
            f"<span style='color:{colour};white-space:nowrap'><b>{sign}</b> {finding.level}</span>",
            literal(finding.subject),
            f"<span style='overflow-wrap:anywhere'>{literal(finding.text)}{step}</span>",
        )
        rows.append("".join(f"<td style='text-align:left;vertical-align:top'>{cell}</td>" for cell in cells))
    table = f"<b>{literal(title)}</b><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    return f"<div class='mathjax_ignore tex2jax_ignore'>{table}</div>"  # a dollar sign does not start a formula


def size(num_bytes: float) -> str:
    """Return a number of bytes with its unit, such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def batch(config: TrainConfig, world_size: int) -> tuple[int, str]:
    """Return the samples per optimizer step, and the factors of that number as text."""
    accumulation = config.gradient_accumulation_steps
    accumulated = f" × {accumulation} accumulated" if accumulation > 1 else ""
    product = f"{config.batch_size}{accumulated} × {plural(world_size, 'process')}"
    return config.effective_batch(world_size), product


def epochs(counted: "Schedule") -> str:
    """Return the steps per epoch and the number of epochs as text."""
    number = counted.total_steps / counted.steps_per_epoch
    many = f"{number:.2g} epochs" if number < 1 else f"{number:,.1f} epochs"
    many = plural(int(number), "epoch") if number.is_integer() else many
    return f"{counted.steps_per_epoch:,} per epoch, {many}"
