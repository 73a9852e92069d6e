"""The values that the source of one file tells, and what only the running program knows."""

import ast
import contextlib
import operator
import re
from pathlib import Path
from typing import Any

from nbtools.errors import ScriptError
from nbtools.script.source import parse_source, read_source

_LONGEST, _DEEPEST = 1000, 4
_OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_OPERATORS |= {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
NAMED = ("int", "float", "str", "bool")
_PURE = re.compile(
    r"(int|float|str|bool|list|tuple|dict|set|len|max|min|sum|sorted|range|round|abs|next|iter|Path|join|dirname|abspath|"
    r"get|keys|values|split|lower|upper|field|Option|Argument)"
)
"""Calls whose value is the same wherever the program runs."""
Item = dict[str, Any]
"""An argument, described as the answer of a program does."""


def computed_defaults(path: Path) -> dict[str, str]:
    """Return the texts of defaults that a file computes, by their flag, or by line and name of a parameter."""
    source, found = SourceFile(path), dict[str, str]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            is_absl = ast.unparse(node.func).rpartition(".")[2].startswith("DEFINE_")
            default = keywords_of(node).get("default", node.args[1] if is_absl and len(node.args) > 1 else None)
            if text := source.computed(default):
                names = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
                found |= {f"--{name}" if is_absl else name: text for name in names}
        elif isinstance(node, ast.FunctionDef):
            own, lines = node.args, {node.lineno, *(each.lineno for each in node.decorator_list)}
            pairs = [*zip([*own.posonlyargs, *own.args][::-1], own.defaults[::-1], strict=False)]
            for argument, default in (*pairs, *zip(own.kwonlyargs, own.kw_defaults, strict=True)):
                if isinstance(default, ast.Call) and (inner := keywords_of(default).get("default") or default.args[:1]):
                    default = inner[0] if isinstance(inner, list) else inner  # typer.Option(X)
                if text := source.computed(default):
                    found |= {f"{line} {argument.arg}": text for line in lines}
    return found


def keywords_of(call: ast.AST | None) -> dict[str | None, ast.expr]:
    """Return the keywords of a call; none of anything else."""
    return {keyword.arg: keyword.value for keyword in call.keywords} if isinstance(call, ast.Call) else {}


class SourceFile:
    """The syntax tree of one file, and what its module assigns."""

    def __init__(self, path: Path) -> None:
        """Read a file; ScriptError if it is missing, no Python, or too large."""
        try:
            self.path, self.tree = path, parse_source(path, read_source(path))
            self.nodes = list(ast.walk(self.tree))
            self.assigned: dict[str, list[ast.expr]] = {}
            for node in self.nodes:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.assigned.setdefault(node.targets[0].id, []).append(node.value)
            self.bound: dict[str, list[ast.expr]] = {}
            self.lines, self.values = dict[str, int](), dict[str, Any]()
            for statement in self.tree.body:
                self._bind(statement, is_plain=True)
        except (RecursionError, MemoryError):
            raise ScriptError(f"{path}:1: nested too deeply; its arguments are not read") from None
        self.texts: dict[ast.AST | None, str] = {}

    def _bind(self, statement: ast.stmt, is_plain: bool) -> None:
        """Keep what a statement assigns to names: in a branch, beside what they had."""
        pairs: list[tuple[ast.expr, ast.expr]] = []
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=nodes)) if len(names) == len(nodes):
                pairs = list(zip(names, nodes, strict=True))
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = [(target, value)]
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                pairs = [(target, ast.BinOp(ast.Constant(self.values.get(name, ...)), op, value))]
            case ast.If() | ast.Try() | ast.With():
                for inner in (*statement.body, *getattr(statement, "orelse", ()), *getattr(statement, "finalbody", ())):
                    self._bind(inner, is_plain=False)
        for target, value in pairs:
            if isinstance(target, ast.Name):
                others = [] if is_plain else self.bound.get(target.id, [])
                self.bound[target.id], self.lines[target.id] = [*others, value], statement.lineno
                self.values.pop(target.id, None)
                with contextlib.suppress(ValueError, ArithmeticError, TypeError):
                    self.values |= {} if others else {target.id: self.fold(value)}

    def fold(self, node: ast.AST | None) -> Any:
        """Return the value of an expression of literals and constants; ValueError if it is none, or large."""
        match node:
            case ast.Constant(value=value) if isinstance(value, bool | int | float | str | None):
                return value
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.List(elts=nodes) | ast.Tuple(elts=nodes) | ast.Set(elts=nodes) if len(nodes) <= _LONGEST:
                found = [self.fold(each) for each in nodes]
                if len(repr(found)) <= _LONGEST:  # lists of lists of lists
                    return found
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.fold(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                first, second = self.fold(left), self.fold(right)
                if type(first) in (int, float) and type(second) in (int, float):
                    return _OPERATORS[type(op)](first, second)
                if isinstance(op, ast.Add) and len(first) + len(second) <= _LONGEST:
                    return first + second
        raise ValueError

    def default(self, node: ast.AST | None) -> Item:
        """Return the entries of a default: a literal, else its text."""
        with contextlib.suppress(ValueError, ArithmeticError, TypeError):
            return {"default": None if node is None else self.fold(node)}
        return {"default": None, "default_text": self.computed(node) or ast.unparse(node)[:200]}  # type: ignore[arg-type]

    def computed(self, node: ast.AST | None, depth: int = 0) -> str:
        """Return the text of an expression whose value may differ where the program runs; empty for others."""
        if node is None or node in self.texts:
            return self.texts.get(node, "")
        self.texts[node], inner = "", list(ast.walk(node))
        names = {each.id for each in inner if isinstance(each, ast.Name)} if depth < _DEEPEST else set()
        known = [self.assigned[name][0] for name in names if len(self.assigned.get(name, ())) == 1]
        texts = [self.computed(each, depth + 1) for each in known]
        calls = (ast.unparse(each.func).rpartition(".")[2] for each in inner if isinstance(each, ast.Call))
        text = "".join(texts) if isinstance(node, ast.Name) else ast.unparse(node)
        is_computed = any(texts) or "environ" in text or not all(map(_PURE.fullmatch, calls))
        self.texts[node] = text[:200] if is_computed else ""
        return self.texts[node]

    def described(self, name: str, flags: list[str], line: int, **settings: Any) -> Item:
        """Return an argument with the usual values for what is not given."""
        usual = dict[str, Any](action="store", types=["str"], default=None, is_required=False)
        return usual | settings | {"name": name, "flags": flags, "source": f"{self.path.name}:{line}"}
