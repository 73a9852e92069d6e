"""The promises of nbtools: 35 faults, what is never changed silently, runs on Slurm, and 75 rows of guides.

A test shows a promise by `@pytest.mark.promise("fault-7")`. `python tests/promises.py` prints the
tables of `promises.yaml` with the tests that carry the markers.
"""

import ast
import re
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parent

_PROMISES: dict[str, dict[str, list[str]]] = yaml.safe_load((TESTS / "promises.yaml").read_text(encoding="utf-8"))
FAULTS, SAFETY, SLURM, GUIDES = (_PROMISES[kind] for kind in ("faults", "safety", "slurm", "guides"))

REFUSED = {"guide-A16", "guide-M14", "guide-G9"}
"""Promises that nbtools does not keep, with the reason in their rows: they have no test."""

_NEVER = re.compile(r"pytest\.(mark\.)?(skip|xfail)\b")
_ELSEWHERE = re.compile(r"(pytestmark = )?\[?pytest\.mark\.(needs|gpu)\b")


def running_tests(path: Path, *, everywhere: bool = False) -> dict[str, ast.FunctionDef]:
    """Return the test functions of a file that are not always skipped or expected to fail, by name.

    With `everywhere`, only those that run on every machine: without a GPU and without what a test may need.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    marks = [ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark =")]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert len({node.name for node in functions}) == len(functions), f"{path.name}: two tests have the same name"
    found = {}
    for node in functions:
        calls = [ast.unparse(part) for part in node.body if isinstance(part, ast.Expr)]
        said = [*marks, *map(ast.unparse, node.decorator_list), *calls]
        is_conditional = any(map(_ELSEWHERE.match, said)) or any(map(_only_elsewhere, node.decorator_list))
        if not any(map(_NEVER.search, said)) and not (everywhere and is_conditional):
            found[node.name] = node
    return found


def _only_elsewhere(decorator: ast.expr) -> bool:
    """Whether every value of a `parametrize` needs something of the machine."""
    values = decorator.args[1] if isinstance(decorator, ast.Call) and len(decorator.args) > 1 else None
    return isinstance(values, ast.List) and all("pytest.mark.needs(" in ast.unparse(value) for value in values.elts)


def shown_by(*, everywhere: bool = False) -> dict[str, list[str]]:
    """Return the tests, as `folder/file.py::test`, that carry each promise's marker and run."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.promise(" not in path.read_text(encoding="utf-8"):
            continue
        for name, node in running_tests(path, everywhere=everywhere).items():
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
                    for key in map(ast.literal_eval, decorator.args):
                        found.setdefault(key, []).append(f"{path.relative_to(TESTS.parent).as_posix()}::{name}")
    return found


def table(kind: str) -> str:
    """Return the Markdown table of the promises of one kind, each with the tests that show it."""
    tests = shown_by()
    lines = ["| # | promise | what you can rely on | shown by |", "|---|---|---|---|"]
    for key, (promise, outcome) in _PROMISES[kind].items():
        shown = "<br>".join(f"`{name}`" for name in tests.get(key, ()))
        lines.append(f"| {key.partition('-')[2]} | {promise} | {outcome} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(f"## {kind}\n\n{table(kind)}" for kind in _PROMISES))
