"""Tiles below the form: effective batch, optimizer steps, training samples, parameters, and the commands."""

import threading
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import ipywidgets as widgets

from nbtools.config import Launch, TrainConfig
from nbtools.errors import DataError
from nbtools.launcher import findings
from nbtools.launcher.sizes import num_trainable_parameters
from nbtools.launcher.step_count import Schedule, schedule
from nbtools.machine.devices import devices

_PATIENCE_S = 0.05


class Summary:
    """Tiles below the form; a thread counts the data, which may take seconds."""

    def __init__(self, root: Path, on_counted: Callable[[], None]) -> None:
        """Count below project root `root`, and call `on_counted` from the thread after each count."""
        self.widget = widgets.HTML()
        self._root = root
        self._on_counted = on_counted
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted: tuple[TrainConfig, int] | None = None
        self._counted: tuple[tuple[TrainConfig, int], Schedule | DataError | None] | None = None

    def count(self, config: TrainConfig, world_size: int) -> Schedule | DataError | str | None:
        """Return the schedule, its error, None if only the training can know it, or "counting"."""
        wanted = (config, world_size)
        with self._lock:
            if self._counted is None or self._counted[0] != wanted:
                self._wanted = wanted
                self._arrived.clear()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="nbtools-count", daemon=True)
                    self._thread.start()
        # A cached count arrives at once, without a flicker.
        self._arrived.wait(_PATIENCE_S)
        with self._lock:
            return self._counted[1] if self._counted and self._counted[0] == wanted else "counting"

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted = self._wanted
                if wanted is None:
                    self._thread = None
                    return
            outcome: Schedule | DataError | None
            try:
                outcome = schedule(*wanted, root=self._root)
            except DataError as error:
                outcome = error
            except Exception as error:  # noqa: BLE001 - the thread continues with the next values
                outcome = DataError(str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}")
            with self._lock:
                self._counted = (wanted, outcome)
                if self._wanted == wanted:
                    self._wanted = None
                    self._arrived.set()
            self._on_counted()

    def show(self, config: TrainConfig, launch: Launch, commands: Sequence[str]) -> str:
        """Show the tiles; return why the data cannot be used, or an empty string."""
        num_processes = launch.resolved(len(devices())).num_processes
        outcome = self.count(config, num_processes)
        parameters = num_trainable_parameters(config)
        batch, product = findings.batch(config, num_processes)
        tiles = [
            _tile(f"{batch:,}", "effective batch", product),
            *_data_tiles(config, outcome),
            _tile(f"{parameters:,}", "parameters", f"trained in {config.precision}")
            if parameters is not None
            else _tile("?", "parameters", "known after the model is loaded"),
        ]
        lines = "".join(f"<code>{escape(command)}</code>" for command in commands)
        self.widget.value = f'<div class="nbtools-tiles">{"".join(tiles)}</div><div class="nbtools-run">{lines}</div>'
        return str(outcome) if isinstance(outcome, DataError) else ""

    def clear(self) -> None:
        """Show empty tiles, for wrong values."""
        tiles = [_tile("–", name) for name in ("effective batch", "optimizer steps", "training samples", "parameters")]
        self.widget.value = f'<div class="nbtools-tiles">{"".join(tiles)}</div>'


def _data_tiles(config: TrainConfig, outcome: Schedule | DataError | str | None) -> list[str]:
    if isinstance(outcome, Schedule):
        return [
            _tile(f"{outcome.total_steps:,}", "optimizer steps", findings.epochs(outcome)),
            _tile(f"{outcome.num_train_samples:,}", "training samples", outcome.held_out),
        ]
    if isinstance(outcome, DataError):
        value, why = "–", "see above"
    elif outcome is None:
        value, why = "?", "known after the training has read the data"
    else:
        value, why = "…", "counting"
    steps = f"at most {config.max_steps:,}" if config.max_steps is not None and outcome is None else value
    return [_tile(steps, "optimizer steps", why), _tile(value, "training samples", why)]


def _tile(value: str, name: str, detail: str = "") -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(detail)}&nbsp;</small></div>"
