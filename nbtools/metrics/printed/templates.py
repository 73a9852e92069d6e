"""Templates from a program's source: the texts that it prints or logs, as patterns with the names of its variables."""

import ast
import contextlib
import re
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Final

from nbtools.errors import ConfigError
from nbtools.metrics.curve_names import COUNTERS, counter_of
from nbtools.metrics.printed.grammars import CHANGE
from nbtools.metrics.printed.pattern import ANY, Pattern
from nbtools.parsing import syntax_tree

_MAX_FILES: Final = 100
_MAX_BYTES: Final = 1 << 20
_MAX_TEMPLATES: Final = 500
_CALLS: Final = re.compile(
    r"print\w*|\w*_print|\w*log\w*|info|debug|warning|success|write|echo|set_description(?:_str)?|set_postfix_str"
)
_FORMATS: Final = re.compile(r"%(?:\((\w+)\))?[-+ #0]*(?:\d+|\*)?(?:\.\d+)?([diouxXeEfFgGcrsa%])")
_FIELDS: Final = re.compile(r"\{\{|\}\}|\{([^{}:!]*)(?:![rsa])?(?::([^{}]*))?\}")
_LABEL: Final = re.compile(
    r"([^\W\d][\w@.-]*(?:[ /][^\W\d][\w@.-]*){0,2}(?:\s?\([^\W\d]*\))?)(?:(?! \| )[^\w,;]){0,6}$"
)
_WRAPPERS: Final = frozenset(
    {"item", "mean", "sum", "cpu", "detach", "numpy", "float", "round", "int", "str", "avg", "get_last_lr", "len"}
)
_NUMERIC: Final = re.compile(r".*[eEfFgGd%n]$")
Piece = str | tuple[ast.expr, bool]
"""A literal text, or an expression with whether its format is that of a number."""
Part = Piece | ast.IfExp
"""A piece, or one of two texts."""


def imported_files(script: Path, root: Path) -> list[Path]:
    """Return a script and the modules of its project that its import statements name; at most 100 files."""
    found, waiting = dict[Path, None](), [script.resolve()]
    places = [script.resolve().parent, root.resolve()]
    while waiting and len(found) < _MAX_FILES:
        path = waiting.pop(0)
        if path in found or (tree := _tree(path)) is None:
            continue
        found[path] = None
        for base, name in _imports(tree, path, places):
            stem = base.joinpath(*name.split("."))
            for each in (stem.with_suffix(".py"), stem / "__init__.py"):
                if each.is_file() and any(each.resolve().is_relative_to(place) for place in places):
                    waiting.append(each.resolve())
    return [*found]


def templates_of(files: Sequence[Path]) -> list[str]:
    """Return the texts of patterns of what the sources print or log; sources that do not parse have none."""
    found = dict[str, None]()
    for path in files:
        if (tree := _tree(path)) is not None:
            for function, call in _calls(tree):
                for parts in _variants(_printed(call, function)):
                    for line in _lines(parts):
                        found |= dict.fromkeys(_texts(line, function))
    return [*found][:_MAX_TEMPLATES]


def _tree(path: Path) -> ast.Module | None:
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            return syntax_tree(path.read_bytes())
    return None


def _imports(tree: ast.Module, path: Path, places: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for node in ast.walk(tree):
        names, bases = list[str](), places
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            bases = [path.parents[node.level - 1]] if 0 < node.level <= len(path.parents) else places
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
        yield from ((base, name) for base in bases for name in names if name)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Yield the calls that print or log, each with the function that it is in."""
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        function, node = waiting.pop()
        if isinstance(node, ast.Call) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if _CALLS.fullmatch(name):
                yield function, node
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        waiting += [(inner, child) for child in ast.iter_child_nodes(node)]


def _printed(call: ast.Call, function: ast.AST) -> list[Part]:
    """Return the parts of the text that a call prints."""
    first, *others = call.args
    is_print = isinstance(call.func, ast.Name)
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and others and not is_print:
        is_loguru = re.search(r"\{[^{}]*\}", first.value) is not None
        return _filled(_FIELDS if is_loguru else _FORMATS, first.value, others, {}, function)
    sep = next((k.value.value for k in call.keywords if k.arg == "sep" and isinstance(k.value, ast.Constant)), " ")
    parts: list[Part] = []
    is_joined = is_print and ast.unparse(call.func) == "print"  # print_rank_0(text, rank) prints its text
    for i, argument in enumerate(call.args if is_joined else call.args[:1]):
        parts += ([str(sep)] if i else []) + _parts(argument, function)
    return parts


def _parts(node: ast.expr, function: ast.AST, depth: int = 0) -> list[Part]:
    match node:
        case ast.Constant(value=value):
            return [str(value)]
        case ast.FormattedValue(value=inner, format_spec=given):
            spec = ast.unparse(given)[2:-1] if given else ""  # of f'.4f'
            return _value(inner, bool(_NUMERIC.match(spec)), function, depth)
        case ast.JoinedStr(values=values):
            return [part for each in values for part in _parts(each, function)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = _parts(left, function, depth) + _parts(right, function, depth)
            if any(isinstance(part, str) for part in parts):
                return parts
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=right):
            return _filled(_FORMATS, text, right.elts if isinstance(right, ast.Tuple) else [right], {}, function)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return _filled(_FIELDS, text, node.args, {each.arg or "": each.value for each in node.keywords}, function)
        case ast.IfExp(body=ast.Constant(value=str()), orelse=ast.Constant(value=str())):
            return [node]
        case ast.Name() if depth < 3 and (own := _assigned(node, function)) is not None:
            return _parts(own, function, depth + 1)
    return [(node, False)]


def _value(node: ast.expr, is_number: bool, function: ast.AST, depth: int = 0) -> list[Part]:
    """Return the parts of a value in a text: a text that is put together elsewhere, or one of two, has its own."""
    is_text = isinstance(node, ast.Name | ast.IfExp) and not is_number
    return _parts(node, function, depth) if is_text else [(node, is_number)]


def _assigned(name: ast.Name, function: ast.AST) -> ast.expr | None:
    """Return the text that a name has got in a function before it is used, if it is put together of others."""
    found: list[ast.expr] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name.id for t in node.targets):
            match node.value:
                case ast.JoinedStr() | ast.IfExp() | ast.BinOp(left=ast.Constant(value=str())):
                    found.append(node.value)
                case ast.Call(func=ast.Attribute(attr="format")):
                    found.append(node.value)
    return max(found, key=lambda text: (text.lineno <= name.lineno, text.lineno), default=None)


def _filled(
    fields: re.Pattern[str], text: str, given: Sequence[ast.expr], named: dict[str, ast.expr], function: ast.AST
) -> list[Part]:
    """Return the parts of a text with `%d` or `{}` fields and their arguments."""
    parts: list[Part] = []
    at, number = 0, 0
    for found in fields.finditer(text):
        parts.append(text[at : found.start()])
        at = found.end()
        if found[0] in ("%%", "{{", "}}"):
            parts.append(found[0][0])
            continue
        key, spec = found[1], found[2] or ""
        index = int(key) if key and key.isdecimal() else number
        number += 1
        value = named.get(key or "") or (given[index] if index < len(given) else ast.Name(key or ANY, ast.Load()))
        is_number = bool(_NUMERIC.match(spec)) and spec[-1:] not in "rsac"
        parts += _value(value, is_number, function)
    return [*parts, text[at:]]


def _variants(parts: Sequence[Part]) -> Iterator[list[Piece]]:
    """Yield the parts for each choice of `" (best)" if is_best else ""`, of at most two such texts."""
    texts: list[list[Piece]] = []
    for part in parts:
        if isinstance(part, ast.IfExp):
            texts.append([str(ast.literal_eval(each)) for each in (part.body, part.orelse)])
        else:
            texts.append([part])
    yield from map(list, islice(product(*texts), 4))


def _lines(parts: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield the parts of each line of a text."""
    line: list[Piece] = []
    for part in parts:
        first, *others = re.split(r"[\r\n]+", part) if isinstance(part, str) else [part]
        line.append(first)
        for other in others:
            yield line
            line = [other]
    yield line


def _texts(line: Sequence[Piece], function: ast.AST) -> Iterator[str]:
    """Yield the patterns of a line: with each value as a number, then with any text where it need not be one."""
    literal = "".join(part for part in line if isinstance(part, str))
    is_change = any(isinstance(part, str) and CHANGE.fullmatch(part) for part in line[1:-1])
    if len(re.findall(r"[^\W\d_]", literal)) < 2 or len(line) > 120 or is_change:
        return
    for is_strict in (False, True):
        text, names, before = "", set[str](), ""
        for part in line:
            if isinstance(part, str):
                text += part.replace("{", "{{").replace("}", "}}")
                continue
            expression, is_number = part
            name = _name(expression, text, before)
            if name in names or (is_strict and not is_number and name not in COUNTERS):
                name = ANY
            text += f"{{{name}}}"
            names |= {name} - {ANY}
            before = name
        try:
            pattern = Pattern(text)
        except ConfigError:
            continue
        if any(COUNTERS.get(name) is None for name in pattern.names):
            yield pattern.text


def _name(node: ast.expr, text: str, before: str) -> str:
    """Return the name of a printed value: what counts, the words before it, else the variable without its wrappers."""
    variable = _variable(node)
    if re.search(r"/\s*$|\bof\s*$", text) and before in COUNTERS:
        return f"total_{before}"
    label = found[1] if (found := _LABEL.search(text.rpartition("}")[2])) else ""
    words = "_".join(label.lower().split())
    is_total = variable.lower().endswith("s") and variable not in COUNTERS  # args.epochs
    for each in (words, words.rpartition("_")[2], "" if is_total else variable):
        if counter := counter_of(each):
            return counter
    return re.sub(r"[^\w/.@%+-]+", "_", label or variable).strip("_-./") or ANY


def _variable(node: ast.expr) -> str:
    """Return the name of the variable in an expression: `loss.item()` is loss, `100 * correct / total` correct."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.BinOp):
        return _variable(node.left) or _variable(node.right)
    if isinstance(node, ast.Attribute):
        return _variable(node.value) if node.attr in _WRAPPERS else node.attr
    if isinstance(node, ast.Subscript):
        is_named = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return str(ast.literal_eval(node.slice)) if is_named else _variable(node.value)
    if isinstance(node, ast.Call):
        return _variable(node.args[0] if node.args else node.func)  # np.mean(losses), loss.item()
    return _variable(node.operand) if isinstance(node, ast.UnaryOp) else ""
