"""The promises of nbtools: 35 faults, what is never changed silently, runs on Slurm, and 75 rows of guides.

A test shows a promise by `@pytest.mark.promise("fault-7")`. `python tests/promises.py` writes the tables of
`tests/README.md` from `promises.yaml` and from the markers.
"""

import ast
import re
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parent
README = TESTS / "README.md"

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


def tables() -> dict[str, str]:
    """Return the Markdown table of each kind of promise, by the name that marks its place in the page."""
    tests = shown_by()

    def table(head: str, promises: dict[str, list[str]]) -> str:
        lines = [f"| # | {head} | shown by |", "|---|---|---|---|"]
        for key, (promise, outcome) in promises.items():
            shown = "<br>".join(f"`{name}`" for name in tests.get(key, ()))
            lines.append(f"| {key.partition('-')[2]} | {promise} | {outcome} | {shown} |")
        return "\n".join(lines)

    return {
        "faults": table("fault | what you can rely on", FAULTS),
        "safety": table("danger | what you can rely on", SAFETY),
        "slurm": table("on Slurm | what you can rely on", SLURM),
        "guides": table("promise of the guide | what differs here", GUIDES),
    }


def page() -> str:
    """Return the text of `tests/README.md` with its tables made again."""
    text = README.read_text(encoding="utf-8")
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(page(), encoding="utf-8")
