"""`ConfigForm`: the form of a recipe or of a program, or cards to choose one."""

from html import escape
from pathlib import Path

import ipywidgets as widgets

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError
from nbtools.notebook.form.body import FormBody
from nbtools.notebook.form.layout import PROGRAM
from nbtools.notebook.rows.field_rows import STYLE, form_outputs
from nbtools.notebook.widgets import Displays, answers_beside_cells
from nbtools.recipes import RECIPES, PresetName, RecipeKey, recipe_named, recipe_of
from nbtools.run.run import Run
from nbtools.script.program import Program

_PROGRAM = "program"


class ConfigForm:
    """A form for a recipe or a program: fill it in, write it to `scripts/NAME.py`, launch that script.

    Every button has a method of the same effect, for use in a cell.
    """

    def __init__(
        self,
        recipe: RecipeKey | str | None = None,
        *,
        name: str | None = None,
        preset: PresetName | str | None = None,
        config: TrainConfig | Program | None = None,
        launch: Launch | None = None,
    ) -> None:
        """Make a form for the recipe with key `recipe`.

        Args:
            recipe: None for that of `config`; without one, cards offer all recipes and programs: the first recipe is
                chosen, or none with an empty text.
            name: name of the script; the recipe's key when None.
            preset: values to start from; the recipe's first preset when neither this nor `config` is given.
            config: values to start from instead; a `Program` for a program of yours.
            launch: processes and devices to start from instead of the preset's.

        Raises:
            ConfigError: the recipe or preset does not exist, or `config` is of another recipe.
            ProjectError: the working directory belongs to no project.
        """
        self._name = name
        self._body: FormBody | None = None
        self._bodies: dict[str, FormBody] = {}
        self._cards: dict[str, widgets.Widget] = {}
        if not recipe and config is None:
            offered = {key: (each.title, each.summary) for key, each in RECIPES.items()} | {_PROGRAM: PROGRAM}
            for key, (title, summary) in offered.items():
                button = widgets.Button(description=title, layout={"width": "auto"}).add_class("nbtools-choose")
                button.on_click(lambda _, key=key: self._choose(key))
                self._cards[key] = widgets.VBox([button, widgets.HTML(escape(summary))]).add_class("nbtools-card")
        heading = widgets.HTML(f"{STYLE}<h3>New training</h3><p>Choose what to train.</p>")
        self._choice = widgets.Box([*self._cards.values()]).add_class("nbtools-cards")
        self.widget = widgets.VBox([heading, self._choice], layout={"overflow": "visible"}).add_class("nbtools-form")
        answers_beside_cells(self.widget)  # without support in ipykernel a click waits for the running cell
        if recipe == "":
            return
        if isinstance(config, Program):
            chosen = None
        else:
            chosen = recipe_of(config) if config and recipe is None else recipe_named(recipe or next(iter(RECIPES)))
        if recipe and config is not None and type(config) is not recipe_named(recipe).config_class:
            wanted = recipe_named(recipe).config_class.__name__
            raise ConfigError(f"config={type(config).__name__}: the form of {recipe} takes {wanted}")
        self._show(chosen.key if chosen else _PROGRAM, FormBody(chosen, name, preset, config, launch))

    def _choose(self, key: str) -> None:
        body = self._bodies.get(key) or FormBody(None if key == _PROGRAM else RECIPES[key], self._name)
        self._show(key, body)

    def _show(self, key: str, body: FormBody) -> None:
        self._bodies[key] = self._body = body
        if not self._cards:
            self.widget = body.widget
            return
        for name, card in self._cards.items():
            (card.add_class if name == key else card.remove_class)("nbtools-chosen")
        self.widget.children = self._choice.add_class("nbtools-folded"), body.widget.remove_class("nbtools-form")
        answers_beside_cells(self.widget)

    @property
    def body(self) -> FormBody:
        """The form of what is chosen; ConfigError if nothing is chosen yet."""
        if self._body is None:
            offered = ", ".join(RECIPES)
            raise ConfigError(f"nothing is chosen in the form yet: click on a card, or name one of {offered}")
        return self._body

    @property
    def config(self) -> TrainConfig:
        """The config as filled in; ConfigError if a value is wrong, and the message names each field."""
        content, _ = self.body.valid()
        if isinstance(content, Program):
            raise ConfigError("the form is for a program, which has no config; form.program has its values")
        return content

    @property
    def program(self) -> Program:
        """The program as filled in; ConfigError if a value is wrong, and the message names each field."""
        content, _ = self.body.valid()
        if not isinstance(content, Program):
            raise ConfigError("the form is for a recipe; form.config has its values")
        return content

    @property
    def launch_settings(self) -> Launch:
        """Processes and devices as filled in; ConfigError if a value is wrong, and the message names each field."""
        return self.body.valid()[1]

    @property
    def name(self) -> str:
        """Name of the script; InvalidNameError if it cannot be used."""
        return self.body.script.name

    @property
    def run(self) -> Run | None:
        """The run that this form launched last."""
        return self._body.run if self._body else None

    def write(self, overwrite: bool = False) -> Path:
        """Write `scripts/NAME.py` and return its path; a script with the same values is left unchanged.

        Raises:
            ConfigError: a value or the name is wrong.
            HandEditedError: the file has other values, or text that this form did not write; `overwrite=True`
                replaces it, `load()` loads its values into the form.
        """
        return self.body.write(overwrite)

    def launch(self) -> Run:
        """Write the script if its values differ, launch it in the background, and return the run at once.

        While a run of the same script is active, that run is returned instead.

        Raises:
            ConfigError: a value or the name is wrong.
            HandEditedError: as `write`.
            LaunchError: the script cannot be started with these settings; nothing was started.
        """
        return self.body.launch()[0]

    def load(self, path: str | Path | None = None) -> None:
        """Load the values of a script, `scripts/NAME.py` when None, and mark the fields that they change.

        Raises:
            ScriptError: the script is missing or cannot be read back; the message starts with file and line.
            ConfigError: it belongs to another recipe.
        """
        self.body.load(path)

    def __repr__(self) -> str:
        return repr(self._body) if self._body else "ConfigForm()"

    def _ipython_display_(self) -> None:
        """Display two outputs: a sentence for a page without a kernel, and the widgets."""
        what = f" for {escape(self._body.subject)}" if self._body else ""
        text = f"The form{what} needs a kernel: run this cell again. Scripts and runs are kept."
        told = f"<p>{self._body.told()}</p>" if self._body else ""
        Displays().show(form_outputs(self.widget, f"<p>{text}</p>{told}", repr(self)))


def new() -> ConfigForm:
    """Make a form that offers all recipes, and the programs of the project, as cards."""
    return ConfigForm("")
