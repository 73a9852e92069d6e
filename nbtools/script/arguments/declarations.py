"""`add_argument` of argparse as records: what a parser, its groups and its sub-commands declare."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any

from nbtools.rundir.secret_values import is_secret, masked, without_secrets
from nbtools.script.arguments.arguments import Action, Argument
from nbtools.script.arguments.texts import FALSE, TRUE, element_type
from nbtools.script.field import Field
from nbtools.script.follow.values import Class, EnumMember, External, Function, Unknown, is_literal

SUPPRESSED = External("argparse.SUPPRESS")
_ACTIONS = {
    "_StoreAction": "store",
    "_StoreTrueAction": "store_true",
    "_StoreFalseAction": "store_false",
    "_StoreConstAction": "store_const",
    "_AppendAction": "append",
    "_CountAction": "count",
    "_HelpAction": "help",
    "_VersionAction": "version",
}
"""Classes of actions, and the names of the same."""
_TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_TRUTHS = (("True", "False"), ("true", "false"), ("1", "0"), ("yes", "no"), ("y", "n"), ("t", "f"), ("on", "off"))


@dataclass
class Entry:
    """One call of `add_argument`."""

    flags: tuple[str, ...]
    keywords: dict[str, Any]
    where: str
    group: str = ""
    exclusive: str = ""

    @property
    def dest(self) -> str:
        """The name under which argparse stores the value."""
        if isinstance(dest := self.keywords.get("dest"), str):
            return dest
        if not self.flags[0].startswith("-"):
            return self.flags[0]
        longest = next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])
        return longest.lstrip("-").replace("-", "_")


@dataclass(eq=False)
class Parser:
    """A parser of the source, or one of its sub-commands."""

    library: str = "argparse"
    cls: Class | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    children: "list[Parser]" = field(default_factory=list)
    resolves_conflicts: bool = False
    needs_command: bool = False
    default: Any = None
    """Default of arguments that name none."""

    def default_of(self, name: str) -> Any:
        """Return the default of an argument by the name of its value."""
        return next((entry.keywords.get("default") for entry in self.entries if entry.dest == name), None)

    def set_defaults(self, values: Mapping[str, Any]) -> None:
        """Change defaults, as `set_defaults` does."""
        self.defaults.update(values)
        for entry in self.entries:
            if entry.dest in values:
                entry.keywords["default"] = values[entry.dest]
                entry.keywords.pop("required", None)

    def add(self, entry: Entry) -> Entry | None:
        """Add an entry; return an earlier one with a flag of the new one, which argparse refuses."""
        entry.keywords.setdefault("default", self.defaults.get(entry.dest, self.default))
        options = {flag for flag in entry.flags if flag.startswith("-")}
        clash = next((other for other in self.entries if options & set(other.flags)), None)
        if clash is not None and self.resolves_conflicts:
            self.entries = [
                replace(other, flags=left)
                for other in self.entries
                if (left := tuple(flag for flag in other.flags if flag not in options))
            ]
        elif clash is not None:
            return clash
        self.entries.append(entry)
        return None


@dataclass(eq=False)
class Group:
    """A group of arguments, or of arguments that exclude each other."""

    parser: Parser
    title: str = ""
    exclusive: str = ""


@dataclass(eq=False)
class Subparsers:
    """What `add_subparsers` returns."""

    parser: Parser


def arguments_of_parsers(parsers: Sequence[Parser]) -> tuple[list[Argument], list[tuple[str, ...]], list[str]]:
    """Return the arguments of parsers that read one command line, the sub-commands, and notes."""
    declared: list[Argument] = []
    commands: list[tuple[str, ...]] = []
    notes: list[str] = []
    for outer in parsers:
        for parser in family(outer):
            commands += [parser.command] if parser.command else []
            made = (argument_of(entry, parser.command, notes) for entry in parser.entries)
            declared += [argument for argument in made if argument is not None]
    return with_unique_names(declared), list(dict.fromkeys(commands)), notes


def with_unique_names(arguments: Sequence[Argument]) -> list[Argument]:
    """Return arguments with unique names.

    Two that set the same truth value become one; others with the name of an earlier one are called after their flag,
    and where several sub-commands have the same name, the sub-command stands in front of it.
    """
    found: dict[tuple[tuple[str, ...], str], Argument] = {}
    for argument in arguments:
        key = argument.command, argument.field.name
        if (first := found.get(key)) is not None:
            if set(first.flags) & set(argument.flags):
                continue
            if (merged := _merged(first, argument)) is not None:
                found[key] = merged
                continue
            name = argument.flags[0].lstrip("-").replace("-", "_") if argument.flags else f"{key[1]}.2"
            key = argument.command, f"{key[1]}.{name}" if (argument.command, name) in found else name
            argument = replace(argument, field=argument.field.replace(name=key[1]))
        found.setdefault(key, argument)
    counts = Counter(argument.field.name for argument in found.values())
    return [
        replace(argument, field=argument.field.replace(name=".".join((*argument.command, argument.field.name))))
        if counts[argument.field.name] > 1 and argument.command
        else argument
        for argument in found.values()
    ]


def family(parser: Parser) -> Iterator[Parser]:
    """Yield a parser and those of its sub-commands."""
    yield parser
    for child in parser.children:
        yield from family(child)


def _merged(first: Argument, second: Argument) -> Argument | None:
    """Return one argument for two that set the same truth value, such as `--cache` and `--no-cache`."""
    if second.action == "store_false" and first.action in ("store", "store_true", "optional_bool"):
        if first.action == "store" and bool not in first.field.types:
            return None
        action: Action = "store" if first.action == "store" else "optional_bool"
        return replace(first, action=action, negative_flags=(*first.negative_flags, *second.flags))
    if first.action == "store_false" and second.action == "store_true":
        return replace(first, action="optional_bool", flags=second.flags, negative_flags=first.flags, const=True)
    return None


def argument_of(entry: Entry, command: tuple[str, ...], notes: list[str]) -> Argument | None:
    """Return the argument that an entry declares; None if it takes no value, as `--help`."""
    keywords = entry.keywords
    action = keywords.get("action") or "store"
    for base, usual in _ACTIONS.items():
        if action == External(f"argparse.{base}") or (isinstance(action, Class) and action.derives_from(base)):
            action = usual
    if action in ("help", "version", "parsers"):
        return None
    has_flag = entry.flags[0].startswith("-")
    flags = tuple(sorted(entry.flags, key=lambda flag: not flag.startswith("--"))) if has_flag else ()
    default, default_text = _default(keywords.get("default"))
    is_required = bool(keywords.get("required") is True) and has_flag
    nargs: Any = keywords.get("nargs")
    nargs = "..." if nargs == External("argparse.REMAINDER") else "*" if nargs == "A..." else nargs
    nargs = nargs if nargs in ("?", "*", "+", "...") or (isinstance(nargs, int) and nargs > 0) else None
    if not has_flag:
        is_required = nargs not in ("?", "*", "...")
    kind, truth, choices = _converter(keywords.get("type"), default)
    if isinstance(choice_list := keywords.get("choices"), Class) and choice_list.is_enum:
        choice_list = choices
    if isinstance(choice_list, list | tuple | set | dict):
        choices = tuple(map(literal_of, choice_list)) if all(map(_is_choice, choice_list)) else None
    elif choice_list is not None:
        choices = None
        text = choice_list.text if isinstance(choice_list, Unknown) else choice_list
        notes.append(f"{entry.where}: the choices of {entry.flags[0]} are known only to the program: {text}")
    const: Any = literal_of(keywords.get("const", True if nargs is None else None))
    made: dict[str, Any] = {}
    match action:
        case "store_true" | "store_false":
            default = (action == "store_false") if default is None and not default_text else default
            kind, const, made["action"] = bool, action == "store_true", action
        case External(path) if path.endswith("BooleanOptionalAction"):
            kind, made["action"] = bool, "optional_bool"
            made["negative_flags"] = tuple(f"--no-{flag[2:]}" for flag in flags if flag.startswith("--"))
        case "store_const":
            made["action"] = "store_true"
            kind, choices = type(const), (default, const)
        case Class() if _takes_nothing(action):
            made["action"] = "store_true"
            kind = bool
        case "count":
            kind, made["action"] = int, "count"
        case "append" | "extend":
            made["action"] = "append"
            nargs = None if action == "extend" else nargs
        case "append_const":
            notes.append(f"{entry.where}: {entry.flags[0]} appends a constant; give it as a further word")
            return None
        case "store":
            pass
        case _:
            text = action.node.name if isinstance(action, Class) else getattr(action, "text", action)
            notes.append(f"{entry.where}: {entry.flags[0]} is stored by {text}, which may change its value")
    is_list = made.get("action") == "append" or (nargs not in (None, "?") and made.get("action", "store") == "store")
    if isinstance(default, str) and kind in (int, float, bool) and not is_list:
        default = _converted(default, kind, truth)
    if is_list and isinstance(default, str | int | float):
        default = (default,) if nargs not in ("...",) else ()
    types: tuple[Any, ...] = (tuple[kind, ...],) if is_list else (kind,)  # type: ignore[valid-type]
    if choices is not None and not is_list:
        types = ()
    if default is None and not is_required and not default_text:
        types = (*types, NoneType)
        choices = (*choices, None) if choices is not None and not is_list and None not in choices else choices
    argument = Argument(
        made_field(
            entry.dest,
            types=types,
            default=default,
            default_text=default_text,
            choices=choices,
            help=_help(keywords.get("help"), default_text or default),
            group=entry.group,
            source=entry.where,
            is_required=is_required,
        ),
        flags=flags,
        nargs=nargs if made.get("action", "store") in ("store", "append") else None,
        exclusive=entry.exclusive,
        command=command,
        const=const,
        truth=truth,
    )
    return replace(argument, **made)


def made_field(name: str, **settings: Any) -> Field:
    """Return a field of a script, which is secret if its name or its default says so; its help has no secret."""
    field = Field(name, **settings)
    default = [item for item in (field.default if isinstance(field.default, tuple) else [field.default]) if item]
    texts = [item for item in default if isinstance(item, str)]
    hides = str in map(element_type, field.types) and any(is_secret(name, text) for text in ["value", *texts])
    (default_text,) = masked([field.default_text])
    return field.replace(
        is_secret=hides and not field.choices,
        default_text=default_text,
        help=without_secrets(field.help, texts) if hides else field.help,
    )


def literal_of(value: Any) -> Any:
    """Return a literal with tuples instead of lists, and the value of an enumeration's member."""
    if isinstance(value, EnumMember):
        return literal_of(value.value)
    return tuple(map(literal_of, value)) if isinstance(value, list | tuple) else value


def _is_choice(value: Any) -> bool:
    return isinstance(value, EnumMember) or (is_literal(value) and not isinstance(value, list | dict | set))


def _default(value: Any) -> tuple[Any, str]:
    """Return a default as a literal, or None and its source text."""
    value = literal_of(value)
    if value is None or value == SUPPRESSED:
        return None, ""
    if is_literal(value):
        return (value, "") if not isinstance(value, dict | set | bytes | complex) else (None, repr(value))
    return None, text_of(value)


def text_of(value: Any) -> str:
    """Return the source text of a value that is no literal."""
    match value:
        case Unknown():
            return value.text or "…"
        case External(path):
            return path
        case Function(node=ast.FunctionDef(name=name)) | Class(node=ast.ClassDef(name=name)):
            return name
        case Function(node=node):
            return ast.unparse(node)
        case list() | tuple():
            return f"[{', '.join(text_of(item) if not is_literal(item) else repr(item) for item in value)}]"
    return repr(value) if is_literal(value) else type(value).__name__


def _converted(text: str, kind: type, truth: tuple[str, str]) -> Any:
    """Return a default that argparse converts because it is text; the text if it cannot be."""
    if kind is bool:
        return bool(text) if truth[1] == "" else text.lower() in TRUE if text.lower() in TRUE + FALSE else text
    try:
        return kind(text)
    except ValueError:
        return text


def _converter(value: Any, default: Any) -> tuple[type, tuple[str, str], tuple[Any, ...] | None]:
    """Return the type that `type=` makes, the texts of True and False, and the choices of an enumeration."""
    usual = ("True", "False")
    example = default[0] if isinstance(default, tuple) and default else default
    known = type(example) if type(example) in (int, float, bool) else str
    match value:
        case None:
            return str, usual, None
        case External("bool"):  # bool("False") is True
            return bool, ("True", ""), None
        case External(path):
            last = path.rpartition(".")[2]
            if "bool" in last.lower():
                return bool, usual, None
            return _TYPES.get(path, str if "Path" in last else known), usual, None
        case Class() if value.is_enum:
            members = [statement for owner in value.ancestors for statement in owner.node.body]
            values = [s.value.value for s in members if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)]
            return str, usual, tuple(values) or None
        case Function(node=node):
            returned = _returned(node)
            name = getattr(node, "name", "lambda").lower()
            if "bool" in name or (returned and all(map(_is_truth, returned))):
                return bool, _truth_texts(node), None
            kinds = {_made_type(item, node) for item in returned if not _is_none(item)}
            annotation = getattr(node, "returns", None)
            if isinstance(annotation, ast.Name) and annotation.id in _TYPES:
                kinds = {_TYPES[annotation.id]}
            (kind,) = kinds if len(kinds) == 1 and kinds != {None} else (known,)
            return kind or known, usual, None
    return known, usual, None


def _returned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Lambda):
        body = node.body
        return [body.body, body.orelse] if isinstance(body, ast.IfExp) else [body]
    return [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value is not None]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_truth(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool()) | ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name == "bool" or "bool" in name.lower()
        case ast.BoolOp(values=values):
            return all(map(_is_truth, values))
    return False


def _made_type(node: ast.expr, function: ast.AST) -> type | None:
    """Return the type of a returned expression, as far as `int(...)` or `float(...)` tells."""
    if isinstance(node, ast.Name):
        assigned = [inner.value for inner in ast.walk(function) if isinstance(inner, ast.Assign)
                    and any(isinstance(t, ast.Name) and t.id == node.id for t in inner.targets)]  # fmt: skip
        return next((kind for value in assigned if (kind := _made_type(value, function))), None) if assigned else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _TYPES.get(node.func.id)
    return None


def _truth_texts(node: ast.AST) -> tuple[str, str]:
    """Return the texts that a function compares with, for True and False."""
    texts = {
        inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    }
    pairs = [pair for pair in _TRUTHS if pair[0] in texts]
    partner = [pair for pair in _TRUTHS if pair[1] in texts]
    lowers = any(isinstance(inner, ast.Attribute) and inner.attr == "lower" for inner in ast.walk(node))
    if lowers and "true" in texts:
        return "True", "False"
    true = pairs[0] if pairs else partner[0] if partner else ("True", "False")
    return true[0], (true[1] if true in partner or not partner else partner[0][1])


def _takes_nothing(cls: Class) -> bool:
    """Whether a class of actions says `nargs=0`."""
    return any(
        (isinstance(node, ast.keyword) and node.arg == "nargs" and getattr(node.value, "value", None) == 0)
        for owner in cls.ancestors
        for node in ast.walk(owner.node)
    )


def _help(value: Any, default: Any) -> str:
    """Return a help text with its `%(default)s` filled in."""
    if value == SUPPRESSED:
        return ""
    text = value if isinstance(value, str) else _partial_text(value.node) if isinstance(value, Unknown) else ""
    if "%" in text:
        text = text.replace("%(default)s", str(default)).replace("%(default)r", repr(default)).replace("%%", "%")
    return " ".join(text.split())


def _partial_text(node: ast.AST | None) -> str:
    """Return the literal parts of a text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_partial_text(part) or "…" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _partial_text(left) + _partial_text(right)
        case ast.BinOp(left=left, op=ast.Mod()) | ast.Call(func=ast.Attribute(value=left)):
            return _partial_text(left)
    return ""
