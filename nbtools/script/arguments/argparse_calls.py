"""`add_argument` of argparse as records: what a parser, its groups and its sub-commands declare."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbtools.script.arguments.arguments import Argument, made_argument, with_unique_names
from nbtools.script.arguments.value_texts import FALSE, TRUE
from nbtools.script.follow import folding
from nbtools.script.follow.values import Class, EnumMember, External, Function, Unknown, is_literal

SUPPRESSED = External("argparse.SUPPRESS")
_ACTIONS = ("store", "store_true", "store_false", "store_const", "append", "count", "help", "version")
"""Actions whose classes are called after them, such as `_StoreTrueAction`."""
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
    def attributes(self) -> dict[str, Any]:
        """Attributes of the action, which a script may change."""
        return self.keywords

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
    aliases: tuple[str, ...] = ()
    children: "list[Parser]" = field(default_factory=list)
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
        if clash is None:
            self.entries.append(entry)
        return clash


@dataclass(eq=False)
class Group:
    """A group of arguments, or of arguments that exclude each other."""

    parser: Parser
    title: str = ""
    exclusive: str = ""


@dataclass(eq=False)
class Subparsers:
    """The result of `add_subparsers`, which sub-commands are added to."""

    parser: Parser


def arguments_of_parsers(
    parsers: Sequence[Parser], unsure: list[str]
) -> tuple[list[Argument], list[tuple[str, ...]], list[str]]:
    """Return the arguments of parsers that read one command line, the sub-commands, and notes; add to `unsure` what is
    known only to the program."""
    declared: list[Argument] = []
    commands: list[tuple[str, ...]] = []
    notes: list[str] = []
    for outer in parsers:
        for parser in family(outer):
            commands += [parser.command] if parser.command else []
            made = (_argument_of(entry, parser.command, notes, unsure) for entry in parser.entries)
            declared += [argument for argument in made if argument is not None]
    return with_unique_names(declared), list(dict.fromkeys(commands)), notes


def family(parser: Parser) -> Iterator[Parser]:
    """Yield a parser and those of its sub-commands."""
    yield parser
    for child in parser.children:
        yield from family(child)


def _argument_of(entry: Entry, command: tuple[str, ...], notes: list[str], unsure: list[str]) -> Argument | None:
    """Return the argument that an entry declares; None if it takes no value, as `--help`."""
    keywords = entry.keywords
    action = keywords.get("action") or "store"
    for usual in _ACTIONS:
        base = f"_{usual.title().replace('_', '')}Action"
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
        choices = (tuple(map(literal_of, choice_list)) if all(map(_is_choice, choice_list)) else ()) or None
    elif choice_list is not None:
        choices = None
    if choice_list is not None and choices is None:
        text = text_of(choice_list)[:80]
        unsure.append(f"{entry.where}: choices= of {entry.flags[0]} is known only to the program: {text}")
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
    what = made.setdefault("action", "store")
    is_list = what == "append" or (nargs not in (None, "?") and what == "store")
    if isinstance(default, tuple) and isinstance(reads := keywords.get("type"), Function) and not is_list:
        splits = ".split(',')" in ast.unparse(reads.node)  # one word
        kind, default_text = str, "" if splits else text_of(default)
        default = ",".join(map(str, default)) if splits else None
    if isinstance(default, str) and kind in (int, float, bool):
        default = _converted(default, kind, truth)
    if isinstance(default, str) and keywords.get("type") in (External("str.lower"), External("str.upper")):
        default = default.lower() if keywords["type"].path == "str.lower" else default.upper()
    return made_argument(
        entry.dest,
        [kind],
        is_list=is_list,
        default=default,
        default_text=default_text,
        choices=choices,
        help=_help(keywords.get("help"), default_text or default),
        group=entry.group,
        source=entry.where,
        is_required=is_required,
        flags=flags,
        nargs=nargs if what in ("store", "append") else None,
        exclusive=entry.exclusive,
        command=command,
        const=const,
        truth=truth,
        **made,
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
            annotation = getattr(node, "returns", None)
            if "bool" in getattr(node, "name", "lambda").lower():
                kinds: set[type | None] = {bool}
            elif isinstance(annotation, ast.Name) and annotation.id in _TYPES:
                kinds = {_TYPES[annotation.id]}
            else:
                returned = [item for item in _returned(node) if not folding.is_none(item)]
                kinds = {folding.type_of(item, _names_in(node)) for item in returned}
            if kinds == {bool}:
                return bool, _truth_texts(node), None
            return (kinds.pop() if len(kinds) == 1 else None) or known, usual, None
    return known, usual, None


def _returned(node: ast.AST) -> list[ast.expr]:
    """Return what a function may return, each branch of a conditional expression on its own."""
    if isinstance(node, ast.Lambda):
        return _branches(node.body)
    returns = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value is not None]
    return [branch for value in returns for branch in _branches(value)]


def _branches(node: ast.expr) -> list[ast.expr]:
    return [*_branches(node.body), *_branches(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _names_in(function: ast.AST) -> Callable[[str], type | None]:
    """Return a function that gives the types of a function's local names."""
    kinds_of = dict[str, type | None]()

    def named(name: str) -> type | None:
        if name not in kinds_of:
            kinds_of[name] = None
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                    kinds_of[name] = kinds_of[name] or folding.type_of(node.value, named)
        return kinds_of[name]

    return named


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
