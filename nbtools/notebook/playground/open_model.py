"""The checkpoint that a playground uses, and the process that has loaded its model."""

import weakref
from collections.abc import Callable

import ipywidgets as widgets

from nbtools.launcher.resume import named_checkpoint
from nbtools.notebook.rows.field_rows import INPUT_SHAPE, FormRow
from nbtools.predict.model_process import ModelProcess
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.script.field import Field

_LATEST = ""
_ASKS_CONSENT = "I trust the Python code that comes with this model: run it on this machine"
_HELP = "Checkpoint to load, with its eval/loss; a run that trains saves newer ones meanwhile."
_of_runs: "weakref.WeakValueDictionary[str, OpenModel]" = weakref.WeakValueDictionary()
"""The model of each run whose process may be open: a run has one process, however often its cell is run."""


class OpenModel:
    """The choice of a checkpoint, and its model in a process of its own."""

    def __init__(self, run: Run, checkpoint: str | int | None, trust_remote_code: bool, has_code: bool) -> None:
        """Choose a checkpoint, None for the latest verified one; a model with code of its own asks about it."""
        self._run = run
        self.process: ModelProcess | None = None
        self._loaded: object = None
        shape = {"width": "auto", "display": "" if has_code else "none"}
        self.consent = widgets.Checkbox(trust_remote_code, description=_ASKS_CONSENT, indent=False, layout=shape)
        self._latest = [("latest verified", _LATEST)]
        self.checkpoint = widgets.Dropdown(options=self._latest, description="checkpoint", **INPUT_SHAPE)
        self.row = FormRow(Field("checkpoint", help=_HELP), self.checkpoint).widget
        self._offer_checkpoints()
        if checkpoint is not None:
            self.checkpoint.value = named_checkpoint(run, checkpoint).name

    def _offer_checkpoints(self) -> None:
        """List the run's current checkpoints; a chosen one that was removed is replaced by the latest."""
        saved = [one for one in self._run.checkpoints if isinstance(one, Checkpoint)]
        found = [(_labelled(one), one.name) for one in reversed(saved)]
        options, before = [*self._latest, *found], self.checkpoint.value
        if tuple(options) != tuple(self.checkpoint.options):
            self.checkpoint.options = options
            self.checkpoint.value = before if before in dict(found).values() else _LATEST

    def opened(self, tell: Callable[[str], None]) -> ModelProcess:
        """Return the process of the chosen checkpoint, and end any other one of this run's playgrounds."""
        self._offer_checkpoints()
        saved = self._run.checkpoints
        wanted = self.checkpoint.value or (saved[-1].name if saved else "")
        if self.process is None or self._loaded != (wanted, self.consent.value):
            self.close()
            if (earlier := _of_runs.get(self._run.id)) is not None:
                earlier.close()
            _of_runs[self._run.id] = self
            tell(f"Loading {wanted or 'the model'}")
            trust_remote_code = self.consent.value
            self.process = ModelProcess(self._run, self.checkpoint.value or None, trust_remote_code=trust_remote_code)
            self._loaded = wanted, trust_remote_code
        return self.process

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.close()


def _labelled(checkpoint: Checkpoint) -> str:
    loss = checkpoint.metrics.get("eval/loss")
    return checkpoint.name if loss is None else f"step {checkpoint.step:,} · {loss:.4g}"
