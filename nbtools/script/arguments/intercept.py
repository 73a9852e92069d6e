"""Runs a script up to its parser and writes what it declares to a file: started by path, by the script's interpreter.

It imports nothing of nbtools, for that interpreter may lack it, and works with Python 3.8 and later.
"""

# mypy: ignore-errors
import argparse
import ast
import ctypes
import enum
import errno
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import re
import runpy
import shutil
import signal
import sys
import threading
import time
import traceback
import typing
import warnings

SETTINGS = {}
"""Settings that the caller passes: script, module, start, cwd, folder, result, nonce, mark, parent and time limit."""
RECORDED = []
"""Parsers that have read a part of the command line, and the script continues to another one."""
NEEDS_COMMAND = []
"""Paths of the commands that a sub-command must follow."""
ALIASES = []
"""Paths that end with another name of a sub-command, each with its first name."""
VISITED = set()
CHANGES = {"open": 1, "os.remove": 1, "os.truncate": 1, "os.rename": 2, "shutil.rmtree": 1}
"""Audit events, and how many of their first arguments are paths that they change."""
GRACE_S = 5
LOOK_EVERY_S = 0.5
LONGEST_TEXT = 2000
UNSET = ("Sentinel", "_Unset", "UnsetType")
"""Classes of values that stand for no default."""
MOST_CHOICES = 1000
NOT_ARGUMENTS = ("_ActionPrintConfig", "_ActionHelpClassPath", "ActionHelpClassPath", "ShtabAction")
"""Actions of jsonargparse that answer a question."""
PARSES = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")
OWN_SOURCES = ("argparse.py", "hf_argparser.py", "_cli.py", "tyro", "jsonargparse", "simple_parsing", "tap", "hydra")


class Words(list):
    """Words of the command line, of which parts remain words of the command line."""

    def __getitem__(self, index):
        found = list.__getitem__(self, index)
        return Words(found) if isinstance(index, slice) else found


# --- the end --------------------------------------------------------------------------------------


def write_result(**content):
    """Write the result; a later one replaces it."""
    content["nonce"] = SETTINGS["nonce"]
    path = SETTINGS["result"]
    part = "%s.%d" % (path, os.getpid())
    with open(part, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(content, file, default=repr)
    os.replace(part, path)


def finish(library, arguments, commands=()):
    """Write the arguments and end the process, so that nothing of the script runs after its parser."""
    try:
        found = {"arguments": arguments, "commands": list(commands), "needs_command": NEEDS_COMMAND, "aliases": ALIASES}
        write_result(state="parsed", parser=library, **found)
    finally:
        os._exit(0)


def fail(state, error, missing=""):
    """Write why there are no arguments, and end the process."""
    try:
        if RECORDED:
            finish_parsers()
        write_result(state=state, error=str(error)[:LONGEST_TEXT], missing=missing)
    finally:
        os._exit(1)


def failed(error):
    """Write the exception that ended the script before its parser."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if in_program(f.filename)]
    where = " (%s:%d)" % (shown_path(frames[-1].filename), frames[-1].lineno) if frames else ""
    if isinstance(error, SystemExit):
        fail("exited", "exit(%s)%s" % (text_of_any(error.code), where))
    missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    line = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1:]
    fail("failed", "%s%s" % (line[0] if line else type(error).__name__, where), missing)


# --- values ---------------------------------------------------------------------------------------


def text_of_any(value):
    """Return the text of a value of any kind."""
    try:
        return str(value)[:LONGEST_TEXT]
    except Exception:  # a method of the script's own class
        return type(value).__name__


def fits_json(value):
    """Whether JSON can hold a value."""
    if isinstance(value, (list, tuple)):
        return all(fits_json(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def as_plain(value):
    """Return a value as a literal where it stands for one."""
    if isinstance(value, enum.Enum):
        return as_plain(value.value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [as_plain(item) for item in value]
    if isinstance(value, (set, frozenset)) and fits_json(list(value)):
        return sorted(value, key=str)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (bool, int, float, str)) and type(value) not in (bool, int, float, str):
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
    return value


def default_of(value):
    """Return the entries of a default: a literal, or the text of something else."""
    value = as_plain(value)
    if value == argparse.SUPPRESS or type(value) is object or type(value).__name__ in UNSET:
        return {"default": None}
    return {"default": value} if fits_json(value) else {"default": None, "default_text": text_of_any(repr(value))[:200]}


def shown_path(path):
    """Return a file's path below the folder where the script starts; its last parts elsewhere."""
    start = SETTINGS["start"]
    path = os.path.abspath(path)
    if path.startswith(start + os.sep):
        return os.path.relpath(path, start)
    return "/".join(path.split("site-packages" + os.sep)[-1].split(os.sep)[-3:])


def in_program(path):
    """Whether a file belongs to the program, not to an installed package."""
    return os.path.abspath(path).startswith(SETTINGS["start"] + os.sep) and "site-packages" not in path


def source_of(function):
    """Return where a function is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return "%s:%d" % (shown_path(code.co_filename), code.co_firstlineno) if code else ""


def caller():
    """Return where an argument is declared; empty if a library declares it for a dataclass or a function."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in (argparse.__file__, __file__):
        frame = frame.f_back
    if frame is None or any(part in OWN_SOURCES for part in frame.f_code.co_filename.split(os.sep)):
        return ""
    return "%s:%d" % (shown_path(frame.f_code.co_filename), frame.f_lineno)


def converter(kind, example):
    """Return the name of the type that a converter makes, and the texts of True and False."""
    usual = ["True", "False"]
    if isinstance(example, (list, tuple)) and example:
        example = example[0]
    known = type(example).__name__ if type(example) in (int, float, bool) else "str"
    if kind is None:
        return "str", usual
    if kind is bool:
        return "bool", ["True", ""]
    if kind in (int, float, str):
        return kind.__name__, usual
    if inspect.isclass(kind):
        return ("str" if issubclass(kind, (os.PathLike, enum.Enum)) else known), usual
    if isinstance(kind, argparse.FileType) or not callable(kind):
        return "str", usual

    def tried(word):
        try:
            return kind(word)
        except BaseException:
            return None

    made = tried("1")
    for pair in (usual, ["true", "false"], ["1", "0"], ["yes", "no"], ["y", "n"]):
        if tried(pair[0]) is True and tried(pair[1]) is False:
            is_any = type(made) is int  # reads any literal, as json.loads
            return (known if is_any else "bool"), pair
    if type(made) in (int, float):
        return type(made).__name__, usual
    return known if made is None else "str", usual


# --- argparse -------------------------------------------------------------------------------------


def describe_parsers(parsers):
    """Return the arguments and the sub-commands of parsers that read one command line."""
    arguments, commands = [], []
    for parser in parsers:
        describe_parser(parser, (), arguments, commands)
    return arguments, commands


def class_names(value):
    """Return the names of an object's classes: libraries keep copies of argparse."""
    return [cls.__name__ for cls in type(value).__mro__]


def is_argument(action):
    """Whether an action is more than a request for help."""
    return "--help" not in action.option_strings and not {"_HelpAction", "_VersionAction"} & set(class_names(action))


def describe_parser(parser, command, arguments, commands):
    """Add what one parser declares."""
    titles = {}
    for group in parser._action_groups[2:]:
        for action in group._group_actions:
            titles[id(action)] = group.title or ""
    exclusive = {}
    for number, group in enumerate(parser._mutually_exclusive_groups):
        for action in group._group_actions:
            exclusive[id(action)] = "group %s" % " ".join(command + (str(number + 1),))
    for action in parser._actions:
        if "_SubParsersAction" in class_names(action):
            NEEDS_COMMAND.extend([list(command)] if action.required else [])
            first = {}
            for name, inner in action.choices.items():
                if first.setdefault(id(inner), name) != name:
                    ALIASES.append([command + (name,), first[id(inner)]])
                else:
                    commands.append(list(command + (name,)))
                    describe_parser(inner, command + (name,), arguments, commands)
        elif is_argument(action):
            described = describe_action(action, parser)
            described.update(
                command=list(command), group=titles.get(id(action), ""), exclusive=exclusive.get(id(action), "")
            )
            arguments.append(described)


def describe_action(action, parser):
    """Return one argument of argparse."""
    names = class_names(action)
    nargs = {argparse.REMAINDER: "...", argparse.PARSER: "*"}.get(action.nargs, action.nargs)
    default = as_plain(action.default)
    kind, truth = converter(action.type, default)
    if isinstance(default, str) and default != argparse.SUPPRESS and action.type is not None:
        try:
            converted = as_plain(parser._get_value(action, default))
            is_text = isinstance(converted, (list, dict)) or (kind == "str" and not isinstance(converted, str))
            default = default if is_text else converted
        except BaseException:
            pass
    is_split = isinstance(default, list) and inspect.isroutine(action.type) and action.nargs is None
    if is_split := is_split and "_AppendAction" not in names:  # one word stands for all
        try:
            text = ",".join(map(str, default))
            default = text if as_plain(action.type(text)) == default else default
        except BaseException:
            pass
    choices = None
    if isinstance(action.type, type) and issubclass(action.type, enum.Enum):
        choices = [as_plain(member) for member in action.type]
    if action.choices is not None:
        choices = [as_plain(choice) for choice in list(action.choices)[:MOST_CHOICES]]
        if not all(fits_json(choice) for choice in choices):
            choices = [text_of_any(choice) for choice in choices]
    what = "store"
    const = as_plain(action.const)
    if "_StoreTrueAction" in names or "_StoreFalseAction" in names:
        what, kind = ("store_true", "bool") if action.const else ("store_false", "bool")
    elif "BooleanOptionalAction" in names:
        what, kind = "optional_bool", "bool"
    elif "_StoreConstAction" in names:
        what, choices = "store_true", [as_plain(action.default), const]
    elif "_CountAction" in names:
        what, kind = "count", "int"
    elif "_AppendAction" in names:
        what, nargs = "append", None if "_ExtendAction" in names else nargs
    elif nargs == 0:
        what, kind, const = "store_true", "bool", True
    if what in ("store_true", "store_false") and kind == "bool" and default in (None, argparse.SUPPRESS):
        default = what == "store_false"  # what a script reads where the flag is not given
    flags = list(action.option_strings)
    negative = [flag for flag in flags if what == "optional_bool" and re.match(r"--(.+\.)?no-", flag)]
    help_text = action.help if action.help and action.help != argparse.SUPPRESS else ""
    try:
        help_text = help_text % dict(vars(action), prog=parser.prog)
    except Exception:  # `50% of x`, or a default whose own text fails: shown as it is written
        pass
    found = {
        "name": action.dest,
        "flags": [flag for flag in flags if flag not in negative],
        "negative_flags": negative,
        "action": what,
        "nargs": None if what not in ("store", "append") else nargs,
        "types": [kind],
        "truth": truth,
        "const": const if fits_json(const) else None,
        "choices": choices,
        "help": " ".join(text_of_any(help_text).split()),
        "source": getattr(action, "_declared_at", ""),
        "is_required": bool(action.required) and not (not flags and nargs in ("?", "*", "...")),
    }
    found.update(default_of(default))
    if is_split and isinstance(default, list):
        found.update(default=None, default_text=repr(default))
    return found


def finish_parsers():
    """Write the arguments of all parsers that were recorded."""
    arguments, commands = describe_parsers(RECORDED)
    is_hf = any("HfArgumentParser" in class_names(parser) for parser in RECORDED)
    finish("HfArgumentParser" if is_hf else "argparse", arguments, commands)


def call_sites(path):
    """Return the lines of a file's calls that parse, first and last each."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        (path, node.lineno, node.end_lineno)
        for node in calls
        if isinstance(node.func, ast.Attribute) and node.func.attr in PARSES
    ]


def is_last(frame):
    """Whether the script has no further call that parses after the one in a frame."""
    sites = []
    for path in {SETTINGS["script"], frame.f_code.co_filename}:
        sites += call_sites(path)
    for site in sites:
        if site[0] == frame.f_code.co_filename and site[1] <= frame.f_lineno <= site[2]:
            VISITED.add(site)
    return all(site in VISITED for site in sites)


def hook_argparse():
    """Let parsers of argparse end the script where they read the command line."""
    add_argument = argparse._ActionsContainer.add_argument
    parse_known_args = argparse.ArgumentParser.parse_known_args

    def noting(self, *args, **kwargs):
        action = add_argument(self, *args, **kwargs)
        try:
            action._declared_at = caller()
        except AttributeError:
            pass
        return action

    def reached(self, args=None, namespace=None, **kwargs):
        outer = sys._getframe(1).f_back
        if outer is not None and outer.f_code.co_filename.endswith(os.path.join("hydra", "main.py")):
            return parse_known_args(self, [], namespace)  # its config follows
        if args is not None and len(args) > 0 and list(args) != list(sys.argv[1:]):
            return parse_known_args(self, args, namespace, **kwargs)
        frame, names = sys._getframe(1), []
        while frame.f_back is not None and not in_program(frame.f_code.co_filename):
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        if self not in RECORDED:
            RECORDED.append(self)
        is_guess = args is not None and not isinstance(args, Words)  # parse_args([]), to get the defaults
        is_whole = any(name in names for name in PARSES if name != "parse_known_args")
        if (is_whole and not is_guess) or is_last(frame):
            finish_parsers()
        timer = threading.Timer(5, finish_parsers)
        timer.daemon = True
        timer.start()
        namespace = argparse.Namespace() if namespace is None else namespace
        for action in self._actions:
            if action.dest is not argparse.SUPPRESS and action.default is not argparse.SUPPRESS:
                value = action.default
                if isinstance(value, str):
                    try:
                        value = self._get_value(action, value)
                    except argparse.ArgumentError:
                        pass
                if not hasattr(namespace, action.dest):
                    setattr(namespace, action.dest, value)
        for name, value in self._defaults.items():
            if not hasattr(namespace, name):
                setattr(namespace, name, value)
        return namespace, Words()

    argparse._ActionsContainer.add_argument = noting
    argparse.ArgumentParser.parse_known_args = reached


# --- other libraries ------------------------------------------------------------------------------


def hook_click(module):
    """Let commands of click end the script when they are called."""
    for name in ("BaseCommand", "Command", "MultiCommand", "Group", "CommandCollection", "TyperCommand", "TyperGroup"):
        cls = module.__dict__.get(name)
        if inspect.isclass(cls) and "main" in vars(cls):
            cls.main = lambda self, *args, **kwargs: finish_click(self)


def finish_click(command):
    """Write the parameters of a command of click or typer."""
    arguments, commands = [], []

    def walk(command, path):
        for parameter in command.params:
            if not getattr(parameter, "expose_value", True) or "completion" in (parameter.name or ""):
                continue
            arguments.append(dict(describe_click(parameter), command=list(path), source=source_of(command.callback)))
        inner = getattr(command, "commands", None) or {}
        NEEDS_COMMAND.extend([list(path)] if inner and not command.invoke_without_command else [])
        for name, other in inner.items():
            commands.append(list(path + (name,)))
            walk(other, path + (name,))

    walk(command, ())
    modules = {cls.__module__.split(".")[0] for cls in type(command).__mro__}
    finish("typer" if "typer" in modules else "click", arguments, commands)


def describe_click(parameter):
    """Return one parameter of click."""
    kind_of = getattr(parameter, "type", None)
    parts = {getattr(part, "name", "text") for part in getattr(kind_of, "types", ())}  # of click.Tuple
    kind = parts.pop() if len(parts) == 1 else getattr(kind_of, "name", "text")
    kind = {"integer": "int", "float": "float", "boolean": "bool"}.get(kind.replace(" range", ""), "str")
    choices = getattr(kind_of, "choices", None)
    if kind_of is None:  # typer keeps the annotation
        kinds, choices = annotated(getattr(parameter.type_descriptor, "annotation", str))[:2]
        kind = kinds[0] if kinds else "str"
    is_flag = bool(getattr(parameter, "is_flag", False))
    multiple = bool(getattr(parameter, "multiple", False))
    what = "store"
    nargs = parameter.nargs if parameter.nargs != 1 else None
    const = True
    if getattr(parameter, "count", False):
        what, kind, nargs = "count", "int", None
    elif is_flag:
        const = as_plain(getattr(parameter, "flag_value", True))
        what = "optional_bool" if parameter.secondary_opts else "store_true"
        kind, nargs = ("bool" if type(const) is bool or not fits_json(const) else type(const).__name__), None
        const = const if fits_json(const) and const is not None else True
    elif multiple:
        what = "append"
    is_argument = getattr(parameter, "param_type_name", "") == "argument"
    default = parameter.default
    found = {
        "name": parameter.name,
        "flags": [] if is_argument else list(parameter.opts),
        "negative_flags": list(parameter.secondary_opts),
        "action": what,
        "nargs": "*" if nargs == -1 else nargs,
        "types": [kind],
        "truth": ["true", "false"],
        "const": const,
        "choices": None if choices is None else [as_plain(choice) for choice in list(choices)[:MOST_CHOICES]],
        "help": " ".join(text_of_any(getattr(parameter, "help", None) or "").split()),
        "is_required": bool(parameter.required),
    }
    found.update({"default": None, "default_text": source_of(default)} if callable(default) else default_of(default))
    if is_flag and found["default"] is None and kind == "bool" and "default_text" not in found:
        found["default"] = False
    if is_argument and not parameter.required and nargs is None:
        found["nargs"] = "?"
    return found


def hook_tyro(module):
    """Let tyro end the script when it is called."""
    extras = importlib.import_module("tyro.extras")

    def reached(f, *args, **kwargs):
        warnings.simplefilter("ignore")
        allowed = inspect.signature(extras.get_parser).parameters
        parser = extras.get_parser(f, **{name: kwargs[name] for name in kwargs if name in allowed})
        arguments, commands = describe_parsers([parser])
        for argument, action in zip(arguments, walk_actions(parser)):
            describe_tyro(argument, action)
        finish("tyro", arguments, commands)

    module.cli = reached


def walk_actions(parser):
    """Return the actions of a parser and of its sub-commands, in the order of `describe_parser`."""
    found = []
    for action in parser._actions:
        if "_SubParsersAction" in class_names(action):
            seen = set()
            for inner in action.choices.values():
                if id(inner) not in seen:
                    seen.add(id(inner))
                    found += walk_actions(inner)
        elif is_argument(action):
            found.append(action)
    return found


def describe_tyro(argument, action):
    """Read the types and the default of a tyro argument from its metavar and its help, the only places of both."""
    shown = re.search(r"\((?:default|default if \w+): (.*)\)$", argument["help"])
    argument["name"] = argument["flags"][0].lstrip("-").replace("-", "_") if argument["flags"] else argument["name"]
    argument["help"] = re.sub(r"\s*\((default|required|optional|repeatable).*\)$", "", argument["help"])
    if argument["action"] == "optional_bool":
        return
    metavar = str(action.metavar or "")
    names = {"INT": "int", "FLOAT": "float", "STR": "str", "PATH": "str", "BOOL": "bool"}
    choices = [choice for braces in re.findall(r"\{([^{}\[\]]*)\}", metavar) for choice in braces.split(",")]
    found = list(dict.fromkeys(kind for word, kind in names.items() if re.search(r"\b%s\b" % word, metavar)))
    if set(choices) >= {"True", "False"}:
        found.append("bool")
    words = {"None", "True", "False"}.union(names)
    kept = [choice for choice in choices if not words.issuperset(choice.split())]
    argument["choices"] = kept or None
    argument["is_optional"] = "None" in choices
    argument["types"] = found or ([] if kept else ["str"])
    if argument["nargs"] == 1:
        argument["nargs"] = None
    argument["is_required"] = bool(action.required)
    if shown is not None:
        argument["shown_default"] = shown.group(1)


def hook_fire(module):
    """Let fire end the script when it is called."""

    def reached(component=None, *args, **kwargs):
        arguments, commands = [], []

        def walk(component, path, depth):
            if isinstance(component, dict):
                members = component
            elif inspect.isroutine(component):
                members = {}
            elif depth < 3:
                names = list(vars(component if inspect.isclass(component) else type(component)))
                members = {name: getattr(component, name) for name in names if not name.startswith("_")}
            else:
                members = {}
            if callable(component):
                arguments.extend(describe_function(component, path))
            for name, member in members.items():
                if callable(member):
                    commands.append(list(path + (str(name),)))
                    walk(member, path + (str(name),), depth + 1)

        if component is None:
            component = {
                name: value
                for name, value in vars(sys.modules["__main__"]).items()
                if inspect.isfunction(value) and value.__module__ == "__main__"
            }
        walk(component, (), 0)
        finish("fire", arguments, commands)

    module.Fire = reached


def describe_function(function, path):
    """Return the parameters of a function as arguments."""
    found = []
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return found
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name == "self":
            continue
        is_required = parameter.default is parameter.empty
        default = {"default": None} if is_required else default_of(parameter.default)
        annotation = parameter.annotation
        value = default["default"]
        kind = type(value).__name__ if type(value) in (bool, int, float, str) else "str"
        named = getattr(annotation, "__name__", annotation)
        kind = named if named in ("bool", "int", "float", "str") else kind
        is_list = isinstance(value, list)
        found.append(
            dict(
                default,
                name=parameter.name,
                flags=["--" + parameter.name],
                action="store",
                types=[type(value[0]).__name__ if is_list and value else kind],
                is_list=is_list,
                is_required=is_required,
                source=source_of(function),
                command=list(path),
            )
        )
    return found


def hook_absl(module):
    """Let absl end the script where its flags are read."""
    flags = importlib.import_module("absl.flags")

    def register(self, name, flag):
        frame = sys._getframe(1)
        while frame is not None and not in_program(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            flag._declared_at = "%s:%d" % (shown_path(frame.f_code.co_filename), frame.f_lineno)
        return set_flag(self, name, flag)

    def reached(*args, **kwargs):
        found = []
        by_module = flags.FLAGS.flags_by_module_dict()
        own = list(flags.FLAGS.get_key_flags_for_module(sys.argv[0]))
        for name, listed in by_module.items():
            place = getattr(sys.modules.get(name), "__file__", None) or name
            if in_program(place):
                own += listed
        for flag in dict.fromkeys(own):
            found.append(describe_absl(flag))
        finish("absl", found)

    if module.__name__ == "absl.app":
        module.run = reached
    else:
        set_flag = module.FlagValues.__setitem__
        module.FlagValues.__setitem__ = register
        module.FlagValues.__call__ = reached


def describe_absl(flag):
    """Return one flag of absl."""
    kind = {"bool": "bool", "int": "int", "float": "float"}.get(flag.flag_type().replace("multi ", ""), "str")
    multiple = flag.flag_type().startswith("multi") or type(flag).__name__.startswith("Multi")
    is_bool = kind == "bool" and not multiple
    choices = getattr(flag.parser, "enum_values", None) or getattr(flag.parser, "member_names", None)
    messages = [text_of_any(getattr(validator, "message", "")) for validator in getattr(flag, "validators", ())]
    found = {
        "name": flag.name,
        "flags": ["--" + flag.name] + (["-" + flag.short_name] if flag.short_name else []),
        "negative_flags": ["--no" + flag.name] if is_bool else [],
        "action": "optional_bool" if is_bool else "append" if multiple else "store",
        "types": [kind],
        "is_list": isinstance(flag.default, list) and not multiple,
        "truth": ["true", "false"],
        "choices": list(choices) if choices else None,
        "help": " ".join(text_of_any(flag.help).split()),
        "is_required": flag.default is None and any("must have a value" in message for message in messages),
        "source": getattr(flag, "_declared_at", ""),
    }
    names = {name.lower(): name for name in choices or ()}
    default = [
        names.get(item.name.lower(), item.name) if isinstance(item, enum.Enum) else item
        for item in (flag.default if isinstance(flag.default, list) else [flag.default])
    ]
    found.update(default_of(default if isinstance(flag.default, list) else default[0]))
    return found


def hook_jsonargparse(module):
    """Let jsonargparse, and Lightning's command line with it, end the script where the command line is read."""

    def reached(self, args=None, *rest, **kwargs):
        is_lightning = any("lightning" in cls.__module__ for cls in type(self).__mro__)
        arguments, commands = [], []
        describe_jsonargparse(self, (), arguments, commands)
        finish("LightningCLI" if is_lightning else "jsonargparse", arguments, commands)

    module.ArgumentParser.parse_args = reached


def describe_jsonargparse(parser, path, arguments, commands):
    """Add what a parser of jsonargparse declares."""
    for action in parser._actions:
        name = type(action).__name__
        if hasattr(action, "_name_parser_map"):
            NEEDS_COMMAND.extend([list(path)] if action.required else [])
            for command, inner in action._name_parser_map.items():
                commands.append(list(path + (command,)))
                describe_jsonargparse(inner, path + (command,), arguments, commands)
            continue
        if not is_argument(action) or name in NOT_ARGUMENTS:
            continue
        others = [other for other in parser._actions if type(other).__name__ not in NOT_ARGUMENTS]
        if any(other.dest.startswith(action.dest + ".") for other in others):
            continue  # the whole of a nested group
        found = describe_action(action, parser)
        annotation = getattr(action, "_typehint", None)
        if annotation is not None:
            describe_annotation(found, annotation, action)
        found["flags"] = [flag for flag in found["flags"] if not flag.endswith("+")]
        found["command"] = list(path)
        found["group"] = action.dest.rpartition(".")[0]
        if name == "ActionConfigFile":
            found.update(default=None, types=["str"], action="append")  # each file adds to those before it
            found.pop("default_text", None)
        if found["action"] == "store" and found["types"] == ["bool"]:
            found["truth"] = ["true", "false"]
        found["is_required"] = action.dest in getattr(parser, "required_args", ()) or found["is_required"]
        arguments.append(found)


def annotated(annotation):
    """Return an annotation's names of types, its choices, whether it is a list, and whether None is allowed."""
    members = [annotation]
    if getattr(annotation, "__origin__", None) is typing.Union or type(annotation).__name__ == "UnionType":
        members = list(annotation.__args__)
    kinds, choices, is_list, has_others = [], [], False, False
    for member in members:
        origin = getattr(member, "__origin__", None)
        if member in (bool, int, float, str):
            kinds.append(member.__name__)
        elif getattr(typing, "Literal", None) is not None and origin is typing.Literal:
            choices += [as_plain(value) for value in member.__args__]
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            choices += [as_plain(value) for value in member]
        elif origin in (list, tuple, set) and not kinds:
            is_list = True
            inner = member.__args__[0] if getattr(member, "__args__", ()) else str
            kinds.append(inner.__name__ if inner in (bool, int, float, str) else "str")
        else:
            has_others = has_others or member is not type(None)
    kinds += ["str"] if has_others and kinds else []  # such as the path of a class
    return list(dict.fromkeys(kinds)), choices or None, is_list, type(None) in members


def describe_annotation(found, annotation, action):
    """Read the type of an argument of jsonargparse from its annotation."""
    kinds, choices, is_list, is_optional = annotated(annotation)
    if choices and not is_list and inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        choices = [member.name for member in annotation]
        found["default"] = action.default.name if isinstance(action.default, enum.Enum) else found["default"]
    found.update(choices=choices, is_optional=is_optional, nargs=None)
    found["types"] = kinds or ([] if choices else ["str"])
    found["is_list"] = is_list and len(kinds) == 1 and isinstance(found["default"], (list, type(None)))


def hook_hydra(module):
    """Let hydra end the script where it would compose its config and start the task."""

    def reached(args, args_parser, task_function, config_path, config_name, *rest, **kwargs):
        utils = importlib.import_module("hydra._internal.utils")
        holder = importlib.import_module("hydra.core.global_hydra").GlobalHydra
        mode = importlib.import_module("hydra.types").RunMode.RUN

        try:
            file, name = utils.detect_calling_file_or_module_from_task_function(task_function)
            search = utils.create_automatic_config_search_path(file, name, config_path)
            holder.instance().clear()
            hydra = importlib.import_module("hydra._internal.hydra").Hydra.create_main_hydra2(
                task_name=utils.detect_task_name(file, name), config_search_path=search
            )
            config = hydra.compose_config(
                config_name=config_name, overrides=[], run_mode=mode, with_log_configuration=False
            )
            arguments = describe_hydra(config, hydra.config_loader)
        except BaseException as error:
            failed(error)
        finish("hydra", arguments)

    module._run_hydra = reached


def describe_hydra(config, loader):
    """Return the config groups and the keys of a composed config."""
    omegaconf = importlib.import_module("omegaconf")

    found = []
    for group, choice in config.hydra.runtime.choices.items():
        if group.split("/")[0] != "hydra":
            options = list(loader.get_group_options(group))
            if options:  # an optional group may have no file
                found.append(dict(hydra_key(group, choice, "config group"), choices=options, types=[]))

    def walk(node, prefix):
        for key in node:
            name = "%s%s" % (prefix, key)
            if prefix == "" and key == "hydra":
                continue
            is_missing = omegaconf.OmegaConf.is_missing(node, key)
            raw = node._get_node(key)
            is_group = isinstance(raw, omegaconf.DictConfig) and not (raw._is_none() or raw._is_interpolation())
            if is_group and not is_missing:
                walk(raw, name + ".")
                continue
            is_list = isinstance(raw, omegaconf.ListConfig)
            value = omegaconf.OmegaConf.to_container(raw, resolve=False) if is_list else raw._value()
            value = None if is_missing else value
            found.append(hydra_key(name, value, "", raw, is_missing))

    walk(config, "")
    return found


def hydra_key(name, value, group, node=None, is_missing=False):
    """Return one key of a config as an argument."""
    value = as_plain(value)
    kind = getattr(getattr(node, "_metadata", None), "ref_type", None)
    choices = [member.name for member in kind] if inspect.isclass(kind) and issubclass(kind, enum.Enum) else None
    if choices and isinstance(getattr(node, "_value", lambda: None)(), enum.Enum):
        value = node._value().name
    is_interpolation = isinstance(value, str) and "${" in value
    is_list = isinstance(value, list)
    names = {bool: "bool", int: "int", float: "float", str: "str"}
    types = [names[kind]] if kind in names else [type(value).__name__] if type(value) in names else ["str"]
    if is_list:
        types = [type(value[0]).__name__] if value and type(value[0]) in names else ["str"]
    found = dict(
        default_of(None if is_interpolation else value),
        name=name,
        flags=[name],
        action="key_value",
        types=[] if choices else types,
        choices=choices,
        truth=["true", "false"],
        is_list=is_list,
        is_required=is_missing,
        is_optional=value is None and not is_missing,
        group=group or name.rpartition(".")[0],
        help="one of the config group" if group else "",
    )
    if is_interpolation:
        found["default_text"] = value
    return found


HOOKS = {
    "click.core": hook_click,
    "typer._click.core": hook_click,
    "typer.core": hook_click,
    "tyro": hook_tyro,
    "fire": hook_fire,
    "fire.core": hook_fire,
    "absl.app": hook_absl,
    "absl.flags._flagvalues": hook_absl,
    "jsonargparse._core": hook_jsonargparse,
    "jsonargparse.core": hook_jsonargparse,
    "hydra.main": hook_hydra,
}
"""Modules, and the function that changes each as soon as it is imported."""


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of parsing libraries where Python finds them, and changes them when they are imported."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a module to change, whose loader then changes it; None for all others."""
        hook = HOOKS.get(name)
        if hook is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            try:
                hook(module)
            except (AttributeError, ImportError, TypeError):
                pass  # another version of the library: its own parser then ends the script

        spec.loader.exec_module = exec_module
        return spec


# --- isolation ------------------------------------------------------------------------------------


def isolate():
    """Leave the network, where the machine allows it: the process is then alone in a namespace without devices."""
    new_user, new_network = 0x10000000, 0x40000000
    user, group = os.getuid(), os.getgid()
    try:
        libc = ctypes.CDLL(None)
        if libc.unshare(new_network) == 0 or libc.unshare(new_user | new_network) != 0:
            return
        for name, content in (
            ("setgroups", "deny"),
            ("uid_map", "%d %d 1" % (user, user)),
            ("gid_map", "%d %d 1" % (group, group)),
        ):
            with open("/proc/self/" + name, "w") as file:
                file.write(content)
    except (OSError, AttributeError):
        pass


def end_with_caller():
    """Once the caller is dead or its time is over, end all that carries its mark and remove its folder."""
    end = time.monotonic() + SETTINGS["timeout_s"] + GRACE_S
    while os.getppid() == SETTINGS["parent"] and time.monotonic() < end:
        time.sleep(LOOK_EVERY_S)
    mark = ("%s=%s" % (SETTINGS["mark"], SETTINGS["nonce"])).encode()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) != os.getpid():
                with open("/proc/%s/environ" % name, "rb") as file:
                    if mark in file.read().split(b"\0"):
                        os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass  # another user's, or it has ended
    os.chdir("/")  # `protect` needs a working directory
    shutil.rmtree(SETTINGS["folder"], ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def is_below(path, folder):
    """Whether a path is a folder or in it."""
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def protect(event, arguments):
    """Refuse to change what is in the caller's working directory, to which the script's folder links."""
    if event not in CHANGES or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)):
        return
    for path in arguments[: CHANGES[event]]:
        if not isinstance(path, (str, bytes, os.PathLike)):
            continue
        name = os.fsdecode(path)
        if event in ("os.remove", "os.rename") and os.path.islink(name):
            name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        else:
            name = os.path.realpath(name)
        is_inside, is_ours = (is_below(name, SETTINGS[folder]) for folder in ("cwd", "folder"))
        if is_inside and not is_ours and (os.path.isfile(name) or os.path.isdir(name)):
            raise PermissionError(errno.EPERM, "the script may not change this while it is asked", name)


def main():
    """Run the script that the first argument describes."""
    SETTINGS.update(json.loads(sys.argv[1]))
    isolate()
    threading.Thread(target=end_with_caller, daemon=True).start()
    signal.alarm(int(SETTINGS["timeout_s"] + 2 * GRACE_S))  # where the script never lets the thread run
    sys.addaudithook(protect)
    sys.argv = Words([SETTINGS["script"]])
    if os.path.abspath(sys.path[0] or ".") == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    sys.path.insert(0, SETTINGS["start"])
    sys.dont_write_bytecode = True
    hook_argparse()
    sys.meta_path.insert(0, Finder())
    try:
        if SETTINGS["module"]:
            runpy.run_module(SETTINGS["module"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(SETTINGS["script"], run_name="__main__")
    except BaseException as error:
        failed(error)
    fail("ended", "the script ended without reading its command line")


if __name__ == "__main__":
    main()
