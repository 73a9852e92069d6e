"""Constants of a program that a configurator overrides, as nanoGPT's: its `--name=value` are read without a parser."""

import ast
import contextlib
from collections.abc import Iterator

from nbtools.errors import ScriptError
from nbtools.script.arguments.source_file import NAMED, Item, SourceFile
from nbtools.script.source import read_source

_DEEPEST = 4


def configurator_line(source: SourceFile) -> int | None:
    """Return the line that executes a file which reads `--name=value` into the constants; None without one."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "exec":
            names = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            for path in (source.path.parent / name for name in names if name.endswith(".py")):
                with contextlib.suppress(ScriptError):
                    if b"sys.argv" in (text := read_source(path)) and b"globals()" in text:
                        return node.lineno
    return None


def constants_of(source: SourceFile, end: int) -> Iterator[Item]:
    """Yield the constants that are assigned before a line."""
    lines = read_source(source.path).decode(errors="replace").splitlines()
    for name, nodes in source.bound.items():
        kinds = {_kind(source, node) for node in nodes} - ({None} if len(nodes) > 1 else set())
        if source.lines[name] < end and not name.startswith("_") and len(kinds) == 1 and None not in kinds:
            text = " or ".join(dict.fromkeys(map(ast.unparse, nodes)))
            entries: Item = {"default": source.values[name]} if name in source.values else {"default_text": text}
            comment = lines[source.lines[name] - 1].partition("# ")[2]
            yield source.described(name, [f"--{name}"], source.lines[name], types=[*kinds], help=comment, **entries)


def _kind(source: SourceFile, node: ast.AST | None, depth: int = 0) -> str | None:
    """Return the name of the type of an expression's value; None if it is not known, or not a constant's."""
    with contextlib.suppress(ValueError, ArithmeticError, TypeError):
        found = type(source.fold(node)).__name__
        return found if found in NAMED else None
    match node:
        case ast.JoinedStr():
            return "str"
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return "bool"
        case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
            return _kind(source, first, depth) or _kind(source, second, depth)
        case ast.Name(id=name) if name in source.bound and depth < _DEEPEST:
            return _kind(source, source.bound[name][-1], depth + 1)
        case ast.Call(func=ast.Name(id=name)) if name in NAMED:
            return name
        case ast.Call(func=ast.Attribute(attr="get" | "getenv" | "join"), args=[*_, last]):
            return _kind(source, last, depth)
    return None
