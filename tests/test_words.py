"""The words to avoid: product text is plain technical English, as `.github/CONTRIBUTING.md` asks.

The lists stand here only. A word is matched whole, in any case; in code also as a part of an identifier.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WORDS = ("whoever", "nobody", "somebody", "anybody", "anew", "whom")
PHRASES = (
    *("goes on", "go on", "went on", "is told", "are told", "is heard", "has fallen", "pays"),
    *(
        *("what is there", "as far as there", "says of itself", "say of themselves"),
        *("whatever happens", "nothing of the kind"),
    ),
)
METAPHORS = (
    *("pen", "gavel", "manuscripts", "players", "lessons", "passages"),
    *("exhibit", "exhibits", "laggard", "laggards"),
)
"""Former names of things inside."""

NO_SUBJECT = re.compile(
    r"(?:Of|The same|Those|As|Such as|By(?! default)|So many|In order|What|Which|Its?|They|Their)\b"
)
"""Beginnings of a docstring without a subject of its own: it cannot be read without the line above."""


def product() -> list[Path]:
    folders = [ROOT / "nbtools", ROOT / "scripts", ROOT / ".github", ROOT / "tests", ROOT / ".ci"]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    pages = [path for path in found if path.suffix == ".md"]
    code = [
        path
        for path in found
        if (path.suffix in (".py", ".sh") or path.name == "run") and ROOT / "tests" not in path.parents
    ]
    others = [ROOT / name for name in ("README.md", "environment.yml", "pyproject.toml")]
    return sorted({*pages, *code, *others, *(ROOT / ".github").rglob("*.yml"), *(ROOT / "notebooks").glob("*.ipynb")})


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a file, without names of tests; of a notebook, those of its sources only."""
    text = re.sub(r"`[^`\n]+::[^`\n]+`", "", path.read_text(encoding="utf-8"))
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    yield from enumerate(text.splitlines(), 1)


def found_in(text: str, words: tuple[str, ...]) -> list[str]:
    return re.findall(rf"(?<![^\W_])(?:{'|'.join(words)})(?![^\W_])", text, flags=re.IGNORECASE)


def test_no_file_has_a_word_to_avoid() -> None:
    wrong = []
    for path in product():
        name = path.relative_to(ROOT).as_posix()
        avoided = WORDS + PHRASES + (METAPHORS if name.startswith("nbtools/") and path.suffix == ".py" else ())
        for number, line in lines_of(path):
            wrong += [f"{name}:{number}: {word}" for word in found_in(line, avoided)]
    assert wrong == []


def wrong_docstrings(source: str) -> list[tuple[int, str]]:
    """Return line and reason of each docstring that has no subject, or follows another docstring."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        before: object = None
        for each in node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ():
            text = each.value.value if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) else None
            if isinstance(text, str):
                found += [(each.lineno, match[0])] if (match := NO_SUBJECT.match(text)) else []
                found += [(each.lineno, "a second docstring")] if isinstance(before, str) else []
            before = text
    return found


def test_docstrings_have_a_subject() -> None:
    wrong = []
    for path in sorted((ROOT / "nbtools").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        wrong += [f"{name}:{line}: {why}" for line, why in wrong_docstrings(path.read_text(encoding="utf-8"))]
    assert wrong == []


def test_docstrings_without_a_subject_are_found_below_names_and_definitions() -> None:
    source = (
        '"""By default none."""\nSIZE = 3\n"""Of a legend."""\n"""Offered names."""\nclass A:\n    """What it is."""\n'
    )
    assert wrong_docstrings(source) == [(3, "Of"), (4, "a second docstring"), (6, "What")]


def test_every_kind_of_file_is_read() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in product()}
    notebook = "notebooks/01_launch_ddp.ipynb"
    assert {"README.md", "nbtools/run/run.py", "nbtools/cli/README.md", "scripts/lab.sh", ".ci/run", notebook} <= names
    assert any("nt.ConfigForm" in line for _, line in lines_of(ROOT / notebook))


def test_words_are_found_whole_in_any_case_and_within_identifiers() -> None:
    assert found_in("Nobody opens the pen_holder", WORDS + METAPHORS) == ["Nobody", "pen"]
    assert found_in("open renewed passageway expends", WORDS + METAPHORS) == []
