"""Tiles below the form: effective batch, optimizer steps, training samples, parameters, and the commands."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import ipywidgets as widgets

from nbtools.config import Launch, TrainConfig
from nbtools.errors import DataError, message_of
from nbtools.launcher.checks import findings, sizes
from nbtools.launcher.checks.step_count import Schedule, evaluation_in_words, schedule
from nbtools.machine.devices import Device, devices
from nbtools.notebook.background import Background


class Summary:
    """Tiles below the form; a thread counts the data, which may take seconds."""

    def __init__(self, root: Path, on_counted: Callable[[], None]) -> None:
        """Count below project root `root`, and call `on_counted` from the thread after each count."""
        self.widget = widgets.HTML()
        self._root = root
        self._counts = Background(self._counted, on_counted)

    def _counted(self, wanted: tuple[TrainConfig, int]) -> Schedule | DataError | None:
        try:
            return schedule(*wanted, root=self._root)
        except Exception as error:  # noqa: BLE001 - the thread continues with the next values
            return DataError(str(error) if isinstance(error, OSError) else message_of(error))

    def show(self, config: TrainConfig, launch: Launch, commands: Sequence[str]) -> str:
        """Show the tiles; return why the data cannot be used, or an empty string."""
        found = devices() if launch.cluster is None else []
        resolved = launch.resolved(len(found))
        gpus = [gpu for gpu in found if launch.gpus is None or gpu.index in launch.gpus][: resolved.num_processes]
        is_known = launch.cluster is None or launch.cluster.num_gpus(resolved.num_processes) == 0
        # The GPUs of a job are not known yet.
        precision = sizes.precision_of(config, gpus) if is_known else config.precision
        num_processes = resolved.world_size
        counted = self._counts.answer((config, num_processes))
        outcome = "counting" if counted is None else counted[0]
        parameters = sizes.num_trainable_parameters(config)
        batch, product = findings.batch(config, num_processes)
        memory = _memory(config, num_processes, precision, gpus)
        count, detail = "?", "known after the model is loaded"
        if parameters is not None:
            count = f"{'about ' if getattr(config, 'model_name', None) else ''}{parameters:,}"
            detail = f"trained in {precision}{memory}"
        tiles = [_tile(f"{batch:,}", "effective batch", product), *_data_tiles(config, outcome)]
        tiles.append(_tile(count, "parameters", detail))
        self.show_commands(commands)
        self.widget.value = f'<div class="nbtools-tiles">{"".join(tiles)}</div>{self.widget.value}'
        return str(outcome) if isinstance(outcome, DataError) else ""

    def show_commands(self, commands: Sequence[str]) -> None:
        """Show the commands alone, for a program whose data and model are not known."""
        lines = "".join(f"<code>{escape(command)}</code>" for command in commands)
        self.widget.value = f'<div class="nbtools-run">{lines}</div>'

    def clear(self) -> None:
        """Show empty tiles, for wrong values."""
        tiles = [_tile("–", name) for name in ("effective batch", "optimizer steps", "training samples", "parameters")]
        self.widget.value = f'<div class="nbtools-tiles">{"".join(tiles)}</div>'


def _memory(config: TrainConfig, world_size: int, precision: str, gpus: Sequence[Device]) -> str:
    if (memory := sizes.memory_of(config, world_size, precision)) is None:
        return ""
    unknown = " before activations" if memory.activations is None else ""
    text = f"; about per process{unknown}: {sizes.memory_in_words(config, world_size, precision)}"
    least = min((gpu.memory_total_bytes for gpu in gpus), default=None)
    if least is None or least >= memory.total:
        return text
    step = sizes.smallest_change(config, world_size, precision, least)
    return f"{text}; a GPU has {findings.size(least)}{step and ': '}{step}"


def _data_tiles(config: TrainConfig, outcome: Schedule | DataError | str | None) -> list[str]:
    if isinstance(outcome, Schedule):
        steps = _tile(f"{outcome.total_steps:,}", "optimizer steps", findings.epochs(outcome))
        return [steps, _tile(f"{outcome.num_train_samples:,}", "training samples", outcome.held_out)]
    read = ""
    if isinstance(outcome, DataError):
        value, why = "–", "see above"
    elif outcome is None:
        value, why, read = "?", "known after the training has read the data", f"; {evaluation_in_words(config)}"
    else:
        value, why = "…", "counting"
    steps = f"at most {config.max_steps:,}" if config.max_steps is not None and outcome is None else value
    return [_tile(steps, "optimizer steps", why), _tile(value, "training samples", why + read)]


def _tile(value: str, name: str, detail: str = "") -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(detail)}&nbsp;</small></div>"
