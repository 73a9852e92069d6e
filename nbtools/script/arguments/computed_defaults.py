"""The defaults that a file computes: their values may differ where the program runs."""

import ast
import re
from pathlib import Path

from nbtools.script.source import keywords_of, parse_source, read_source

_PURE = re.compile(
    r"(int|float|str|bool|list|tuple|dict|set|len|max|min|sum|sorted|range|round|abs|next|iter|Path|join|dirname|abspath|"
    r"get|keys|values|split|lower|upper|field|Option|Argument)"
)
"""Calls whose value is the same wherever the program runs."""
_WRAPPERS = ("Option", "Argument")
"""Functions of typer around a default."""


def computed_defaults(path: Path) -> dict[str, str]:
    """Return the texts of defaults that a file computes, by their flag, or by line and name of a parameter or constant.

    Raises:
        ScriptError: the file cannot be read.
        RecursionError: its source is nested too deeply.
    """
    nodes = list(ast.walk(parse_source(path, read_source(path))))
    names, found = dict[str, str](), dict[str, str]()
    assignments = (node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name))
    for each in sorted(assignments, key=lambda each: each.lineno):
        if text := _computed(each.value, names):
            names.setdefault(name := ast.unparse(each.targets[0]), text)
            found[f"{each.lineno} {name}"] = text
    for node in nodes:
        if isinstance(node, ast.Call):
            is_absl = ast.unparse(node.func).rpartition(".")[2].startswith("DEFINE_")
            default = keywords_of(node).get("default", node.args[1] if is_absl and len(node.args) > 1 else None)
            if text := _computed(default, names):
                flags = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
                found |= {f"--{flag}" if is_absl else flag: text for flag in flags}
        elif isinstance(node, ast.FunctionDef):
            own, lines = node.args, {node.lineno, *(each.lineno for each in node.decorator_list)}
            pairs = [*zip([*own.posonlyargs, *own.args][::-1], own.defaults[::-1], strict=False)]
            for argument, value in (*pairs, *zip(own.kwonlyargs, own.kw_defaults, strict=True)):
                if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _WRAPPERS:
                    value = keywords_of(value).get("default", [*value.args, None][0])
                if text := _computed(value, names):
                    found |= {f"{line} {argument.arg}": text for line in lines}
    return found


def _computed(node: ast.AST | None, names: dict[str, str]) -> str:
    """Return the text of an expression whose value may differ where the program runs; empty for others.

    `names` has the texts of the variables that are computed.
    """
    if node is None or isinstance(node, ast.Name):
        return names.get(node.id, "") if node else ""
    inner = list(ast.walk(node))
    words = {getattr(each, "id", getattr(each, "attr", "")) for each in inner}
    calls = [getattr(each.func, "id", getattr(each.func, "attr", "")) for each in inner if isinstance(each, ast.Call)]
    is_computed = "environ" in words or words & names.keys() or not all(map(_PURE.fullmatch, calls))
    return ast.unparse(node)[:200] if is_computed else ""
