"""The body of a form: edits a config or a program, shows errors beside their fields, writes and launches the script."""

import threading
import warnings
from collections.abc import Callable
from html import escape
from itertools import islice
from pathlib import Path

from nbtools.config import Launch, Slurm, TrainConfig
from nbtools.errors import ConfigError, LaunchError, plural
from nbtools.launcher.launch import launch_once
from nbtools.launcher.placement import place
from nbtools.launcher.programs.program_resume import said_in_words
from nbtools.notebook.background import Filling, guarded_by
from nbtools.notebook.form.field_list import WHERE, FieldList, Values, values_of
from nbtools.notebook.form.job_check import JobCheck
from nbtools.notebook.form.launch_bar import LaunchBar
from nbtools.notebook.form.layout import FormLayout
from nbtools.notebook.form.preset_row import PresetRow
from nbtools.notebook.form.script_row import ScriptRow
from nbtools.notebook.form.summary import Summary
from nbtools.notebook.form.trial_view import TrialView
from nbtools.notebook.widgets import Below, answers_beside_cells
from nbtools.project import find_project
from nbtools.recipes import Recipe
from nbtools.run.records import mapping_at, remembered
from nbtools.run.run import Run
from nbtools.rundir.rundir import RunDir, launch_of, newest_first
from nbtools.rundir.secret_values import masked, shown_masked
from nbtools.script import inspection
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.program_flags import guessed_resume
from nbtools.script.field import fields_of
from nbtools.script.program import SECRET_NOTE, Program
from nbtools.script.script import read_script

_MOST_RUNS = 20
"""Number of newest runs among which one of the same program is looked for."""


class FormBody:
    """The form of a recipe or a program: its widgets, and what its buttons do; each has a method of the same effect."""

    def __init__(
        self,
        recipe: Recipe | None,
        name: str | None = None,
        preset: str | None = None,
        content: TrainConfig | Program | None = None,
        launch: Launch | None = None,
    ) -> None:
        """Make a form for `recipe`, or for a program if that is None; errors and the rest are as for `ConfigForm`."""
        self._recipe = recipe
        if preset is None and content is None and recipe is not None:
            preset = next(iter(recipe.presets))
        if preset is not None and recipe is not None:
            preset_config, preset_launch = recipe.preset(preset)
            content, launch = content or preset_config, launch or preset_launch
        launch = launch or Launch()
        self._lock = threading.RLock()
        guarded = guarded_by(lambda text: self.bar.say(text, wrong=True), self._lock)
        self._filling = Filling()
        self._loaded_over: Values = {}
        self.run: Run | None = None
        """The run that this form launched last."""
        self.panel = Below()
        """The panel of that run."""
        edited, refresh = guarded(self._edited), guarded(self._refresh)
        self.fields = FieldList(recipe.config_class if recipe else Program, edited)
        usual_name = "my_program" if recipe is None else recipe.key
        label = "script" if recipe else "name"
        self.script = ScriptRow(find_project(), label, usual_name if name is None else name, edited)
        project = self.script.project
        self.view = FormLayout(recipe, self.fields, self.script, edited, guarded, self._fill)
        self._summary = Summary(project.root, refresh)
        self._job = JobCheck(project.runs, refresh)
        self._preset, self._trial = None, None
        if recipe is not None:
            on_choice = guarded(lambda: self._apply_preset(keeps_data=True))
            on_reset = guarded(lambda: self._apply_preset(keeps_data=False))
            self._preset = PresetRow(recipe, preset, self.fields.num_gpus, on_choice, on_reset)
            self._trial = TrialView(project.root, guarded)
        self.bar = LaunchBar(self.view.go_to, guarded, self._trial)
        self.bar.write.on_click(guarded(lambda: self._ask_or(self._write_and_say)))
        self.bar.launch.on_click(guarded(lambda: self._ask_or(self._launch_and_watch)))
        self.bar.load.on_click(guarded(self.load))
        head = [*([self._preset.widget] if self._preset else []), self.script.row.widget]
        self.widget = self.view.arranged(head, [self._summary.widget, self.bar.widget, self.panel.widget])
        answers_beside_cells(self.widget)  # without support in ipykernel a click waits for the running cell
        empty = {} if recipe else {name: field.default for name, field in fields_of(Program).items()} | {"cwd": "."}
        self._fill({**empty, **values_of(content, launch)})
        if content is not None and self.script.matches((content, launch)):
            self.script.remember(self.script.path)

    # --- values and actions -------------------------------------------------------------------------

    def valid(self) -> tuple[TrainConfig | Program, Launch]:
        """Return what is filled in; ConfigError if a value is wrong, and the message names each field."""
        with self._lock:
            values, mistakes = self.fields.read()
            mistakes |= self.view.arguments.mistakes if self.view.arguments else {}
        if mistakes:
            raise ConfigError("\n".join(f"{name}: {why}" if name else why for name, why in mistakes.items()))
        return self.fields.built(values)

    def write(self, overwrite: bool = False) -> Path:
        """Write the script; see `ConfigForm`."""
        with self._lock:
            path = self.script.write(self.valid(), overwrite)
            self._loaded_over = {}
            self._refresh()
            return path

    def launch(self) -> tuple[Run, bool]:
        """Write and launch the script, see `ConfigForm`; return the run, and whether it is a new one."""
        with self._lock:
            self.run, is_new = launch_once(self.write())
            return self.run, is_new

    def load(self, path: str | Path | None = None) -> None:
        """Load the values of a script; see `ConfigForm`."""
        with self._lock:
            script = read_script(path if path is not None else self.script.path)
            if type(script.content) is not self.fields.cls:
                given = f'"{script.recipe}"' if script.recipe else ""
                what = f"trains {script.recipe}" if script.recipe else "launches a program"
                raise ConfigError(f"{script.path}: {what}; use nt.ConfigForm({given})")
            self.bar.close_question()
            before = self.fields.read()[0]
            after = values_of(script.content, script.launch)
            self._loaded_over = {name: before.get(name) for name in after if before.get(name) != after[name]}
            if script.path.resolve().parent == self.script.project.scripts.resolve():
                self.script.input.value = script.path.stem
                self.script.remember(script.path)
            self._fill(after)
            edited = ", edited by hand" if script.hand_edited else ""
            changed = plural(len(self._loaded_over), "field")
            lacks = f" It does not name {', '.join(script.lacks)}: defaults." if script.lacks else ""
            self.bar.say(f"Loaded {script.path.name}{edited}: {changed} changed in the form.{lacks}")

    def __repr__(self) -> str:
        kind = "" if self._recipe is None else f"{self._recipe.key!r}, "
        preset = self._preset.name if self._preset else None
        return f"ConfigForm({kind}name={self.script.input.value!r}, preset={preset!r})"

    @property
    def subject(self) -> str:
        """The recipe's key, or the words for a program."""
        return self._recipe.key if self._recipe else "a program"

    def told(self) -> str:
        """Return the values of the usual fields, for a reader without a kernel."""
        values, _ = self.fields.read()
        usual = [name for cls in (self.fields.cls, Launch) for name in cls.model_fields if cls.is_basic(name)]
        rows = {name: WHERE if name == "cluster" else name for name in usual}
        cells = (f"<code>{name}</code> {escape(shown_masked(values[r]))}" for name, r in rows.items() if r in values)
        return " ".join(f"<span style='display:inline-block;margin-right:18px'>{cell}</span>" for cell in cells)

    # --- reading and showing ------------------------------------------------------------------------

    def _fill(self, values: Values) -> None:
        with self._filling:
            self.fields.fill(values)
        self._refresh()

    def _refresh(self) -> None:
        """Update everything that depends on the values; also called after the data has been counted."""
        with self._lock:
            if self._filling.is_on:
                return
            # Read once: the front end may assign to a field while another thread is here.
            values, mistakes = self.fields.read()
            if guessed := self.view.show_data(values):
                self._fill(guessed)
                return
            valid = None if mistakes else self.fields.built(values)
            if valid is None:
                self._summary.clear()
            obstacles = {} if valid is None else self._summarize(*valid)
            if (rows := self.view.arguments) is not None:
                before = rows.own.shown
                if not {*Program.model_fields, "python", "torchrun", ""}.intersection(mistakes):
                    program = Program(**{name: values[name] for name in Program.model_fields})
                    obstacles |= rows.show(program, values["python"], values["torchrun"] is not False)
                read = rows.own.shown
                if read is not None and read is not before and (guessed := self._guessed(values, read)):
                    self._fill(guessed)
                    return
                mistakes |= rows.mistakes
                valid = None if mistakes else valid
            self._mark(values, {**obstacles, **mistakes})
            mistakes |= self.script.show(valid)
            if self._trial is not None:
                self._trial.show(valid if valid and not obstacles else None)
            wrong = {**obstacles, **mistakes}
            places = [self.script.label, *(row.field.name for row in self.view.sections.rows), *wrong]
            can_load = (path := self.script.target) is not None and path.is_file()
            in_order = {name: wrong[name] for name in places if name in wrong}
            self.bar.show(in_order, can_write=not mistakes, can_load=can_load)

    def _summarize(self, content: TrainConfig | Program, settings: Launch) -> dict[str, str]:
        """Show the summary; return the errors that prevent a launch on this machine, by field.

        The script can still be written: it may be for another machine.
        """
        said, obstacles = self._job.look(settings)
        path = self.script.target
        script = f"scripts/{path.name if path else 'NAME.py'}"
        commands = [f"nbtools launch {script}", *([said] if said else [])]
        need = self._preset.need if self._preset else ""
        if need and settings.gpus is None and settings.cluster is None:
            others = "choose another, CPU only, or where, or write the script for a machine"
            obstacles["gpus"] = f"the preset {need}: {others}"
        root = self.script.project.root
        started = ["runs/ID/script.py"]
        args: tuple[str, ...] = ()
        if isinstance(content, Program):
            started, args = content.words(root, settings.resolved(1)), tuple(masked(content.args))
            if content.accelerate_config and settings.nnodes == 1:
                settings = settings.replace(torchrun=False)
        if settings.cluster is None:
            try:
                commands.append(place(settings).shell_line(started, args))
            except LaunchError as error:
                obstacles["gpus"] = str(error)
        if isinstance(content, Program):
            self._summary.show_commands(commands)
            if (file := content.file(root)) is not None:  # else of a module elsewhere on the path of its interpreter
                try:
                    inspection.python_file(file)
                except LaunchError as error:
                    obstacles["script" if content.script else "module"] = str(error)
        elif unfit := self._summary.show(content, settings, commands):
            obstacles["dataset" if "dataset" in self.fields.rows else ""] = unfit
        if self.view.data is not None and self.view.data.unguessed is not None:
            obstacles["dataset"] = "the first rows are read"
        return obstacles

    def _guessed(self, values: Values, read: ScriptArguments) -> Values:
        """Return values for the empty fields on checkpoints and resume of a program whose arguments were read: what the
        user has said of it, what an earlier run of it wrote, and the words by the name of an argument."""
        project = self.script.project
        path = Program(script=values["script"], module=values["module"]).file(project.root)
        said = remembered(str(project.root), str(path))
        words = tuple(said.get("resume") or ()) or guessed_resume(values["args"], read)
        found: Values = {"resume": words, "checkpoints": said.get("checkpoints")}
        for folder in islice(newest_first(project.runs), _MOST_RUNS):
            program = mapping_at(launch_of(folder), "program")
            if not found["checkpoints"] and all(program.get(name) == values[name] for name in ("script", "module")):
                found["checkpoints"], _, _ = said_in_words(Run(RunDir(folder)))
        return {name: value for name, value in found.items() if value and not values.get(name, True)}

    def _mark(self, values: Values, wrong: dict[str, str]) -> None:
        """Show in each row its error, or else from which value it was changed."""
        base = (self._preset.values or {}) if self._preset else values_of(None, Launch())
        others = {WHERE, *Slurm.model_fields}
        base = {name: base[name] for name in self.fields.in_use if name in base and name not in others}
        changed = [name for name in base if name not in values or values[name] != base[name]]
        base_of = "preset" if self._preset else "default"
        was = {name: f"{base_of}: {shown_masked(base[name], 60)}" for name in changed}
        was |= {name: f"was {shown_masked(value, 60)}" for name, value in self._loaded_over.items() if name in values}
        if self.view.arguments and (read := self.view.arguments.own.shown) and values.get("resume"):
            is_guess = values["resume"] == guessed_resume(values.get("args", ()), read)
            was |= {"resume": "guessed by the name of an argument"} if is_guess else {}
        self.view.mark(wrong, was)
        if self._preset is not None:
            self._preset.show(len(changed))

    def _apply_preset(self, *, keeps_data: bool) -> None:
        """Fill in the preset's values; `keeps_data` unless it names data, as they are chosen first."""
        if self._preset is None or (values := self._preset.values) is None:
            self._refresh()
            return
        self._loaded_over = {}
        if keeps_data and not self._preset.has_data and self.view.data:
            for name in ("dataset", *self.view.data.column_fields):
                del values[name]
        del values[WHERE]  # a preset does not say where a run runs
        if self.fields.is_for_slurm:
            values["gpus_per_node"] = 0 if values["gpus"] == () else self.fields.rows["gpus_per_node"].value or None
        self._fill(values)

    # --- buttons ------------------------------------------------------------------------------------

    def _edited(self) -> None:
        self.bar.close_question()
        if not self._filling.is_on and (values := self.fields.first_values_of_slurm()):
            self._fill(values)
        self._refresh()

    def _ask_or(self, act: Callable[[bool], object]) -> None:
        """Call `act`; if it would overwrite foreign values or text, show the difference and ask first."""
        values = self.valid()
        if self.script.must_ask(values):
            self.bar.say("")
            self._refresh()
            name, words = f"scripts/{self.script.path.name}", self.script.in_words(values)
            self.bar.ask(f"{name} has values or text that this form did not write", f"{words}.", lambda: act(True))
        else:
            act(False)

    def _write_and_say(self, overwrite: bool) -> None:
        content, _ = self.valid()
        secret = isinstance(content, Program) and content.has_secrets
        self.bar.say(f"Wrote {self.write(overwrite)}{'' if not secret else f': {SECRET_NOTE}'}")

    def _launch_and_watch(self, overwrite: bool) -> None:
        from nbtools.notebook.panel.panel import LivePlot  # imports matplotlib, which takes a second

        self.write(overwrite)
        with warnings.catch_warnings(record=True) as said:  # a callback has no cell to print to
            warnings.simplefilter("always")
            run, is_new = self.launch()
        notes = "".join(f"{warning.message}\n" for warning in said)
        where = f'    nt.LivePlot("{run.id}")\n    nbtools watch {run.id}'
        done = f"Launched {run.id}." if is_new else f"{run.id} was already started, so there is no second run."
        self.bar.say(f"{notes}{done} Watch it below, or elsewhere with:\n{where}")
        if self.panel.view is None or self.panel.view.run.id != run.id:
            self.panel.show(LivePlot(run))
            self.panel.view.scroll_to()
