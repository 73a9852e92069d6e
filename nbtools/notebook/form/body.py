"""The body of a form: edits a config or a program, shows errors beside their fields, writes and launches the script."""

import re
import threading
import warnings
from collections.abc import Callable, Collection
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from nbtools.config import Launch, Slurm, StopOn, TrainConfig
from nbtools.errors import ConfigError, HandEditedError, LaunchError, plural
from nbtools.launcher.launch import launch_once
from nbtools.launcher.placement import place
from nbtools.launcher.programs.program_resume import said_in_words
from nbtools.launcher.sbatch import site_defaults
from nbtools.notebook.background import Filling, guarded_by
from nbtools.notebook.form.argument_rows import ArgumentRows
from nbtools.notebook.form.cluster_row import HERE, JobCheck, launch_values, values_of_rows
from nbtools.notebook.form.layout import FormLayout
from nbtools.notebook.form.overwrite import (
    KnownScripts,
    OverwriteQuestion,
    differs,
    in_words,
    is_outdated,
    state_in_words,
)
from nbtools.notebook.form.summary import Summary
from nbtools.notebook.trial_view import TrialView
from nbtools.project import check_name, find_project
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
from nbtools.script.script import read_script, write_script
from nbtools.settings import errors_by_field

Values = dict[str, Any]
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
        self._recipe, self._class = recipe, Program if recipe is None else recipe.config_class
        self._project = find_project()
        if preset is None and content is None and recipe is not None:
            preset = next(iter(recipe.presets))
        if preset is not None and recipe is not None:
            preset_config, preset_launch = recipe.preset(preset)
            content, launch = content or preset_config, launch or preset_launch
        launch = launch or Launch()
        empty = {name: field.default for name, field in fields_of(Program).items()} | {"cwd": "."}
        self._defaults: Values = {} if recipe else {**empty, **values_of_rows(None, Launch())}
        values = values_of_rows(content, launch) if content else {**empty, **values_of_rows(None, launch)}
        self._lock = threading.RLock()
        self._guarded = guarded_by(lambda text: self._view.bar.say(text, wrong=True), self._lock)
        self._filling = Filling()
        self._has_site_defaults = False
        self._loaded_over: Values = {}
        self._known = KnownScripts()
        self._is_new = False
        self.run: Run | None = None
        """The run that this form launched last."""
        self._panel: Any = None
        usual_name = "my_program" if recipe is None else recipe.key
        usual_name = usual_name if name is None else name
        on_edit = self._guarded(self._edited)
        self._view = FormLayout(recipe, self._project.root, usual_name, preset, on_edit, self._guarded, self._fill)
        self._summary = Summary(self._project.root, self._guarded(self._refresh))
        self._job = JobCheck(self._project.runs, self._guarded(self._refresh))
        self._question = OverwriteQuestion(self._guarded)
        self._trial = TrialView(self._project.root, self._guarded) if recipe else None
        if self._trial is not None:
            self._view.bar.add(self._trial.button, self._trial.widget)
        self.widget = self._view.arrange(self._summary.widget, self._question.widget)
        self._view.preset.observe(self._guarded(lambda: self._apply_preset(keeps_data=True)), names="value")
        self._view.reset.on_click(self._guarded(lambda: self._apply_preset(keeps_data=False)))
        self._view.write.on_click(self._guarded(lambda: self._ask_or(self._write_and_say)))
        self._view.launch.on_click(self._guarded(lambda: self._ask_or(self._launch_and_watch)))
        self._view.load.on_click(self._guarded(self.load))
        self._fill(values)
        path = self._path()
        if content is not None and path is not None and differs(path, content, launch) == []:
            self._known.remember(path)

    # --- values and actions -------------------------------------------------------------------------

    @property
    def content(self) -> TrainConfig | Program:
        """The config or program as filled in; ConfigError if a value is wrong, and the message names each field."""
        return self._valid()[0]

    @property
    def launch_settings(self) -> Launch:
        """Processes and devices as filled in; ConfigError if a value is wrong, and the message names each field."""
        return self._valid()[1]

    @property
    def name(self) -> str:
        """Name of the script; InvalidNameError if it cannot be used."""
        return check_name(self._view.name.value.strip())

    def write(self, overwrite: bool = False) -> Path:
        """Write the script; see `ConfigForm`."""
        with self._lock:
            config, settings = self._valid()
            path = self._project.script(self.name)
            if not overwrite and self._known.must_ask(path, config, settings):
                raise HandEditedError(
                    f"{path}: has values or text that this form did not write ({in_words(path, config, settings)}); "
                    "form.write(overwrite=True) replaces it, form.load() loads its values into the form"
                )
            if overwrite or differs(path, config, settings) != [] or is_outdated(path):
                write_script(config, self.name, settings, project=self._project, overwrite=True)
            self._known.remember(path)
            self._loaded_over = {}
            self._refresh()
            return path

    def launch(self) -> Run:
        """Write and launch the script; see `ConfigForm`."""
        with self._lock:
            path = self.write()
            self.run, self._is_new = launch_once(path)
            return self.run

    def load(self, path: str | Path | None = None) -> None:
        """Load the values of a script; see `ConfigForm`."""
        with self._lock:
            script = read_script(path if path is not None else self._project.script(self.name))
            if type(script.content) is not self._class:
                given = f'"{script.recipe}"' if script.recipe else ""
                what = f"trains {script.recipe}" if script.recipe else "launches a program"
                raise ConfigError(f"{script.path}: {what}; use nt.ConfigForm({given})")
            before = self._read()[0]
            after = values_of_rows(script.content, script.launch)
            self._loaded_over = {name: before.get(name) for name in after if before.get(name) != after[name]}
            if script.path.resolve().parent == self._project.scripts.resolve():
                self._view.name.value = script.path.stem
                self._known.remember(script.path)
            self._fill(after)
            edited = ", edited by hand" if script.hand_edited else ""
            changed = plural(len(self._loaded_over), "field")
            lacks = f" It does not name {', '.join(script.lacks)}: defaults." if script.lacks else ""
            self._view.bar.say(f"Loaded {script.path.name}{edited}: {changed} changed in the form.{lacks}")

    def __repr__(self) -> str:
        kind = "" if self._recipe is None else f"{self._recipe.key!r}, "
        return f"ConfigForm({kind}name={self._view.name.value!r}, preset={self._view.preset_name!r})"

    @property
    def subject(self) -> str:
        """The recipe's key, or the words for a program."""
        return self._recipe.key if self._recipe else "a program"

    def told(self) -> str:
        """Return the values of the usual fields, for a reader without a kernel."""
        values, _ = self._read()
        usual = [name for cls in (self._class, Launch) for name in cls.model_fields if cls.is_basic(name)]
        cells = (f"<code>{name}</code> {escape(shown_masked(values[name]))}" for name in usual if name in values)
        return " ".join(f"<span style='display:inline-block;margin-right:18px'>{cell}</span>" for cell in cells)

    # --- reading and showing ------------------------------------------------------------------------

    def _read(self) -> tuple[Values, dict[str, str]]:
        """Return the valid values and the errors by field; the key "" holds errors of several fields."""
        values: Values = {}
        mistakes: dict[str, str] = {}
        for name, field in self._view.fields.items():
            try:
                values[name] = field.value
            except ValueError as error:
                mistakes[name] = str(error)
        for cls in (self._class, Slurm, StopOn, Launch):
            given = {name: values[name] for name in cls.model_fields if name in values}
            if cls is Launch:
                valid = {name: value for name, value in values.items() if name not in mistakes}
                given = launch_values(values if not mistakes else {**valid, "cluster": HERE})
            found = errors_by_field(cls, given)
            wrong = {*found, *mistakes}
            if wrong - {""}:  # the others are checked together with the defaults of the wrong ones
                others = {name: value for name, value in given.items() if name not in wrong}
                found[""] = errors_by_field(cls, others).get("", "")
            several = found.pop("", "")
            if several and not any(re.search(rf"\b{name}\b", several) for name in wrong if name):
                named = [name for name in given if f"{name}=" in several]
                found[min(named, key=several.index, default="")] = several
            mistakes = {**found, **mistakes}
        return values, mistakes

    def _valid(self) -> tuple[TrainConfig | Program, Launch]:
        with self._lock:
            values, mistakes = self._read()
            mistakes |= self._view.arguments.mistakes if self._view.arguments else {}
        if mistakes:
            raise ConfigError("\n".join(f"{name}: {why}" if name else why for name, why in mistakes.items()))
        return self._built(values)

    def _built(self, values: Values) -> tuple[TrainConfig | Program, Launch]:
        own = {name: values[name] for name in self._class.model_fields}
        return self._class(**own), Launch(**launch_values(values))

    def _fill(self, values: Values) -> None:
        with self._filling:
            if "cluster" in values:
                self._view.cluster.value = values["cluster"]
                self._has_site_defaults = self._has_site_defaults or self._view.is_for_slurm
            for name, field in self._view.fields.items():
                if name in values:
                    field.value = values[name]
        self._refresh()

    def _refresh(self) -> None:
        """Update everything that depends on the values; also called after the data has been counted."""
        with self._lock:
            if self._filling.is_on:
                return
            # Read once: the front end may assign to a field while another thread is here.
            values, mistakes = self._read()
            if chosen := self._view.show_data(values):
                self._fill(chosen)
                return
            valid = None if mistakes else self._built(values)
            if valid is None:
                self._summary.clear()
            obstacles = {} if valid is None else self._summarize(*valid)
            if self._view.arguments is not None:
                before = self._view.arguments.own.shown
                obstacles |= self._show_arguments(self._view.arguments, values, mistakes)
                read = self._view.arguments.own.shown
                if read is not None and read is not before and (guessed := self._guessed(values, read)):
                    self._fill(guessed)
                    return
                mistakes |= self._view.arguments.mistakes
                valid = None if mistakes else valid
            self._mark(values, {**obstacles, **mistakes})
            mistakes.update(self._mark_name(valid))
            if self._trial is not None:
                self._trial.show(valid if valid and not obstacles else None)
            self._allow(mistakes, obstacles)

    def _summarize(self, content: TrainConfig | Program, settings: Launch) -> dict[str, str]:
        """Show the summary; return the errors that prevent a launch on this machine, by field.

        The script can still be written: it may be for another machine.
        """
        said, obstacles = self._job.look(settings)
        path = self._path()
        script = f"scripts/{path.name if path else 'NAME.py'}"
        commands = [f"nbtools launch {script}", *([said] if said else [])]
        need = self._view.out_of_reach.get(self._view.preset_name or "")
        if need and settings.gpus is None and settings.cluster is None:
            obstacles["gpus"] = (
                f"the preset {need}: choose another, CPU only, or where, or write the script for a machine"
            )
        started: Path | list[str] = Path("runs/ID/script.py")
        args: tuple[str, ...] = ()
        if isinstance(content, Program):
            started = content.words(self._project.root, settings.resolved(1))
            settings = (
                settings.replace(torchrun=False) if content.accelerate_config and settings.nnodes == 1 else settings
            )
            args = tuple(masked(content.args))
        if settings.cluster is None:
            try:
                commands.append(place(settings).shell_line(started, args))
            except LaunchError as error:
                obstacles["gpus"] = str(error)
        if isinstance(content, Program):
            obstacles |= self._check_program(content)
            self._summary.show_commands(commands)
        elif unfit := self._summary.show(content, settings, commands):
            obstacles["dataset" if "dataset" in self._view.fields else ""] = unfit
        if (data := self._view.data) is not None:
            data.counts.value = f"<small>{escape(self._summary.counts)}</small>"
            if data.is_waiting:
                obstacles["dataset"] = "the first rows are read"
        return obstacles

    def _show_arguments(self, rows: ArgumentRows, values: Values, mistakes: Collection[str]) -> dict[str, str]:
        """Show the arguments of the program, also if other values are wrong; return why its Python cannot run it."""
        if {*Program.model_fields, "python", "torchrun", ""}.intersection(mistakes):
            return {}
        program = Program(**{name: values[name] for name in Program.model_fields})
        return dict(rows.show(program, values["python"], values["torchrun"] is not False))

    def _guessed(self, values: Values, read: ScriptArguments) -> Values:
        """Return values for the empty fields on checkpoints and resume of a program whose arguments were read: what the
        user has said of it, what an earlier run of it wrote, and the words by the name of an argument."""
        path = Program(script=values["script"], module=values["module"]).file(self._project.root)
        found = remembered(str(self._project.root), str(path))
        for folder in islice(newest_first(self._project.runs), _MOST_RUNS):
            program = mapping_at(launch_of(folder), "program")
            if not found.get("checkpoints") and all(program.get(name) == values[name] for name in ("script", "module")):
                found["checkpoints"], _, _ = said_in_words(Run(RunDir(folder)))
        words = tuple(found.get("resume") or ()) or guessed_resume(values["args"], read)
        return {
            name: value
            for name, value in {"resume": words, "checkpoints": found.get("checkpoints")}.items()
            if value and not values.get(name, True)
        }

    def _check_program(self, program: Program) -> dict[str, str]:
        """Return why the program's file cannot be started, by field."""
        if (path := program.file(self._project.root)) is None:
            return {}  # of a module elsewhere on the path of its interpreter
        try:
            inspection.python_file(path)
        except LaunchError as error:
            return {"script" if program.script else "module": str(error)}
        return {}

    def _mark(self, values: Values, wrong: dict[str, str]) -> None:
        preset = self._view.preset_name
        base = values_of_rows(*self._recipe.preset(preset)) if self._recipe and preset else self._defaults
        has_no_usual_value = {"cluster"} if self._recipe else {"cluster", *Program.model_fields}
        base = {name: base[name] for name in self._view.fields if name in base and name not in has_no_usual_value}
        changed = [name for name in base if name not in values or values[name] != base[name]]
        base_of = "preset" if self._recipe else "default"
        was = {name: f"{base_of}: {shown_masked(base[name], 60)}" for name in changed}
        was |= {name: f"was {shown_masked(value, 60)}" for name, value in self._loaded_over.items() if name in values}
        if self._view.arguments and (read := self._view.arguments.own.shown) and values.get("resume"):
            is_guess = values["resume"] == guessed_resume(values.get("args", ()), read)
            was |= {"resume": "guessed by the name of an argument"} if is_guess else {}
        self._view.sections.mark(wrong, was)
        if self._recipe is None:
            return
        if preset is None:
            self._view.preset_note.value = "choose a preset to start from"
        else:
            plus = f"<mark>+ {plural(len(changed), 'change')}</mark> " if changed else ""
            self._view.preset_note.value = plus + escape(self._recipe.presets[preset].description)
        self._view.reset.layout.display = "" if changed else "none"

    def _mark_name(self, values: tuple[TrainConfig | Program, Launch] | None) -> dict[str, str]:
        """Show how the script of this name differs from the form; return the error of the name."""
        try:
            words, mistake = state_in_words(self._project.script(self.name), values), ""
        except ConfigError as error:
            words, mistake = "", str(error).partition(": ")[2]
        line = self._view.name_row
        line.field = line.field.replace(help=words)
        line.mark(mistake)
        return {self._view.name.description: mistake} if mistake else {}

    def _allow(self, mistakes: dict[str, str], obstacles: dict[str, str]) -> None:
        """Enable the buttons, or show why they are disabled."""
        self._view.write.disabled = bool(mistakes)
        self._view.launch.disabled = bool(mistakes or obstacles)
        path = self._path()
        self._view.load.disabled = path is None or not path.is_file()
        what = "write or launch" if mistakes else "launch" if obstacles else ""
        wrong = {**obstacles, **mistakes}
        places = [self._view.name.description, *(row.field.name for row in self._view.sections.rows)]
        ordered = {name: wrong[name] for name in (*places, *wrong) if name in wrong}
        self._view.bar.show(f"Cannot {what}" if what else "", ordered)

    def _apply_preset(self, *, keeps_data: bool) -> None:
        """Fill in the preset's values; `keeps_data` unless it names data, as they are chosen first."""
        if self._recipe is None or self._view.preset_name is None:
            self._refresh()
            return
        self._loaded_over = {}
        config, launch = self._recipe.preset(self._view.preset_name)
        values = values_of_rows(config, launch)
        if keeps_data and "dataset" not in self._recipe.presets[self._view.preset_name].values and self._view.data:
            for name in ("dataset", *self._view.data.column_fields):
                del values[name]
        del values["cluster"]  # a preset does not say where a run runs
        if self._view.is_for_slurm:
            values["gpus_per_node"] = 0 if launch.gpus == () else self._view.fields["gpus_per_node"].value or None
        self._fill(values)

    def _path(self) -> Path | None:
        try:
            return self._project.script(self.name)
        except ConfigError:
            return None

    # --- buttons ------------------------------------------------------------------------------------

    def _edited(self) -> None:
        self._question.close()
        if self._view.is_for_slurm and not self._has_site_defaults and not self._filling.is_on:
            self._has_site_defaults = True
            values = dict(site_defaults())
            if self._view.gpus.is_for_cpu:
                values["gpus_per_node"] = 0
            self._fill(values)
        self._refresh()

    def _ask_or(self, act: Callable[[bool], object]) -> None:
        """Call `act`; if it would overwrite foreign values or text, show the difference and ask first."""
        path, values = self._project.script(self.name), self._valid()
        if self._known.must_ask(path, *values):
            self._view.bar.say("")
            self._refresh()
            self._question.ask(path, in_words(path, *values), lambda: act(True), self.load)
        else:
            act(False)

    def _write_and_say(self, overwrite: bool) -> None:
        content = self.content
        secret = isinstance(content, Program) and content.has_secrets
        self._view.bar.say(f"Wrote {self.write(overwrite)}{'' if not secret else f': {SECRET_NOTE}'}")

    def _launch_and_watch(self, overwrite: bool) -> None:
        from nbtools.notebook.panel.panel import LivePlot  # imports matplotlib, which takes a second

        self.write(overwrite)
        with warnings.catch_warnings(record=True) as said:  # a callback has no cell to print to
            warnings.simplefilter("always")
            run = self.launch()
        notes = "".join(f"{warning.message}\n" for warning in said)
        where = f'    nt.LivePlot("{run.id}")\n    nbtools watch {run.id}'
        done = f"Launched {run.id}." if self._is_new else f"{run.id} was already started, so there is no second run."
        self._view.bar.say(f"{notes}{done} Watch it below, or elsewhere with:\n{where}")
        if self._panel is None or self._panel.run.id != run.id:
            if self._panel is not None:
                self._panel.close()
            self._panel = LivePlot(run)
            self._view.panel.children = (self._panel.widget,)
            self._panel.scroll_to()
