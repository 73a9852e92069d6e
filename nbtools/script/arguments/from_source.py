"""The arguments that a script declares, found on its syntax tree: at once, and without executing anything."""

import ast
import os.path
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from nbtools.script.arguments.argparse_calls import (
    Entry,
    Group,
    Parser,
    Subparsers,
    arguments_of_parsers,
    family,
    literal_of,
    text_of,
)
from nbtools.script.arguments.arguments import Argument, ScriptArguments, made_field
from nbtools.script.arguments.config_copy import config_names
from nbtools.script.arguments.config_files import (
    Config,
    as_key,
    config_arguments,
    constant_arguments,
    load_config,
    overrides_constants,
    types_of,
)
from nbtools.script.arguments.dataclass_fields import (
    DataField,
    FieldSpec,
    fields_of_class,
    hf_entry,
    hf_negative,
    parameters_of_function,
    tyro_arguments,
)
from nbtools.script.follow import folding
from nbtools.script.follow.calls import Call, Calls, ParserReached, TooLong
from nbtools.script.follow.follower import Follower
from nbtools.script.follow.module_names import MOST_LOADED
from nbtools.script.follow.modules import Modules, SourceModule
from nbtools.script.follow.values import (
    Class,
    External,
    File,
    FileText,
    Function,
    Instance,
    Method,
    Namespace,
    Tree,
    Unknown,
    deep_copied,
    is_literal,
)

_LIBRARIES = {
    "click": "click",
    "rich_click": "click",
    "typer": "typer",
    "hydra": "hydra",
    "absl": "absl",
    "fire": "fire",
    "jsonargparse": "jsonargparse",
    "tyro": "tyro",
    "simple_parsing": "argparse",
    "tap": "argparse",
}
"""Packages that parse, and what `ScriptArguments.parser` calls them."""
_ENTRIES = {
    "absl": ("run", "FLAGS", "call_after_init"),
    "argparse": ("parse", "parse_known_args", "tapify"),
    "click": (),
    "fire": ("Fire",),
    "hydra": (),
    "jsonargparse": ("CLI", "auto_cli"),
    "tyro": ("cli", "overridable_config_cli", "subcommand_cli_from_dict", "subcommand_cli_from_defaults"),
    "typer": ("run",),
}
"""Functions of these packages that read the command line when they are called."""
_USES = {
    "ArgumentParser", "HfArgumentParser", "LightningCLI", "Fire", "tapify",
    *(f"{package}.{name}" for package, names in {
        "click": ("command", "group"), "typer": ("run", "Typer"), "hydra": ("main",), "tyro": ("cli", "extras"),
        "app": ("run",), "flags": ("FLAGS",), "jsonargparse": ("CLI", "auto_cli"), "simple_parsing": ("parse",),
    }.items() for name in names),
}  # fmt: skip
_PARSER_CLASSES = ("ArgumentParser", "ArgParser", "HfArgumentParser", "TrlParser", "H4ArgumentParser", "Tap")
_DATACLASS_PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
_PARSES = ("parse_args", "parse_intermixed_args", "parse_args_into_dataclasses", "parse_args_and_config", "parse")
_PARSES_SOME = ("parse_known_args", "parse_known_intermixed_args")
_HARMLESS = {"argcomplete.autocomplete"} | {
    each.__name__ for each in (print, isinstance, hasattr, type, id, vars, callable, len, str)
}
_ACTIONS = ("_actions", "_option_string_actions", "_group_actions", "_remove_action")
"""Attributes of a parser by which a script changes arguments after they were declared."""
_MOST_IMPORTED = 60


def arguments_of(script: Path, *, module: str | None = None, search: Sequence[Path] = ()) -> ScriptArguments:
    """Return the arguments that a script declares.

    Args:
        script: the program.
        module: its name, if it is started by `python -m`.
        search: `sys.path` of the interpreter that will run it, where classes such as
            `transformers.TrainingArguments` are read.

    Raises:
        ScriptError: the script is missing, is no Python, or is too large.
    """
    modules = Modules(Path(script), module, search)
    calls = _Declarations(modules)
    try:
        calls.follow()
    except (RecursionError, MemoryError):
        calls.unsure.append(f"{modules.script.label}:1: nested too deeply to be followed")
    return calls.result(Path(script))


class _Declarations(Calls):
    """Notes what calls in a script declare."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.follower = Follower(modules, self)
        self.created: list[Parser] = []
        self.parsed: list[Parser] = []
        self.library = ""
        self.arguments: list[Argument] = []
        self.configs: list[Any] = []
        """Configs that these words override, the last one decides: files, dicts, dataclasses and their instances."""
        self.unsure: list[str] = []
        self.notes: list[str] = []
        self.computed: dict[str, str] = {}
        self.refuses_others = False
        self.trees: list[Tree] = []
        self.overrides = ""
        """Where words such as `a.b=1` are read; empty if nowhere."""

    def follow(self) -> None:
        """Follow the script to its parser; where it has no call that leads there, try its other functions."""
        for step in (self.follower.run_script, self.follower.run_rest):
            try:
                step()
            except ParserReached:
                return
            except TooLong:
                self.unsure.append(f"{self.modules.script.label}:1: too long to be followed to its parser")
                return
            if self.parsed or self.overrides:
                return

    def result(self, script: Path) -> ScriptArguments:
        """Return what was found."""
        parsers = list(dict.fromkeys(self.parsed))
        if not parsers and not self.library and self.created:
            parsers = [parser for parser in self.created if parser.entries and not parser.command]
            self.unsure.append(
                f"{self.modules.script.label}:1: no call parses the command line where it can be followed"
            )
        if parsers and not self.library:
            self.library = next((p.library for p in parsers if p.library != "argparse"), "argparse")
        arguments, commands, notes = arguments_of_parsers(parsers, self.unsure)
        arguments += self.arguments
        notes = [*notes, *self.notes]
        if pairs := self._pairs([a.field.name for a in arguments if not a.flags and a.nargs == "..."]):
            arguments = [argument for argument in arguments if argument.flags or argument.nargs != "..."] + pairs
        if self.overrides:
            self.library = self.library or "config file"
            known = {argument.field.name for argument in arguments}
            keys = {argument.field.name: argument for config in self.configs for argument in self._keys(config)}
            arguments += [argument for name, argument in keys.items() if name not in known]
            is_closed = any(isinstance(config, Class | Instance) for config in self.configs)
            if not keys or (not is_closed and any(isinstance(config, Unknown) for config in self.configs)):
                self.unsure.append(f"{self.overrides}: the file with the keys that can be overridden is not known")
        has_parser = bool(self.library) or self._uses_a_parser()
        if not has_parser:
            notes.append(f"{self.modules.script.label}: no known parser was found; give its words as they are")
        elif not self.library:
            self.unsure.append(f"{self.modules.script.label}: a parser was found, but not the call that leads to it")
        self.unsure += self.modules.unread
        is_complete = bool(self.library) and not self.unsure
        families = [parser for outer in parsers for parser in family(outer)]
        is_vague = any(argument.field.default_text for argument in arguments) or bool(notes)
        return ScriptArguments(
            script,
            self.library,
            arguments=tuple(arguments),
            commands=tuple(commands),
            computed=() if is_complete or not has_parser else tuple(self._computed().items()),
            config_names=config_names(self.modules, [argument.field.name for argument in arguments], self.library),
            aliases=tuple(((*p.command[:-1], alias), p.command[-1]) for p in families for alias in p.aliases),
            needs_command=tuple(parser.command for parser in families if parser.needs_command),
            is_complete=is_complete,
            refuses_others=self.refuses_others,
            can_ask=has_parser and self.library not in ("constants", "config file") and (not is_complete or is_vague),
            notes=tuple(dict.fromkeys((*self.unsure, *notes))),
        )

    def _pairs(self, names: Sequence[str]) -> list[Argument]:
        """Return the keys of the `CfgNode` that words `KEY value` change; none if they may not be all."""
        if not names:
            return []
        with suppress(TooLong, ParserReached, RecursionError):
            self.follower.load(MOST_LOADED)
        merges = [merge for scope in self.follower.scopes.values() for merge in _merges(scope.module, {*names})]
        inner = {id(value) for tree in self.trees for value in tree.values()}
        roots = [tree for tree in self.trees if tree and id(tree) not in inner]
        if not merges or not roots:
            return []
        before = len(self.unsure)
        self.unsure += [f"{where}: its config may have got other keys before" for where, is_given in merges if is_given]
        if len(roots) > 1:
            self.unsure.append(f"{merges[0][0]}: several configs could be the one whose keys {names[0]} takes")
        found = list(self._tree(roots[0]))
        return found if len(self.unsure) == before else []

    def _tree(self, tree: Tree, prefix: str = "") -> Iterator[Argument]:
        """Yield an argument `a.b value` for each key of a config."""
        for key, value in tree.items():
            name, where = f"{prefix}{key}", tree.places.get(key, "")
            if isinstance(key, Unknown):
                where = key.scope.module.where(key.node) if key.scope else self.modules.script.label
                self.unsure.append(f"{where}: a key {prefix}… is known only to the program")
            elif isinstance(value, Tree) and value:
                yield from self._tree(value, f"{name}.")
            else:
                default, text = literal_of(value), ""
                items = default if isinstance(default, tuple) else (default,)
                if default is not None and not all(isinstance(item, bool | int | float | str) for item in items):
                    default, text = None, repr(value) if is_literal(value) else text_of(value)
                kinds = types_of(default) if not text else (str,)
                told = {"group": prefix[:-1], "source": where, "default_text": text}
                field = made_field(name, types=kinds, default=default, **told)
                yield Argument(field, flags=(name,), action="pair")

    def _keys(self, config: Any) -> list[Argument]:
        """Return an argument `a.b=value` for each key of a config."""
        if isinstance(config, Config):
            return config_arguments(config, os.path.relpath(config.path, self.modules.start), config.lines)
        if isinstance(config, dict):
            return config_arguments(config, self.overrides, {})
        cls = config.cls if isinstance(config, Instance) else config
        if not isinstance(cls, Class):
            return []
        changed, fields = getattr(config, "attributes", None), self._fields(cls, self.overrides)
        found, more = tyro_arguments(fields, self.follower, outer=changed, takes_all=True)
        self.unsure += more
        return [as_key(argument) for argument in found]

    def _computed(self) -> dict[str, str]:
        """Return the texts of computed defaults: of options that were declared, and of the parameters of functions."""
        scopes = [scope for scope in self.follower.scopes.values() if not scope.module.is_foreign]
        scopes += [value.body for scope in scopes for value in scope.names.values() if isinstance(value, Class)]
        functions = [value for scope in scopes for value in scope.names.values() if isinstance(value, Function)]
        for function in functions:
            lines = [each.lineno for each in (function.node, *getattr(function.node, "decorator_list", ()))]
            with suppress(TooLong, ParserReached, RecursionError):
                for data in parameters_of_function(function, self.follower):
                    if isinstance(data.default, Unknown):
                        place = f"{function.scope.module.label}:{min(lines)}"
                        self.computed[f"{place} {data.name}"] = data.default.text
        return self.computed

    def _uses_a_parser(self) -> bool:
        """Whether the script, or a module of the repository that it imports, names a known parser."""
        waiting, seen = [self.modules.script], {self.modules.script.path}
        while waiting:
            module = waiting.pop()
            for node in _outside_guard(module.tree, is_script=module is self.modules.script):
                if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Store):
                    text = node.id if isinstance(node, ast.Name) else node.attr
                    if text in _USES or (isinstance(node, ast.Attribute) and ast.unparse(node)[-40:] in _USES):
                        return True
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                level = node.level if isinstance(node, ast.ImportFrom) else 0
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or "", *(f"{node.module or ''}.{alias.name}" for alias in node.names)]
                for name in names:
                    path = self.modules.find(name, module, level)
                    if path and path.suffix == ".py" and path not in seen and len(seen) < _MOST_IMPORTED:
                        seen.add(path)
                        if (found := self.modules.parse(path)) is not None:
                            waiting.append(found)
        return False

    # --- what calls mean ------------------------------------------------------------------------------

    def _reach(self, library: str) -> NoReturn:
        """Note that a library other than argparse parses here, whose arguments are not read from the source."""
        self.library = library
        self.unsure.append(
            f"{self.modules.script.label}: its arguments are declared for {library}; ask the script for them"
        )
        raise ParserReached

    def library_of(self, decorator: Any) -> str:
        """Return the library of a decorator that makes a program of a function."""
        if not isinstance(decorator, External):
            return ""
        library = _LIBRARIES.get(decorator.path.split(".")[0], "")
        return library if library in ("click", "typer", "hydra") else ""

    def attribute(self, receiver: Any, name: str) -> Any:
        """Return an attribute of a parser."""
        if isinstance(receiver, Parser | Group | Subparsers):
            if name in _ACTIONS:
                self.unsure.append(
                    f"{self.modules.script.label}: the script uses {name}, which may change its arguments"
                )
            if isinstance(receiver, Parser) and name in receiver.attributes:
                return receiver.attributes[name]
            if isinstance(receiver, Parser) and receiver.cls is not None:
                found = self.follower.class_attribute(receiver.cls, name, receiver)
                if found is not None:
                    return found[0]
            return Method(receiver, name)
        return None

    def instance_of(self, cls: Class, call: Call) -> Any:
        """Return a parser for a class that derives from one."""
        if cls.derives_from("LightningCLI"):
            self._reach("LightningCLI")
        named = next((owner.node.name for owner in cls.ancestors if owner.node.name in _DATACLASS_PARSERS), "")
        if named:  # the script is in the repository of a library
            parser = self._parser(named)
            self._start(parser, call)
            return parser
        if not cls.derives_from(*_PARSER_CLASSES):
            return None
        base = next(b.path for c in cls.ancestors for b in c.bases if isinstance(b, External))
        parser = self._parser(base)
        parser.cls = cls
        if cls.derives_from("Tap"):
            self.unsure.append(f"{call.where}: the fields of {cls.node.name} are not read from the source")
        if self.follower.class_attribute(cls, "__init__", parser) is None:
            self._start(parser, call)
        return parser

    def _parser(self, path: str) -> Parser:
        last = path.rpartition(".")[2]
        parser = Parser("HfArgumentParser" if last in _DATACLASS_PARSERS else "argparse")
        if last == "TrlParser":
            parser.add(Entry(("--config",), {"help": "A YAML file of arguments"}, path))
        self.created.append(parser)
        return parser

    def _start(self, parser: Parser, call: Call) -> None:
        """Do what the constructor of a parser does."""
        parents = call.keywords.get("parents", ())
        for parent in parents if isinstance(parents, list | tuple) else ():
            if isinstance(parent, Parser):
                for entry in parent.entries:
                    parser.add(replace(entry, keywords=dict(entry.keywords)))
                parser.defaults.update(parent.defaults)
            else:
                self.unsure.append(f"{call.where}: a parent parser is not known: {text_of(parent)}")
        for name, usual in (("prefix_chars", "-"), ("conflict_handler", "error")):
            if call.keywords.get(name, usual) != usual:
                self.unsure.append(f"{call.where}: {name}= is not read")
        default = call.keywords.get("argument_default")
        parser.default = None if default == External("argparse.SUPPRESS") else default
        if parser.library == "HfArgumentParser":
            given = call.argument(0, "dataclass_types", ())
            for item in given if isinstance(given, list | tuple) else (given,):
                self._add_dataclass(parser, item, call)

    def _add_dataclass(self, parser: Parser, value: Any, call: Call) -> None:
        found = self.follower.resolve(value, call.scope.module)
        if not isinstance(found, Class):
            name = text_of(value)
            self.unsure.append(f"{call.where}: the source of {name} is not found, so its fields are missing")
            return
        for data in self._fields(found, call.where):
            for entry in (hf_entry(data), hf_negative(data)):
                if entry is not None:
                    entry.group = found.node.name
                    parser.add(entry)

    def _fields(self, cls: Class, where: str) -> list[DataField]:
        found = fields_of_class(cls, self.follower)
        for base in cls.missing_bases:
            self.unsure.append(f"{where}: the source of {base.path} is not found, so its fields are missing")
        return found

    def call_external(self, path: str, call: Call) -> Any:
        """Return the value of a call of something outside of the source."""
        unknown = Unknown(call.node, call.scope)
        package, last = path.split(".")[0], path.rpartition(".")[2]
        if getattr(call.node.func, "attr", "") in ("add_argument", "add_parser") and package not in _LIBRARIES:
            self.unsure.append(f"{call.where}: the parser is not known: {ast.unparse(call.node)[:100]}")
        library = "LightningCLI" if last == "LightningCLI" else _LIBRARIES.get(package, "")
        if last in _PARSER_CLASSES and package not in ("jsonargparse", "simple_parsing", "tap"):
            parser = self._parser(path)
            self._start(parser, call)
            return parser
        if library == "tyro" and last == "cli":
            self._tyro(call)
        if library:
            return self._call_library(library, path, last, call)
        if path.endswith(("dataclasses.field", "hf_argparser.HfArg", "transformers.HfArg")):
            return FieldSpec(dict(call.keywords))
        if package in ("yaml", "json", "omegaconf", "ruamel", "toml", "oyaml") or path in ("open", "exec", "io.open"):
            return self._file_call(path, last, call, unknown)
        if last == "CfgNode":
            content = call.args[0] if call.args and isinstance(call.args[0], dict) else {}
            self.trees.append(Tree(content, call.where))
            return self.trees[-1]
        if path in ("sys.path.insert", "sys.path.append") and call.args and isinstance(call.args[-1], str):
            self.modules.add_folder(call.args[-1])
        if path == "argparse.FileType":
            return External(path)
        if path in ("copy.copy", "copy.deepcopy") and call.args:
            return deep_copied(call.args[0])
        values = [each.receiver if isinstance(each, Method) else each for each in (*call.args, *call.keywords.values())]
        given = [value for value in values if isinstance(value, Parser | Group | Subparsers)]
        if given and path not in _HARMLESS:
            return self._pass_parser(path, given[0], call)
        if path in ("dict", "collections.OrderedDict") and call.is_whole:
            with suppress(TypeError, ValueError):
                pairs = (value.items() if isinstance(value, dict) else value for value in (*call.args, call.keywords))
                return {key: item for part in pairs for key, item in part}
            return unknown
        return folding.function(path, call.args, call.keywords, unknown) if call.is_whole else unknown

    def _call_library(self, library: str, path: str, last: str, call: Call) -> Any:
        """Return what a call of a parsing library returns; note if it is the one that parses."""
        if last in ("Option", "Argument"):  # of typer: the default of a parameter
            return call.argument(0, "default")
        names = call.args if last == "option" else call.args[:1] if last.startswith("DEFINE_") else ()
        default = call.keywords.get("default", call.argument(1, "default") if library == "absl" else None)
        if isinstance(default, Unknown):
            dashes = "--" if library == "absl" else ""
            spellings = [each for name in names if isinstance(name, str) for each in name.split("/")]
            self.computed |= {f"{dashes}{name.strip()}": default.text for name in spellings}
        is_object = path.endswith("()") or "()." in path
        parses = path.endswith("()") or last.startswith("parse") if is_object else last in _ENTRIES.get(library, ())
        if path == library or library == "LightningCLI" or (parses and library not in ("click", "hydra")):
            self._reach(library)
        return External(path if is_object or last.islower() else f"{path}()")

    def _pass_parser(self, path: str, parser: Any, call: Call) -> Any:
        """Follow a function of an installed package that is given a parser; it is taken to return this parser."""
        function = self.follower.resolve(External(path), call.scope.module) if path else None
        owner = parser if isinstance(parser, Parser) else parser.parser
        before = len(owner.entries)
        result = self.follower.call_function(function, call) if isinstance(function, Function) else None
        if len(owner.entries) == before:
            text = ast.unparse(call.node.func)
            self.unsure.append(f"{call.where}: {text} may add arguments, which are not read from the source")
        return result if isinstance(result, Parser | Group) else parser

    # --- argparse -------------------------------------------------------------------------------------

    def call_method(self, receiver: Any, name: str, call: Call) -> Any:
        """Return the value of a call of a parser's method."""
        unknown = Unknown(call.node, call.scope)
        if isinstance(receiver, File):
            return FileText(receiver.path) if name == "read" else unknown
        if isinstance(receiver, Tree):
            if name.startswith("merge"):
                receiver[unknown] = unknown  # a file or a list of words
            return receiver if name == "clone" else unknown
        if isinstance(receiver, Subparsers):
            return self._add_parser(receiver, call) if name == "add_parser" else unknown
        parser = receiver if isinstance(receiver, Parser) else receiver.parser
        group = receiver if isinstance(receiver, Group) else Group(parser)
        match name:
            case "__init__":
                self._start(parser, call)
            case "add_argument" | "add" | "add_arg" | "_add_argument":
                return self._add_argument(group, call) or unknown
            case "add_argument_group":
                title = call.argument(0, "title", "")
                return Group(parser, title if isinstance(title, str) else "", group.exclusive)
            case "add_mutually_exclusive_group":
                return Group(parser, group.title, f"one group at {call.where}")
            case "add_subparsers":
                parser.needs_command = call.keywords.get("required") is True
                return Subparsers(parser)
            case "set_defaults":
                self._set_defaults(parser, call)
            case "add_arguments":
                self.unsure.append(f"{call.where}: the fields that add_arguments adds are not read from the source")
            case "get_default":
                return parser.default_of(str(call.argument(0, "dest")))
            case _ if name in _PARSES + _PARSES_SOME:
                return self._parse(parser, name, call)
        return unknown

    def _parse(self, parser: Parser, name: str, call: Call) -> Any:
        words = call.argument(0, "args")
        is_explicit = isinstance(words, list | tuple | str)
        if not isinstance(call.argument(1, "namespace"), Namespace | None):
            self.unsure.append(f"{call.where}: defaults also come from the namespace that {name} is given")
        if not is_explicit:
            self.parsed.append(parser)
            if name in _PARSES:
                self.refuses_others = name in ("parse_args", "parse_intermixed_args")
                raise ParserReached
        namespace = Namespace(parser)
        return (namespace, Unknown(call.node, call.scope)) if name in _PARSES_SOME else namespace

    def _add_parser(self, subparsers: Subparsers, call: Call) -> Any:
        name = call.argument(0, "name")
        if not isinstance(name, str):
            self.unsure.append(f"{call.where}: the name of a sub-command is computed: {text_of(name)}")
            return Parser()
        outer = subparsers.parser
        parser = Parser(outer.library, command=(*outer.command, name))
        parser.aliases = tuple(map(str, self.follower.items(call.keywords.get("aliases")) or ()))
        self._start(parser, call)
        outer.children.append(parser)
        return parser

    def _set_defaults(self, parser: Parser, call: Call) -> None:
        values = {name: value for name, value in call.keywords.items() if not isinstance(value, Function)}
        if tests := [*self.follower.conditions, *self.follower.loops]:
            old = {name: text_of(literal_of(parser.default_of(name))) for name in values}
            texts = {name: f"{text_of(value)} if {tests[-1]} else {old[name]}" for name, value in values.items()}
            values = {name: Unknown(ast.Name(text)) for name, text in texts.items()}
        parser.set_defaults(values)
        if not call.is_whole:
            self.notes.append(f"{call.where}: defaults also come from {ast.unparse(call.node.keywords[-1].value)}")

    def _add_argument(self, group: Group, call: Call) -> Entry | None:
        flags = tuple(flag for flag in call.args if isinstance(flag, str))
        where = call.where
        if not flags and isinstance(dest := call.keywords.get("dest"), str):
            flags = (dest,)
        if len(flags) < len(call.args) or not flags or not call.is_whole:
            loop = self.follower.loops
            what = f"a loop at {loop[-1]} adds arguments" if loop else "the names of an argument are computed"
            self.unsure.append(f"{where}: {what}: {ast.unparse(call.node)[:100]}")
            if not flags:
                return None
        conditions = self.follower.conditions
        if tests := [
            *(f"in the loop at {at}" for at in self.follower.loops),
            *(f"only if {text}" for text in conditions),
        ]:
            self.unsure.append(f"{where}: {flags[0]} is declared {tests[-1][:90]}")
        for name in ("type", "nargs", "action", "required", "dest"):
            if isinstance(value := call.keywords.get(name), Unknown):
                self.unsure.append(f"{where}: {name}= of {flags[0]} is known only to the program: {value.text[:80]}")
        entry = Entry(flags, dict(call.keywords), where, group.title, group.exclusive)
        clash = group.parser.add(entry)
        if clash is not None and not conditions:
            self.unsure.append(f"{where}: {flags[0]} is declared at {clash.where} already; argparse refuses this")
        return entry

    # --- tyro, config files ---------------------------------------------------------------------------

    def _tyro(self, call: Call) -> None:
        """Read the class or function that `tyro.cli` is given; ParserReached if there is no more to find."""
        target = self.follower.resolve(call.argument(0, "f"), call.scope.module)
        default = call.keywords.get("default")
        unsure = [
            f"{call.where}: {name}= of tyro.cli is not read" for name in call.keywords if name in ("config", "args")
        ]
        if isinstance(target, Class):
            fields = self._fields(target, call.where)
        elif isinstance(target, Function):
            fields = parameters_of_function(target, self.follower)
        else:
            fields = []
            unsure.append(f"{call.where}: {text_of(target)} is not read from the source")
        changed = getattr(default, "attributes", None)
        if default is not None and changed is None:
            unsure.append(f"{call.where}: the default of tyro.cli is not read from the source: {text_of(default)}")
        arguments, more = tyro_arguments(fields, self.follower, outer=changed)
        self.library = "tyro"
        self.arguments += arguments
        self.unsure += unsure + more
        raise ParserReached

    def _file_call(self, path: str, last: str, call: Call, unknown: Unknown) -> Any:
        value = call.argument(0, "file")
        if path in ("open", "io.open"):
            return File(value) if isinstance(value, str) else unknown
        if path == "exec":
            self._exec(value, call)
            return unknown
        if last == "from_cli" or (last == "from_dotlist" and isinstance(value, Unknown)):
            self.overrides = call.where
            return External(f"{path}()")
        if "from_cli()." in path and isinstance(value, str):  # `get` or `pop`
            return External(path.removesuffix(last) + value)
        if last in ("structured", "create"):
            value = self.follower.resolve(value, call.scope.module)
            is_known = isinstance(value, Class | Instance) or (isinstance(value, dict) and is_literal(value))
            return value if is_known else unknown
        if last == "merge":
            parts = [part for item in call.args for part in (item if isinstance(item, tuple) else (item,))]
            if self.overrides:
                self.configs = parts if call.is_whole else [*parts, unknown]
                raise ParserReached
            return tuple(parts) if len(parts) > 1 and call.is_whole else unknown
        if last in ("load", "safe_load", "full_load", "loads", "unsafe_load"):
            if isinstance(value, External) and "from_cli()." in value.path:
                settings = {"source": call.where, "is_required": not self.follower.conditions}
                file = Argument(made_field(value.path.rpartition(".")[2], types=(str,), **settings))
                self.arguments.append(as_key(file))
            name = value.path if isinstance(value, File) else value if isinstance(value, str) else ""
            if name and (found := self._beside(name)) and (config := load_config(found)) is not None:
                self.configs.append(config)
                return config
        return unknown

    def _beside(self, name: str) -> Path | None:
        """Return a file that the script names; None if it is not there."""
        folders = self.modules.start, self.modules.script.path.parent, self.modules.repository
        return next((folder / name for folder in folders if (folder / name).is_file()), None)

    def _exec(self, value: Any, call: Call) -> None:
        """Follow `exec(open("configurator.py").read())`."""
        if not isinstance(value, FileText):
            if "add_argument" in str(value):
                self.unsure.append(f"{call.where}: the executed text may add arguments, which are not read")
            return
        if (path := self._beside(value)) is None or (module := self.modules.parse(path)) is None:
            return
        if not overrides_constants(module.source):
            self.follower.block(module.tree.body, call.scope)
            return
        self.library = "constants"
        self.arguments, notes = constant_arguments(call.scope, call.node.lineno, f"{module.label}:1")
        self.unsure += notes
        raise ParserReached


def _merges(module: SourceModule, names: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield where a module merges an argument into a config, and whether other calls are given this config before."""
    if "merge_from_list" not in module.source:
        return
    bodies: list[list[ast.stmt]] = [[node] for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)]
    bodies.append([node for node in module.tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)])
    for body in bodies:
        calls = [node for part in body for node in ast.walk(part) if isinstance(node, ast.Call)]
        for call in calls:
            given = {getattr(inner, "attr", "") for argument in call.args for inner in ast.walk(argument)}
            if isinstance(call.func, ast.Attribute) and call.func.attr == "merge_from_list" and given & names:
                config = ast.unparse(call.func.value)
                others = (other for other in calls if other.lineno < call.lineno)
                yield module.where(call), any(config in map(ast.unparse, other.args) for other in others)


def _outside_guard(tree: ast.Module, *, is_script: bool) -> list[ast.AST]:
    """Return the nodes of a module, without those that are executed only if it is the script itself."""
    guards = [each for each in tree.body if isinstance(each, ast.If) and "__name__" in ast.unparse(each.test)]
    return [node for each in tree.body if is_script or each not in guards for node in ast.walk(each)]
