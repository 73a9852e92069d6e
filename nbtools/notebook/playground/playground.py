"""The playground: a run's model in a process of its own, its settings, an input, and the answers."""

import re
import shlex
import weakref
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from nbtools.errors import ConfigError, LaunchError, NbtoolsError
from nbtools.launcher.resume import config_of, named_checkpoint
from nbtools.notebook.background import guarded_by
from nbtools.notebook.form.field_rows import INPUT_SHAPE, STYLE, WITHOUT_KERNEL, FieldRow, FormRow, note_widget, row
from nbtools.notebook.form.sections import Section, Sections
from nbtools.notebook.kernel import answers_beside_cells
from nbtools.notebook.live_view import LiveView
from nbtools.notebook.panel.media_view import FramesPart
from nbtools.notebook.playground.answers import answers_html, frames_of
from nbtools.notebook.widgets import Output, button, close_tree, html_widget, view_bundle
from nbtools.predict.model_process import ModelProcess
from nbtools.recipes import recipe_of
from nbtools.recipes.predict_settings import settings_of
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.script.field import Field, fields_of
from nbtools.settings import errors_by_field

_LATEST = ""
_NUM_FRAMES = 65
_ASKS_CONSENT = "I trust the Python code that comes with this model: run it on this machine"
_of_runs: dict[str, "weakref.ref[Playground]"] = {}
"""The playground of each run whose process may be open: a run has one process, however often its cell is run."""


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
        self._guarded = guarded_by(lambda text: self._tell(text, is_wrong=True))
        self.results: list[dict[str, Any]] = []
        """The last answers, one for each input."""
        config = config_of(self.run)
        recipe, self._defaults = recipe_of(config), settings_of(config)
        shape = {"width": "auto", "display": "" if getattr(config, "trust_remote_code", False) else "none"}
        self._consent = widgets.Checkbox(trust_remote_code, description=_ASKS_CONSENT, indent=False, layout=shape)
        chosen = self._defaults.replace(**settings)
        self._process: ModelProcess | None = None
        self._loaded: object = None
        self._step = 0
        self._is_stopped = False
        self._asked: tuple[str, ...] = inputs
        self._given = (inputs, "\n\n".join(inputs))
        self._made(f"Playground: {recipe.title}")
        self._offer_checkpoints()
        if checkpoint is not None:
            self._checkpoint.value = named_checkpoint(self.run, checkpoint).name
        for name, field in self._fields.items():
            field.value = getattr(chosen, name)
        self._input.value = self._given[1]

    def _made(self, title: str) -> None:
        """Make the widgets."""
        kind = type(self._defaults)
        self._checkpoint = widgets.Dropdown(
            options=[("latest verified", _LATEST)], description="checkpoint", **INPUT_SHAPE
        )
        self._input = widgets.Textarea(
            rows=3, placeholder=kind.example, tooltip=kind.input_help, layout={"width": "auto"}
        )
        records = {name: field for name, field in fields_of(kind).items() if name != "num_frames"}
        self._fields = {name: FieldRow(field, self._guarded(self._check)) for name, field in records.items()}
        settings = Section("Settings", [*self._fields.values()])
        self._settings = Sections([], [[settings]], {name for name in self._fields if kind.is_basic(name)})
        self._go = button("Run", "play", "Compute the answers", style="primary")
        self._stop = button("Stop", "stop", "End the model's process")
        self._copy = button("Copy as command", "terminal", "Show the command that computes the same in a terminal")
        self._go.on_click(self._guarded(self._start))
        self._stop.on_click(self._guarded(self._end_early))
        self._copy.on_click(self._guarded(self._show_command))
        self._status, self._command, self._answers = (html_widget() for _ in range(3))
        self._frames = FramesPart()
        hint = note_widget()
        hint.value = f"{escape(kind.input_help)} A blank line separates several inputs."
        heading = f"{STYLE}<h3>{escape(title)}</h3><p>{escape(self.run.id)}</p>"
        buttons = row(self._go, self._stop, self._copy)
        buttons.layout.margin = "12px 0 4px"
        told = "Checkpoint to load, with its eval/loss; a run that trains saves newer ones meanwhile."
        chosen = FormRow(Field("checkpoint", help=told), self._checkpoint).widget
        asked = [widgets.HTML(heading), self._input, row(hint), chosen, self._consent, self._settings.columns]
        self.widget = widgets.VBox([*asked, buttons, self._status, self._command, self._answers, self._frames.widget])
        self.widget.add_class("nbtools-form")
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
            self._asked, self.results, self._command.value = inputs, [], ""
            process = self._opened()
            self._step = process.checkpoint.step
        if self._is_stopped:
            raise LaunchError("stopped")
        for answered in process.predict(inputs, settings):
            self.results.append(answered)
            self._tell(f"Computing on {process.device}: {len(self.results):,} of {len(inputs):,}")
        self._show(inputs)
        return f"{process.checkpoint.name} on {process.device}, {process.ready['parameters']:,} parameters"

    def close(self) -> None:
        """End the model's process and remove the widgets; the run continues."""
        self._end()
        self._end_process()
        self._frames.close()
        close_tree(self.widget)
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
        words = answers_html(self._asked, self.results, step=self._step) if self.results else ""
        note = f"<p>{escape(repr(self))} needs a kernel: run this cell again. Training is not affected.</p>"
        style = f"{STYLE}{WITHOUT_KERNEL}"
        static = {"text/html": f"{style}<div class='nbtools-no-kernel'>{words}{note}</div>", "text/plain": repr(self)}
        return [(static, {}), (view_bundle(self.widget), {})]

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
        values: dict[str, Any] = {}
        mistakes: dict[str, str] = {}
        for name, field in self._fields.items():
            try:
                values[name] = field.value
            except ValueError as error:
                mistakes[name] = str(error)
        mistakes = {**errors_by_field(type(self._defaults), values), **mistakes}
        self._settings.mark(mistakes, {})
        if mistakes:
            raise ConfigError("; ".join(f"{name}: {why}" if name else why for name, why in mistakes.items()))
        return values

    def _offer_checkpoints(self) -> None:
        """List the run's current checkpoints; a chosen one that was removed is replaced by the latest."""
        saved = [one for one in self.run.checkpoints if isinstance(one, Checkpoint)]
        found = [(_labelled(one), one.name) for one in reversed(saved)]
        options, before = [("latest verified", _LATEST), *found], self._checkpoint.value
        if tuple(options) != tuple(self._checkpoint.options):
            self._checkpoint.options = options
            self._checkpoint.value = before if before in dict(found).values() else _LATEST

    def _opened(self) -> ModelProcess:
        """Return the process of the chosen checkpoint, and end any other one of this run's playgrounds."""
        self._offer_checkpoints()
        saved = self.run.checkpoints
        wanted = self._checkpoint.value or (saved[-1].name if saved else "")
        trust_remote_code = self._consent.value
        if self._process is None or self._loaded != (wanted, trust_remote_code):
            self._end_process()
            earlier = _of_runs.get(self.run.id, lambda: None)()
            if earlier is not None and earlier is not self:
                earlier._end_process()
            _of_runs[self.run.id] = weakref.ref(self)
            self._tell(f"Loading {wanted or 'the model'}")
            chosen = self._checkpoint.value or None
            self._process = ModelProcess(self.run, chosen, trust_remote_code=trust_remote_code)
            self._loaded = wanted, trust_remote_code
        return self._process

    # --- what is shown ------------------------------------------------------------------------------

    def _show(self, inputs: Sequence[str]) -> None:
        self._answers.value = answers_html(inputs, self.results)
        item = frames_of(self.results, self._step)
        self._frames.widget.layout.display = "none" if item is None else ""
        if item is not None:
            self._frames.show(item, False, ())
        self._displays.replace(self._outputs(), which=[0])

    def _show_command(self) -> None:
        inputs, values = self._inputs(), self._values()
        name = self._checkpoint.value
        given = inputs if len(inputs) == 1 and inputs[0] else ["-"] if inputs[1:] else []
        words = ["nbtools", "predict", self.run.id, *given]
        words += ["--checkpoint", name] if name else []
        words += ["--trust-remote-code"][: self._consent.value]
        for field, value in values.items():
            if value != getattr(self._defaults, field):
                words += [f"--{field.replace('_', '-')}", str(value)]
        command = shlex.join(words)
        if len(inputs) > 1:
            command = f"printf '%s\\n' {shlex.join(inputs)} | {command}"
        said = "const said = this.nextSibling; "
        copy = "navigator.clipboard?.writeText(this.innerText).then(function () { said.innerText = 'copied' })"
        self._command.value = (
            f'<div class="nbtools-run"><code style="user-select:all;cursor:copy" '
            f'onclick="{said}{copy}">{escape(command)}</code><small>click the command to copy it</small></div>'
        )

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
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


def _labelled(checkpoint: Checkpoint) -> str:
    loss = checkpoint.metrics.get("eval/loss")
    return checkpoint.name if loss is None else f"step {checkpoint.step:,} · {loss:.4g}"
