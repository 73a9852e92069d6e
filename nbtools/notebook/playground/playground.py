"""The playground: a run's model in a process of its own, its settings, an input, and the answers."""

import re
import weakref
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from nbtools.errors import ConfigError, LaunchError, NbtoolsError
from nbtools.launcher.resume import config_of, named_checkpoint
from nbtools.notebook.background import guarded_by
from nbtools.notebook.html_parts import LIVE
from nbtools.notebook.live_view import LiveView
from nbtools.notebook.panel.checkpoint_list import LATEST, checkpoint_label
from nbtools.notebook.panel.media_view import FramesPart
from nbtools.notebook.panel.page import Page
from nbtools.notebook.playground.answers import answers_html, frames_of
from nbtools.notebook.rows.field_rows import INPUT_SHAPE, STYLE, FieldRow, FormRow, form_outputs, read_values
from nbtools.notebook.rows.sections import Section, Sections
from nbtools.notebook.widgets import Output, answers_beside_cells, button, html_widget, note_widget, offer, row
from nbtools.predict.model_process import ModelProcess
from nbtools.recipes import recipe_of
from nbtools.recipes.predict_settings import settings_of
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.script.field import Field, fields_of
from nbtools.settings import errors_by_field

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
        self.checkpoint = widgets.Dropdown(options=[("", LATEST)], description="checkpoint", **INPUT_SHAPE)
        self.row = FormRow(Field("checkpoint", help=_HELP), self.checkpoint).widget
        self._offer_checkpoints()
        if checkpoint is not None:
            self.checkpoint.value = named_checkpoint(run, checkpoint).name

    def _offer_checkpoints(self) -> None:
        """List the run's current checkpoints; a chosen one that was removed is replaced by the latest."""
        saved = [one for one in self._run.checkpoints if isinstance(one, Checkpoint)]
        found = [(checkpoint_label(one), one.name) for one in reversed(saved)]
        offer(self.checkpoint, [("latest verified", LATEST), *found], LATEST)

    def opened(self, tell: Callable[[str], None]) -> ModelProcess:
        """Return the process of the chosen checkpoint, and end any other one of this run's playgrounds."""
        self._offer_checkpoints()
        saved, trust_remote_code = self._run.checkpoints, self.consent.value
        wanted = self.checkpoint.value or (saved[-1].name if saved else "")
        if self.process is None or self._loaded != (wanted, trust_remote_code):
            self.close()
            if (earlier := _of_runs.get(self._run.id)) is not None:
                earlier.close()
            _of_runs[self._run.id] = self
            tell(f"Loading {wanted or 'the model'}")
            self.process = ModelProcess(self._run, self.checkpoint.value or None, trust_remote_code=trust_remote_code)
            self._loaded = wanted, trust_remote_code
        return self.process

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.close()


_NUM_FRAMES = 65


class Playground(LiveView):
    """Uses the model of a run, also while it trains: fills masks, assigns codes, writes, explores.

    The model runs in a process of its own, on a GPU that no process holds, or on the CPU. The process ends with
    `close`, with the kernel, or when another playground of the run computes.
    """

    def __init__(
        self,
        run: Run | str,
        *inputs: str,
        checkpoint: str | int | None = None,
        trust_remote_code: bool = False,
        **settings: object,
    ) -> None:
        """Make a playground; `inputs` that are given here are answered when it is displayed.

        Args:
            run: the run, or its id, a prefix of it, or `latest`.
            checkpoint: a name such as `step-000200`, or its step; None for the latest verified one.
            trust_remote_code: run the Python code that comes with the model, where it has some. A run that was trained
                with such code shows this as a question.
            settings: values of the settings by name; the others have the run's values.

        Raises:
            ConfigError: a setting does not exist or has a wrong value.
            CheckpointError: there is no such checkpoint.
        """
        self.run = run if isinstance(run, Run) else Run(run)
        super().__init__(f"playground {self.run.id}")
        config = config_of(self.run)
        self._defaults = settings_of(config)
        chosen = self._defaults.replace(**settings)
        has_code = getattr(config, "trust_remote_code", False)
        self._model = OpenModel(self.run, checkpoint, trust_remote_code, has_code)
        self._is_stopped = False
        self._given = (inputs, "\n\n".join(inputs))
        self._answered: tuple[tuple[str, ...], int] = (inputs, 0)
        """The inputs of the answers, and the checkpoint's step."""
        self.results: list[dict[str, Any]] = []
        """The last answers, one for each input."""
        self._made(f"Playground: {recipe_of(config).title}")
        for line in self._settings.rows:
            line.value = getattr(chosen, line.field.name)
        self._input.value = self._given[1]

    def _made(self, title: str) -> None:
        """Make the widgets."""
        guarded = guarded_by(lambda text: self._tell(text, is_wrong=True))
        kind = type(self._defaults)
        tip, shape = kind.input_help, {"width": "auto"}
        self._input = widgets.Textarea(rows=3, description="input", placeholder=kind.example, tooltip=tip, layout=shape)
        fields = [field for name, field in fields_of(kind).items() if name != "num_frames"]
        self._settings = Sections([[Section("Settings", [FieldRow(field, guarded(self._check)) for field in fields])]])
        self._mark({})
        self._go = button("Run", "play", "Compute the answers", guarded(self._start), style="primary")
        self._stop = button("Stop", "stop", "End the model's process", guarded(self._end_early))
        self._status, self._answers, self._frames = html_widget(), html_widget(), FramesPart()
        hint = note_widget()
        hint.value = f"{escape(kind.input_help)} A blank line separates several inputs."
        heading = f"{STYLE}<h3>{escape(title)}</h3><p>{escape(self.run.id)}</p>"
        buttons = row(self._go, self._stop)
        buttons.layout.margin = "12px 0 4px"
        model = self._model.row, self._model.consent
        asked = [widgets.HTML(heading), self._input, row(hint), *model, self._settings.columns]
        page = Page(layout={"display": "none"})  # names the slider
        self.widget = widgets.VBox([*asked, buttons, self._status, self._answers, self._frames.widget, page])
        self.widget.add_class("nbtools-form").add_class(LIVE)
        answers_beside_cells(self.widget)
        self._stop.layout.display = "none"
        self._frames.widget.layout.display = "none"

    # --- what is asked ------------------------------------------------------------------------------

    def answer(self) -> list[dict[str, Any]]:
        """Compute the answers to the inputs with the settings as shown; `results` keeps them.

        Raises:
            ConfigError: a setting is wrong, or there is no input.
            CheckpointError: the checkpoint is missing or damaged.
            LaunchError: the model's process could not be started, or ended.
        """
        self._tell(self._computed())
        return self.results

    def _computed(self) -> str:
        """Compute the answers; returns what computed them."""
        with self._lock:
            inputs, settings = self._inputs(), self._defaults.replace(**self._values())
            if "num_frames" in type(settings).model_fields:
                settings = settings.replace(num_frames=_NUM_FRAMES if len(inputs) == 1 else 0)
            self.results = []
            process = self._model.opened(self._tell)
            self._answered = inputs, process.checkpoint.step
        if self._is_stopped:
            raise LaunchError("stopped")
        for answered in process.predict(inputs, settings):
            self.results.append(answered)
            self._tell(f"Computing on {process.device}: {len(self.results):,} of {len(inputs):,}")
        self._show(inputs, process.checkpoint.step)
        return f"{process.checkpoint.name} on {process.device}, {process.ready['parameters']:,} parameters"

    def close(self) -> None:
        """End the model's process and remove the widgets; the run continues."""
        super().close()
        self._model.close()
        self._frames.close()
        self._displays.clear()

    def __repr__(self) -> str:
        return f"Playground({self.run.id!r})"

    def _ipython_display_(self) -> None:
        """Display the answers, which a cell computes before it ends, for a page without a kernel, and the widgets."""
        if self._given[0] and not self.results:
            try:
                self.answer()
            except NbtoolsError as error:
                self._tell(str(error), is_wrong=True)
        super()._ipython_display_()

    def _outputs(self) -> list[Output]:
        inputs, step = self._answered
        words = answers_html(inputs, self.results, step=step) if self.results else ""
        note = f"<p>{escape(repr(self))} needs a kernel: run this cell again. Training is not affected.</p>"
        return form_outputs(self.widget, f"{STYLE}{words}{note}", repr(self))

    def _inputs(self) -> tuple[str, ...]:
        """Return the inputs as given, or as typed since."""
        if self._given[0] and self._input.value == self._given[1]:
            return self._given[0]
        found = tuple(part for part in re.split(r"\n(?:[ \t]*\n)+", self._input.value) if part.strip())
        if not found and self._defaults.needs_input:
            raise ConfigError(f"the input is empty; type one, such as {self._defaults.example!r}")
        return found or ("",)

    def _values(self) -> dict[str, Any]:
        """Return the settings as shown, and mark the wrong ones.

        Raises:
            ConfigError: one of them is wrong.
        """
        values, mistakes = read_values({line.field.name: line for line in self._settings.rows})
        mistakes = {**errors_by_field(type(self._defaults), values), **mistakes}
        self._mark(mistakes)
        if mistakes:
            raise ConfigError("; ".join(f"{name}: {why}" if name else why for name, why in mistakes.items()))
        return values

    # --- what is shown ------------------------------------------------------------------------------

    def _mark(self, mistakes: dict[str, str]) -> None:
        kind = type(self._defaults)
        self._settings.mark(mistakes, {}, {name for name in kind.model_fields if kind.is_basic(name)})

    def _show(self, inputs: Sequence[str], step: int) -> None:
        self._answers.value = answers_html(inputs, self.results)
        item = frames_of(self.results, step)
        self._frames.widget.layout.display = "none" if item is None else ""
        if item is not None:
            self._frames.show(item, ())
        self._displays.replace(self._outputs(), which=[0])

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        kind = "nbtools-error" if is_wrong else "nbtools-said"
        self._status.value = f'<div class="{kind}">{escape(text)}</div>' if text else ""

    def _offer(self) -> None:
        self._go.disabled, self._stop.layout.display = True, ""

    def _look_again(self) -> None:
        self._go.disabled, self._stop.layout.display = False, "none"

    # --- buttons ------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._values()
        self._tell("")

    def _start(self) -> None:
        self._values()
        self._inputs()
        self._is_stopped = False
        self._act("Starting…", self._computed_or_stopped)

    def _computed_or_stopped(self) -> str:
        try:
            return self._computed()
        except Exception:  # of any kind: a process that Stop ends may be in the middle of anything
            if self._is_stopped:
                return "Stopped."
            raise

    def _end_early(self) -> None:
        self._is_stopped = True
        self._model.close()
