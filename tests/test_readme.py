"""What the README and its neighbours name exists: files, links, headings, commands, flags, public names."""

import argparse
import ast
import re
import shlex
from pathlib import Path

import pytest

import nbtools
from nbtools.cli.parser import parser
from nbtools.recipes import RECIPES
from nbtools.rundir.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "tests" / "gpu" / "README.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    ROOT / ".github" / "CHANGELOG.md",
]
TEXT = README.read_text(encoding="utf-8")

COMMANDS: dict[str, argparse.ArgumentParser] = next(
    action.choices for action in parser("")._actions if isinstance(action, argparse._SubParsersAction)
)


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [body for found, body in fenced if found == language]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> list[list[str]]:
    """The words of every shell line of a page, without comments; joined commands are taken apart."""
    lines = "".join(blocks(page.read_text(encoding="utf-8"), "bash")).splitlines()
    inline = re.findall(r"`((?:[A-Z_]+=\S+ )*(?:bash|nbtools|python|conda|pytest|source) [^`]+)`", prose(TEXT))
    words = [shlex.split(line, comments=True) for line in (*lines, *(inline if page == README else []))]
    separate: list[list[str]] = []
    for line in words:
        separate.append([])
        for word in line:
            if word == "&&":
                separate.append([])
            elif separate[-1] or not re.fullmatch(r"[A-Z_]+=.*", word):  # without variables before the command
                separate[-1].append(word)
    return [line for line in separate if line]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_local_link_leads_to_a_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"#]+)"', text)
    local = [target for target in targets if not target.startswith(("http:", "https:", "mailto:"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_link_within_the_page_leads_to_a_heading() -> None:
    headings = re.findall(r"^#+ (.*)$", prose(TEXT), flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


def test_every_path_in_the_prose_exists() -> None:
    pattern = r"`((?:scripts|notebooks|nbtools|tests|\.github|\.ci)/[\w./-]*)`|`([\w-]+\.(?:yml|toml|txt|md))`"
    named = [first or second for first, second in re.findall(pattern, prose(TEXT))]
    assert len(named) > 10
    placeholders = {"scripts/NAME.py", "scripts/NAME.sh"}
    # A part of the package may be called without its parent, as in the tree.
    missing = [
        name
        for name in named
        if name not in placeholders and not any((ROOT / at / name).exists() for at in ("", "nbtools"))
    ]
    assert missing == []


def test_every_line_of_the_tree_exists() -> None:
    (tree,) = [block for block in blocks(TEXT, "") if block.startswith("notebooks/")]
    parent, seen = "", set()
    for line in tree.splitlines():
        name = re.match(r" *(\w+/|[\w.]+\.(?:py|sh|txt)(?:, [\w.]+\.(?:py|sh|txt))*)(?: |$)", line)
        if name is None:
            continue
        if not line.startswith(" "):
            parent = name[1]
        for part in name[1].split(", "):
            path = part if part == parent else f"{parent}{part}"
            seen.add(path)
            assert path == "runs/" or (ROOT / path).exists(), line
    assert {
        "nbtools/launcher/supervisor.py",
        "scripts/lab.sh",
        "scripts/constraints.txt",
        "nbtools/rundir/tail.py",
    } <= seen
    for part in re.findall(r"\b\w+\.py|(?<= )\w+/", tree):  # also those within an explanation
        assert part in ("runs/", "NAME.py") or list(ROOT.glob(f"*/{part}")) + list(ROOT.glob(part)), part


def test_the_run_directory_is_drawn_with_the_names_it_has() -> None:
    (tree,) = [block for block in blocks(TEXT, "") if block.startswith("runs/")]
    files = RunDir("runs/x")
    names = {
        value.name
        for name in dir(files)
        if not name.startswith("_") and isinstance(value := getattr(files, name), Path) and value.parent == files.path
    }
    drawn = re.findall(r"^  ([\w.]+)/?  ", tree, flags=re.MULTILINE)
    assert len(drawn) >= 10
    assert set(drawn) <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_has_the_files_and_flags_it_is_given(page: Path) -> None:
    written = {"path/to/train.py", "path/to/wheels", "NAME.py"}
    for words in command_lines(page):
        if words[:2] == ["nbtools", "new"]:
            written.add(f"scripts/{words[3]}.py")
        for word in words[1:]:
            if re.fullmatch(r"[\w./-]+\.(sh|py|ipynb|yml|txt)", word) and word not in written:
                assert (ROOT / word).is_file(), words
        if words[0] == "bash":
            assert (ROOT / words[1]).is_file(), words
            known = (ROOT / words[1]).read_text(encoding="utf-8")
            flags = [word for word in words[2:] if word.startswith("--")]
            assert all(re.search(rf"{flag}\b", known) for flag in flags), words
        if words[0] == "nbtools" and words[1] in COMMANDS:
            end = words.index("--") if "--" in words else len(words)
            own = [word.strip("[]") for word in words[2:end]]
            options = {option for action in COMMANDS[words[1]]._actions for option in action.option_strings}
            assert {word for word in own if word.startswith("-")} <= options, words
        elif words[0] == "nbtools":
            pytest.fail(f"no such command: {words}")
        recipe = next((RECIPES[Path(word).stem] for word in words if Path(word).stem in RECIPES), None)
        if recipe and words[0] in ("python", "torchrun"):
            after = words[next(i for i, word in enumerate(words) if word.endswith(".py")) + 1 :]
            flags = [word[2:].replace("-", "_") for word in after if word.startswith("--")]
            assert set(flags) <= set(recipe.config_class.model_fields), words


def test_whole_commands_of_the_quick_tour_parse() -> None:
    parsed = 0
    for words in command_lines(README):
        if words[0] == "nbtools" and not any(re.search(r"[A-Z]{3,}", word) for word in words):
            own = words[1 : words.index("--")] if "--" in words else words[1:]
            parser("").parse_args(own)  # SystemExit if it is wrong
            parsed += 1
    assert parsed >= 4


def test_the_table_has_every_command_and_each_commands_flags_exist() -> None:
    rows = re.findall(r"^\| `nbtools (\w+)[^`]*` \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(COMMANDS)
    for name, text in rows:
        options = {option for action in COMMANDS[name]._actions for option in action.option_strings}
        assert {flag for flag in re.findall(r"`(--?[\w-]+)", text) if flag != "--"} <= options, name


def test_python_examples_use_public_names() -> None:
    examples = blocks(TEXT, "python")
    assert len(examples) >= 4
    for example in examples:
        tree = ast.parse(example)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nt":
                assert node.attr in nbtools.__all__, node.attr
            if isinstance(node, ast.ImportFrom):
                module = __import__(str(node.module), fromlist=["_"])
                assert all(hasattr(module, alias.name) for alias in node.names)


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    from nbtools.cli import commands as command_line

    assert (command_line.DONE, command_line.FAILED, command_line.WRONG_CALL) == (0, 1, 2)
    assert (command_line.STILL_RUNNING, command_line.INTERRUPTED) == (124, 130)
    text = " ".join(TEXT.split())
    assert "0 done, 1 the run failed or is lost, 2 the call was wrong, 130 stopped or interrupted" in text
    assert "`wait --timeout` gives 124" in text


# --- promises ---------------------------------------------------------------------------------------


def promises() -> list[tuple[int, list[str]]]:
    """Number and tests of each row of the table of faults."""
    rows = re.findall(r"^\| (\d+) \| .+? \| .+? \| (.+?) \|$", TEXT, flags=re.MULTILINE)
    return [(int(number), re.findall(r"`([^`]+)`", names)) for number, names in rows]


def running_tests(path: Path) -> set[str]:
    """The test functions of a file that are not skipped or expected to fail whatever happens."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    marks = [ast.unparse(node.value) for node in tree.body if ast.unparse(node).startswith("pytestmark =")]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert len({node.name for node in functions}) == len(functions), f"{path.name}: two tests have the same name"
    never = re.compile(r"pytest\.(mark\.)?(skip|xfail)\b")
    found = set()
    for node in functions:
        calls = [ast.unparse(part) for part in node.body if isinstance(part, ast.Expr)]
        if not any(never.search(said) for said in (*marks, *map(ast.unparse, node.decorator_list), *calls)):
            found.add(node.name)
    return found


def test_each_of_the_33_promises_names_tests_that_exist_and_run() -> None:
    table = promises()
    assert [number for number, _ in table] == list(range(1, 34))
    for number, names in table:
        assert names, f"promise {number} names no test"
        for name in names:
            file, _, function = name.partition("::")
            assert (ROOT / "tests" / file).is_file(), f"promise {number}: no file {file}"
            assert function in running_tests(ROOT / "tests" / file), f"promise {number}: {name} does not run"


def test_a_promise_whose_test_never_runs_would_be_noticed(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    text = (
        "import pytest\n"
        "@pytest.mark.skip(reason='x')\ndef test_a(): ...\n"
        "@pytest.mark.xfail\ndef test_b(): ...\n"
        "def test_c():\n    pytest.skip('later')\n"
        "@pytest.mark.skipif(True, reason='x')\ndef test_d(): ...\n"
        "def helper(): ...\n"
    )
    path.write_text(text)
    assert running_tests(path) == {"test_d"}
    path.write_text("pytestmark = [pytest.mark.skip]\n" + text)
    assert running_tests(path) == set()
