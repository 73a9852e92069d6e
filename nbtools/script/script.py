"""Exported scripts: rendered from a validated config, read back by `ast`, never executed.

A *plain* script is a docstring, imports from nbtools, `launch = Launch(...)`, `config = SomeConfig(...)` of literals
and `main(config)` under the usual guard, with any comments. A *launcher script* has `program = Program(...)` and
`program.run(launch)` instead: it starts a program of the user's. Only these can be read back; all others can still be
launched.
"""

import ast
import hashlib
import os
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from nbtools import __version__
from nbtools.config import Launch, NotifyOn, Slurm, StopOn, TrainConfig
from nbtools.errors import HandEditedError, NotPlainError, ProjectError, ScriptError, plural
from nbtools.parsing import literal_value
from nbtools.project import NAME_PATTERN, Project, check_name, find_project, located
from nbtools.recipes import RECIPES, recipe_of
from nbtools.rundir.atomic import write_file
from nbtools.rundir.secret_values import shown_masked
from nbtools.script import torchrun
from nbtools.script.program import Program
from nbtools.script.source import parse_source, read_source
from nbtools.settings import Settings, complaints

PLAIN = (
    "a plain script has only a docstring, imports from nbtools, launch = Launch(...), config = SomeConfig(...) with "
    'literal values (and cluster=Slurm(...), stop_on=StopOn(...)), and main(config) under if __name__ == "__main__"; a '
    "launcher script has program = Program(...) and program.run(launch) instead"
)

_S = TypeVar("_S", bound=Settings)


@dataclass(frozen=True)
class Script:
    """The content of a plain script or a launcher script."""

    path: Path
    content: TrainConfig | Program
    """The config of a recipe, or the program that is launched."""
    launch: Launch
    docstring: str
    hand_edited: bool
    """Whether rendering these values gives other bytes: a changed comment counts, a changed value does not, since
    writing the same values loses nothing. A script as an earlier nbtools wrote it is not edited, either."""
    lacks: tuple[str, ...] = ()
    """Fields that the script does not name, and which therefore have their defaults."""

    @property
    def recipe(self) -> str | None:
        """Key of the recipe; None for a launcher script."""
        return None if isinstance(self.content, Program) else recipe_of(self.content).key

    @property
    def config(self) -> TrainConfig:
        """The config of the recipe; NotPlainError if the script launches a program, which has no config."""
        if isinstance(self.content, Program):
            raise NotPlainError(f"{self.path}: launches {self.content.name}, which is no recipe and has no config")
        return self.content

    @property
    def program(self) -> Program | None:
        """The program that a launcher script starts; None for a recipe."""
        return self.content if isinstance(self.content, Program) else None


_WRITTEN_BY = re.compile(rb"\n# Written by nbtools [^\s,]{1,40}, checksum ([0-9a-f]{12})\n")

_seen: dict[Path, bytes] = {}
"""Bytes of the scripts that this process last wrote or read; these may be replaced without a question."""


def render(content: TrainConfig | Program, name: str, launch: Launch | None = None) -> str:
    """Return the text of the script `name`: the same for the same values, every field spelled out; InvalidNameError if
    `name` is not allowed."""
    body = _body(content, check_name(name), launch or Launch())
    return f"{body}\n# Written by nbtools {__version__}, checksum {_checksum(body.encode())}\n"


def _body(content: TrainConfig | Program, name: str, launch: Launch, without: Collection[str] = ()) -> str:
    """Return the text of a script up to the line of its version; it does not name the fields `without`."""
    names = ["Launch", *(type(value).__name__ for _, value in launch if type(value) in (Slurm, StopOn))]
    if isinstance(content, Program):
        imports = f"from nbtools import {', '.join([*names, 'Program'])}"
        variable, call = "program", "program.run(launch)"
    else:
        recipe = recipe_of(content)
        variable, call = "config", "main(config)"
        imports = f"""from nbtools import {", ".join(names)}
from nbtools.recipes import {recipe.config_class.__name__}
from {recipe.module} import main"""
    return f"""{_docstring(content, name, launch)}

{imports}

launch = {_call(launch, without)}

{variable} = {_call(content, without)}

if __name__ == "__main__":
    {call}
"""


def read_script(path: str | Path) -> Script:
    """Read a plain script back into its config and launch settings, without running it; ScriptError if there is no such
    file, it does not parse, it is not plain, or a value is not allowed, and the message starts with file and line."""
    path = located(path)
    data = read_source(path)
    script = parse_script(path, data)
    _seen[path] = data
    return script


def parse_script(path: Path, data: bytes | None = None) -> Script:
    """Like `read_script`, but `write_script` still refuses to replace the script; `data` are its bytes, if known."""
    if data is None:
        data = read_source(path)
    source = _Source(path, parse_source(path, data))
    content, launch = source.content(), source.launch()
    edited = _is_edited(data, content, source.docstring.partition(":")[0], launch, source.lacks)
    return Script(path, content, launch, source.docstring, edited, source.lacks)


def _is_edited(data: bytes, content: TrainConfig | Program, name: str, launch: Launch, lacks: Sequence[str]) -> bool:
    """Whether a script with these values has a text that no nbtools wrote; a copy keeps the `name` of its original."""
    body, checksum = _split(data)
    if checksum == _checksum(body):
        return False  # whichever version wrote it
    return not NAME_PATTERN.fullmatch(name) or _body(content, name, launch, lacks).encode() != body


def _split(data: bytes) -> tuple[bytes, str]:
    """Return a script without the line of its version, and the checksum in that line; empty without one."""
    if (line := _WRITTEN_BY.search(data)) is None:
        return data, ""
    return data[: line.start()] + data[line.end() :], line[1].decode()


def _checksum(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]


def write_script(
    content: TrainConfig | Program,
    name: str,
    launch: Launch | None = None,
    *,
    project: Project | str | Path | None = None,
    overwrite: bool = False,
    remarks: Sequence[str] = (),
) -> Path:
    """Write `scripts/NAME.py` and return its path; a file with the same content is left alone.

    Other users cannot read a script whose program has secrets among its arguments.

    Args:
        content: the config of a recipe, or the program of a launcher script.
        name: file name without `.py`.
        launch: number of processes and GPUs; the defaults when None.
        project: whose `scripts/` to write to; the project of the working directory when None.
        overwrite: replace any file. Without it only a generated script is replaced, and only with the bytes that this
            process last wrote or read.
        remarks: comment lines for the end of the script.

    Raises:
        InvalidNameError: the name could leave the folder or shadow a module.
        HandEditedError: the file has other content and `overwrite` is not set; the message lists the differences.
        ProjectError: `scripts/` cannot be written.
    """
    project = project if isinstance(project, Project) else find_project(project)
    path = project.script(name)
    assert all(line.startswith("#") and len(line.splitlines()) == 1 for line in remarks)
    data = "".join([render(content, name, launch), *(f"\n{line}" for line in remarks), "\n" * bool(remarks)]).encode()
    _check_folder(project)
    if path.is_dir():
        raise ScriptError(f"{path}: is a folder; choose another name")
    if not path.is_symlink() and path.is_file() and _split(before := path.read_bytes())[0] == _split(data)[0]:
        data = before  # all but the line of the version is the same
    else:
        if not overwrite and os.path.lexists(path):
            _check_known(path, content, launch or Launch())
        is_secret = isinstance(content, Program) and content.has_secrets
        put_in_place(path, data, mode=0o600 if is_secret else None)
    _seen[located(path)] = data
    return path


def change_program(path: Path, **changes: Any) -> bool:
    """Write changed fields of its program into a launcher script; returns False if `path` is no launcher script.

    Raises:
        HandEditedError: the script was edited by hand, or is not one of its project.
        ProjectError: it cannot be written.
    """
    try:
        script = parse_script(path)
    except ScriptError:
        return False
    if script.program is None:
        return False
    project, program = find_project(path.parent, missing_ok=True), script.program.replace(**changes)
    if path.parent != project.scripts or path.is_symlink() or script.hand_edited:
        why = "was edited by hand" if script.hand_edited else f"is not a file of {project.scripts}"
        values = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        raise HandEditedError(f"{path}: {why}, so it is not changed; write {values} into its Program(...)")
    if program != script.program:
        write_script(program, path.stem, script.launch, project=project, overwrite=True)
    return True


def differences(a: Script | Settings, b: Script | Settings) -> list[tuple[str, Any, Any]]:
    """Return (field, value in a, value in b) for every field that differs; "(none)" stands for a missing field.

    Scripts are compared by recipe, config and launch settings, configs and launch settings by their fields.
    """
    before, after = _values(a), _values(b)
    pairs = [(name, before.get(name, "(none)"), after.get(name, "(none)")) for name in before | after]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _values(content: Script | Settings) -> dict[str, Any]:
    if isinstance(content, Script):
        return {"recipe": content.recipe, **content.launch.model_dump(), **content.content.model_dump()}
    return content.model_dump()


# --- rendering ------------------------------------------------------------------------------------


def _docstring(content: TrainConfig | Program, name: str, launch: Launch) -> str:
    """Return the docstring; it contains only checked names, fixed text and numbers, so no value can end it."""
    count = launch.nproc_per_node
    processes = "one process per GPU" if count == "gpu" else plural(count, "process")
    machines = "machines" if launch.cluster is None else "nodes"
    processes = f"{launch.nnodes} {machines} x {processes}" if launch.nnodes > 1 else processes
    here = " ".join([*(f"{key}={value}" for key, value in torchrun.variables(launch).items()), ""]).lstrip()
    path, job = f"scripts/{name}.py", launch.cluster is not None
    lines = {"In the background": f"nbtools launch {path}"}
    if isinstance(content, Program):
        is_plain = re.fullmatch(r"[\w.-]+", content.name) is not None
        what = f"launches {content.name if is_plain else 'a program'}, {processes}"
        lines["In the foreground; further arguments are added to those below"] = f"python {path}"
    else:
        title = recipe_of(content).title
        what = f"{title[0].lower()}{title[1:]}, {processes} x {content.batch_size} sequences"
        lines = {"As a Slurm job" if job else "In the background, as the notebook does it": f"nbtools launch {path}"}
        if job:
            lines["With sbatch, for which nbtools new --sbatch writes the file"] = f"sbatch scripts/{name}.sbatch"
        else:
            lines["In the foreground"] = f"{here}{shlex.join(torchrun.by_hand(path, launch))}"
        lines["On one process; flags override the values below"] = f"{here}python {path} --batch-size 8"
    told = "".join(f"\n{title}:\n\n    {line}\n" for title, line in lines.items())
    return f'"""{name}: {what}.\n{told}"""'


def _call(settings: Settings, without: Collection[str], prefix: str = "") -> str:
    """Return the call that builds `settings`; `prefix` is the name of the field that holds them, with a dot."""
    indent = "    " * prefix.count(".")
    lines = [f"{type(settings).__name__}("]
    for name, value in ((name, value) for name, value in settings if prefix + name not in without):
        unit = "" if (named := type(settings).unit(name)) in name.split("_") else named
        if isinstance(value, NotifyOn):
            text = _literal(dict(value.__repr_args__()))
        elif isinstance(value, Settings):
            text = _call(value, without, f"{prefix}{name}.")
        else:
            is_listed = name == "curves"
            text = _words(value, f"{indent}    ", is_listed) if type(settings) is Program else _literal(value)
        lines.append(f"{indent}    {name}={text},{f'  # {unit}' if unit else ''}")
    return "\n".join([*lines, f"{indent})"])


def _words(value: object, indent: str, is_listed: bool) -> str:
    """Return the literal of a value; a flag and its values have a line, or each word, if several words stand there."""
    if not isinstance(value, tuple) or len(value) < 2 - is_listed:
        return _literal(value)
    lines: list[list[str]] = []
    for word in value:
        if not lines or is_listed or word.startswith("-"):
            lines.append([])
        lines[-1].append(_literal(word))
    return "\n".join(["(", *(f"{indent}    {', '.join(line)}," for line in lines), f"{indent})"])


def _literal(value: object) -> str:
    """`repr`, with double quotes where that needs no escaping, as ruff formats it."""
    text = repr(value)
    if isinstance(value, str) and text[0] == "'" and '"' not in value:
        text = f'"{text[1:-1]}"'
    assert literal_value(text) == value, text
    return text


# --- reading --------------------------------------------------------------------------------------

_STARTS = {f"if __name__ == '__main__':\n    {call}": call for call in ("main(config)", "program.run(launch)")}
"""Statement that starts the training or the program -> the call in it."""


class _Source:
    """The statements of a plain script, by kind."""

    def __init__(self, path: Path, module: ast.Module) -> None:
        self.path = path
        self.docstring = ast.get_docstring(module, clean=False) or ""
        self._imported: dict[str, str] = {}
        self._assigned: dict[str, ast.expr] = {}
        self._starts = ""
        self.lacks: tuple[str, ...] = ()
        """Fields that `config()` and `launch()` filled with their defaults."""
        for number, statement in enumerate(module.body):
            self._take(statement, is_first=number == 0)

    def content(self) -> TrainConfig | Program:
        """Build the config or the program that the script assigns."""
        if "program" in self._assigned:
            if "config" in self._assigned:
                self._refuse(self._assigned["program"], "config and program are both assigned")
            if self._starts != "program.run(launch)" or "launch" not in self._assigned:
                self._refuse(None, 'nothing starts it: if __name__ == "__main__": program.run(launch) is missing')
            return self._made("program", [Program])
        if "config" not in self._assigned:
            self._refuse(None, "no config = SomeConfig(...) in this script")
        if self._starts != "main(config)":
            self._refuse(None, 'nothing starts the training: if __name__ == "__main__": main(config) is missing')
        config = self._made("config", [recipe.config_class for recipe in RECIPES.values()])
        if self._imported.get("main") != f"{(module := recipe_of(config).module)}.main":
            self._refuse(None, f"main has to come from its recipe: from {module} import main")
        return config

    def launch(self) -> Launch:
        """Build the launch settings; the defaults where the script has none."""
        return self._made("launch", [Launch]) if "launch" in self._assigned else Launch()

    def _take(self, statement: ast.stmt, *, is_first: bool) -> None:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) if is_first:
                pass
            case ast.ImportFrom(module=str(module), names=names, level=0) if module.split(".")[0] == "nbtools":
                self._imported.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in names})
            case ast.Assign(targets=[ast.Name(id=("config" | "launch" | "program") as name)], value=value):
                if name in self._assigned:
                    self._refuse(statement, f"{name} is assigned twice")
                self._assigned[name] = value
            case ast.If() if not self._starts and ast.unparse(statement) in _STARTS:
                self._starts = _STARTS[ast.unparse(statement)]
            case _:
                first = ast.unparse(statement).partition("\n")[0]
                self._refuse(statement, f"{first[:80]!r} is more than a plain script has")

    def _made(self, name: str, classes: Sequence[type[_S]], value: ast.expr | None = None, prefix: str = "") -> _S:
        """Build the value of a name: the one call that makes it, with literals, is of one of these classes."""
        call = value or self._assigned[name]
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            self._refuse(call, f"{name} is computed ({ast.unparse(call)[:80]!r})")
        origin = self._imported.get(call.func.id, call.func.id)
        cls = next((cls for cls in classes if origin in _origins(cls)), None)
        if cls is None:
            known = ", ".join(known.__name__ for known in classes)
            self._refuse(call, f"{name} is built by {call.func.id[:80]!r} instead of {known}")
        if call.args:
            self._refuse(call.args[0], f"{ast.unparse(call.args[0])[:80]!r} has no name; write field=value")
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                self._refuse(keyword.value, f"'**{ast.unparse(keyword.value)[:80]}' is not a literal value")
            if keyword.arg in values:
                self._refuse(keyword, f"{keyword.arg} is given twice")
            try:
                values[keyword.arg] = self._value(keyword.arg, keyword.value, prefix)
            except (ValueError, TypeError, RecursionError, MemoryError):
                text = ast.unparse(keyword.value)[:80]
                self._refuse(keyword.value, f"{keyword.arg} is computed ({text!r})")
            lines[keyword.arg] = keyword.lineno
        if problems := complaints(cls, values):
            told = (f"{self.path}:{lines.get(name, call.lineno)}: {message}" for name, message in problems.items())
            raise ScriptError("\n".join(told))
        self.lacks += tuple(prefix + name for name in cls.model_fields if name not in values)
        return cls(**values)

    def _value(self, name: str, value: ast.expr, prefix: str) -> object:
        """Return the value of an argument: a literal, or one of the two calls that are allowed among them."""
        nested: dict[str, type[Settings]] = {"cluster": Slurm, "stop_on": StopOn}
        cls = nested.get(name)
        if cls is None or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
            return ast.literal_eval(value)
        return self._made(name, [cls], value, f"{prefix}{name}.")

    def _refuse(self, node: ast.AST | None, what: str) -> NoReturn:
        line = getattr(node, "lineno", 1)
        raise NotPlainError(f"{self.path}:{line}: {what}; {PLAIN}. It can still be launched")


def _origins(cls: type[Settings]) -> list[str]:
    """Return the names that an import may give a class."""
    places = ("nbtools.recipes",) if issubclass(cls, TrainConfig) else ("nbtools", cls.__module__)
    return [f"{place}.{cls.__name__}" for place in places]


# --- writing --------------------------------------------------------------------------------------


def _check_folder(project: Project) -> None:
    folder = project.scripts
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ProjectError(f"{folder}: cannot be made: {error.strerror}; check {project.root}") from error
    if not folder.resolve().is_relative_to(project.root.resolve()):
        raise ProjectError(f"{folder}: leads to {folder.resolve()}, outside the project; make it a real folder")


def _check_known(path: Path, content: TrainConfig | Program, launch: Launch) -> None:
    step = "overwrite=True (--force) replaces it"
    if path.is_symlink():
        raise HandEditedError(f"{path}: is a link to {path.readlink()}; {step}, not its target")
    try:
        data = read_source(path)
        script = parse_script(path, data)
    except ScriptError as error:
        raise HandEditedError(f"{error}\n{path} was not written by nbtools; {step}") from None
    if script.hand_edited or _seen.get(located(path)) != data:
        new = Script(path, content, launch, "", False)
        changes = [
            f"{name} is {shown_masked(old, 40)} there, {shown_masked(value, 40)} here"
            for name, old, value in differences(script, new)
        ]
        what = "; ".join(changes) or "no value differs, only comments or layout"
        how = "was edited by hand" if script.hand_edited else "is there already, with other values"
        raise HandEditedError(f"{path}: {how} ({what}); {step}, read_script() returns its values")


def put_in_place(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a script atomically; ProjectError if it cannot be written."""
    try:
        write_file(path, data, mode=mode)
    except OSError as error:
        step = f"check the rights of {path.parent} and the free space"
        raise ProjectError(f"{path}: cannot be written: {error.strerror}; {step}") from error
