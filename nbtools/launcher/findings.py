"""What a check found out, one fact a line, and the lines of a preflight. Values first; showing them comes last."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from nbtools.config import Launch, TrainConfig
from nbtools.errors import LaunchError, plural
from nbtools.launcher.sizes import checkpoint_bytes, num_checkpoints_kept, num_trainable_parameters, training_bytes
from nbtools.launcher.step_count import Schedule
from nbtools.machine.devices import Device, devices, num_cores
from nbtools.recipes import Source
from nbtools.rundir.tail import terminal_text


@dataclass(frozen=True)
class Finding:
    """One fact, and the next step if it is not well."""

    level: Literal["ok", "warn", "problem"]
    subject: str
    text: str
    next_step: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<8} {self.subject:<12} {self.text}"
        return f"{line}\n{'':<22}-> {self.next_step}" if self.next_step else line

    @property
    def sentence(self) -> str:
        """What a warning says: the fact and the next step."""
        return f"{self.text}: {self.next_step}" if self.next_step else self.text

    def to_json(self) -> dict[str, str]:
        """The finding as plain values."""
        return asdict(self)


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding("ok", subject, text)


def warn(subject: str, text: str, next_step: str = "") -> Finding:
    """Some things will not work, or not as expected."""
    return Finding("warn", subject, text, next_step)


def problem(subject: str, text: str, next_step: str) -> Finding:
    """Nothing will work as it should."""
    return Finding("problem", subject, text, next_step)


# --- showing --------------------------------------------------------------------------------------

_SIGNS = {"ok": ("✓", "#2e8b57"), "warn": ("!", "#c77700"), "problem": ("✕", "#d13a1f")}


def render_text(title: str, findings: Iterable[Finding]) -> str:
    """The findings as lines that cannot move a terminal's cursor."""
    return "\n".join([terminal_text(line.encode(errors="backslashreplace")) for line in (title, *map(str, findings))])


def render_html(title: str, findings: Iterable[Finding]) -> str:
    """The findings as a small table; every text is escaped."""
    rows = []
    for finding in findings:
        sign, colour = _SIGNS[finding.level]
        step = f"<br>→ {_literal(finding.next_step)}" if finding.next_step else ""
        cells = (
            f"<span style='color:{colour}'><b>{sign}</b> {finding.level}</span>",
            _literal(finding.subject),
            f"<span style='overflow-wrap:anywhere'>{_literal(finding.text)}{step}</span>",
        )
        rows.append("".join(f"<td style='text-align:left;vertical-align:top'>{cell}</td>" for cell in cells))
    table = f"<b>{_literal(title)}</b><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    return f"<div class='mathjax_ignore tex2jax_ignore'>{table}</div>"  # a dollar in a name begins no formula


def _literal(text: str) -> str:
    return html.escape(terminal_text(text.encode(errors="backslashreplace")))


def size(num_bytes: float) -> str:
    """A number of bytes in words, such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


# --- what a launch means --------------------------------------------------------------------------


def batch(config: TrainConfig, world_size: int) -> tuple[int, str]:
    """Return the samples per optimizer step, and the product that they are."""
    accumulation = config.gradient_accumulation_steps
    accumulated = f" × {accumulation} accumulated" if accumulation > 1 else ""
    product = f"{config.batch_size}{accumulated} × {plural(world_size, 'process')}"
    return config.effective_batch(world_size), product


def epochs(counted: Schedule) -> str:
    """Say how many epochs the steps are, and how many steps an epoch has."""
    number = counted.total_steps / counted.steps_per_epoch
    exact = counted.total_steps % counted.steps_per_epoch == 0
    return f"{counted.steps_per_epoch:,} per epoch, {number:,.{0 if exact else 1}f} epochs"


def on_devices(launch: Launch, chosen: Sequence[Device]) -> Iterator[Finding]:
    """Say where the processes will run, and who holds memory there; `chosen` is empty on the CPU."""
    processes = plural(launch.nproc_per_node, "process")
    threads = plural(launch.omp_num_threads or 1, "thread")
    if not chosen:
        yield ok("devices", f"CPU: {processes} with {threads} each, {plural(num_cores(), 'core')}")
        return
    names = ", ".join(sorted({device.name for device in chosen}))
    free = sum(device.memory_total_bytes - device.memory_used_bytes for device in chosen)
    indices = ",".join(str(device.index) for device in chosen)
    yield ok("devices", f"GPU {indices} ({names}): {processes} with {threads} each, {size(free)} free")
    for device in chosen:
        if device.holders:
            step = (
                "restart this kernel to free it, or choose other GPUs"
                if any(h.is_caller for h in device.holders)
                else ""
            )
            text = f"GPU {device.index} ({device.name}) is in use: {', '.join(map(str, device.holders))}"
            yield warn("devices", text, step)
    if len(chosen) > launch.nproc_per_node:
        idle = ", ".join(str(device.index) for device in chosen[launch.nproc_per_node :])
        yield warn("devices", f"nproc_per_node={launch.nproc_per_node} leaves GPU {idle} idle")


def of_training(config: TrainConfig, launch: Launch) -> Iterator[Finding]:
    """Say what a config means for a launch whose GPUs are chosen, without a look at the data.

    Raises:
        LaunchError: a GPU cannot even hold weights, gradients and optimizer.
    """
    samples, product = batch(config, launch.nproc_per_node)
    yield ok("batch", f"{plural(samples, 'sample')} per step: {product}")
    parameters = num_trainable_parameters(config)
    known = "known once the model is loaded" if parameters is None else f"{parameters:,}, trained in {config.precision}"
    yield ok("parameters", known)
    if (needed := training_bytes(config)) is None:
        return
    for device in devices() if launch.gpus else ():
        if device.index in (launch.gpus or ()) and device.memory_total_bytes < needed:
            raise LaunchError(
                f"weights, gradients and AdamW's moments of this model take {size(needed)} on every GPU, and GPU "
                f"{device.index} ({device.name}) has {size(device.memory_total_bytes)}: choose GPUs with more memory, "
                "or a smaller model"
            )
    yield ok("memory", f"{size(needed)} per process for weights, gradients and AdamW's moments, before activations")


def of_data(config: TrainConfig, source: Source, counted: Schedule | None) -> Iterator[Finding]:
    """Say what will be trained on and for how many steps; `counted` is None where only the training will know."""
    num_bytes = sum(file.stat().st_size for file in source.files)
    files = f": {plural(len(source.files), 'file')}, {size(num_bytes)}" if source.files else ""
    if counted is None:
        yield ok("dataset", f"{source.name}{files}; the training counts its samples")
        most = f"{plural(config.epochs, 'epoch')}" + (f", at most {config.max_steps:,}" if config.max_steps else "")
        yield ok("steps", f"known once the training has read the data: {most}")
        return
    samples = f"{counted.num_train_samples:,} training and {counted.num_eval_samples:,} evaluation samples"
    yield ok("dataset", f"{source.name}{files}, {samples}")
    yield ok("steps", f"{counted.total_steps:,}: {epochs(counted)}")


def on_disk(config: TrainConfig | None, free_bytes: int) -> Finding:
    """Compare the free bytes where the runs are with what the run will keep."""
    free = f"{size(free_bytes)} free in runs/"
    each = None if config is None else checkpoint_bytes(config)
    if config is None or each is None:
        return ok("disk", f"{free}; how much this training saves is not known")
    count = num_checkpoints_kept(config)
    text = f"{free}, {plural(count, 'checkpoint')} of about {size(each)} at once: {size(count * each)}"
    if free_bytes >= count * each:
        return ok("disk", text)
    return warn("disk", text, "nbtools clean frees some, keep_last and keep_best say how many are kept")
