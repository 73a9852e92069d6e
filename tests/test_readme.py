"""What the documentation names exists: files, links, headings, commands, flags, variables, public names."""

import argparse
import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest

import nbtools
from nbtools.cli.field_flags import launch_flags
from nbtools.cli.parser import FORMER_NAMES, parser
from nbtools.cli.predictions import prediction_fields
from nbtools.recipes import RECIPES
from nbtools.rundir.rundir import RunDir
from nbtools.script.compat.aliases import SWITCHES, older

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
CLI = ROOT / "nbtools" / "cli" / "README.md"
RUNDIR = ROOT / "nbtools" / "rundir" / "README.md"
PAGES = [
    README,
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted((ROOT / "scripts").glob("*.md")),
    *sorted((ROOT / "nbtools").rglob("*.md")),
    *sorted((ROOT / "tests").rglob("*.md")),
]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
MOST_LINES, MOST_WORDS, MOST_BYTES = 170, 1_200, 13_000
MOST_ANIMATION_BYTES = 1_500_000

ACTIONS = parser("", prediction_fields(), launch_flags())._actions
VERBS = next(action for action in ACTIONS if isinstance(action, argparse._SubParsersAction))
LISTED: dict[str, argparse.ArgumentParser] = VERBS.choices
"""The commands without the names of earlier versions."""
COMMANDS = LISTED | {name: LISTED[words[0]] for name, words in FORMER_NAMES.items()}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def options(command: str) -> set[str]:
    return {option for action in COMMANDS[command]._actions for option in action.option_strings}


def blocks(text: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [body for found, body in fenced if found == language]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_lines(page: Path, *, with_inline: bool = True) -> list[list[str]]:
    """The words of every shell line and inline command of a page, without comments; joined commands are taken apart."""
    lines = "".join(blocks(TEXTS[page], "bash")).splitlines()
    inline = re.findall(r"`((?:[A-Z_]+=\S+ )*(?:bash|nbtools|python|conda|pytest|source) [^`]+)`", prose(TEXTS[page]))
    words = [shlex.split(line.replace("\n", " "), comments=True) for line in (*lines, *(inline if with_inline else []))]
    separate: list[list[str]] = []
    for line in words:
        separate.append([])
        for word in line:
            if word == "&&":
                separate.append([])
            elif separate[-1] or not re.fullmatch(r"[A-Z_]+=.*", word):  # without variables before the command
                separate[-1].append(word)
    return [line for line in separate if line]


def test_the_readme_stays_short() -> None:
    assert len(TEXTS[README].splitlines()) <= MOST_LINES
    assert len(TEXTS[README].split()) <= MOST_WORDS
    assert len(README.read_bytes()) <= MOST_BYTES


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_animation_of_the_readme_loads_quickly(theme: str) -> None:
    animation = ROOT / ".github" / f"tour-{theme}.gif"
    assert animation.name in TEXTS[README]
    assert animation.stat().st_size <= MOST_ANIMATION_BYTES


def test_every_page_is_within_two_clicks_of_the_readme() -> None:
    def linked(page: Path) -> set[Path]:
        return {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+\.md)", TEXTS[page])}

    first = linked(README)
    assert set(PAGES) <= first.union({README}, *map(linked, first))


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXTS[page]) + re.findall(r'(?:src|srcset|href)="([^"]+)"', TEXTS[page])
    for link in links:
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


@each_page
def test_every_path_in_the_prose_exists(page: Path) -> None:
    pattern = r"`((?:scripts|notebooks|nbtools|tests|\.github|\.ci)/[\w./-]*)`|`([\w-]+\.(?:yml|toml|md|sh))`"
    named = [first or second for first, second in re.findall(pattern, prose(TEXTS[page]))]
    places = (ROOT, ROOT / "nbtools", page.parent)  # a part of the package may be named without its parent
    named = [name for name in named if not re.search(r"NAME|KEY", name)]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_line_of_the_tree_exists() -> None:
    (tree,) = [block for block in blocks(TEXTS[README], "") if block.startswith("notebooks/")]
    parent, seen = "", set()
    for line in tree.splitlines():
        name = re.match(r"( *)(\w+/)  ", line)
        assert name is not None, line
        parent = parent if name[1] else name[2]
        path = parent + name[2] if name[1] else parent
        seen.add(path)
        assert path == "runs/" or (ROOT / path).is_dir(), line
        for part in re.findall(r"\b[\w.]+\.(?:py|sh|txt)\b|(?<= )\w+/", line[len(name[0]) :]):  # in the explanation
            assert part == "NAME.py" or "NAME" in line or (ROOT / path / part).exists() or (ROOT / part).exists(), part
    packages = {
        f"nbtools/{folder.name}/" for folder in (ROOT / "nbtools").iterdir() if (folder / "__init__.py").exists()
    }
    assert {path for path in seen if path.startswith("nbtools/")} == packages | {"nbtools/"}


def test_the_run_directory_is_drawn_with_the_names_it_has() -> None:
    (tree,) = [block for block in blocks(TEXTS[RUNDIR], "") if block.startswith("runs/")]
    files = RunDir("runs/x")
    names = {
        value.name
        for name in dir(files)
        if not name.startswith("_") and isinstance(value := getattr(files, name), Path) and value.parent == files.path
    }
    assert set(re.findall(r"^  ([\w.]+)/?  ", tree, flags=re.MULTILINE)) == names


@each_page
def test_every_command_has_the_files_and_flags_it_is_given(page: Path) -> None:
    written = {"path/to/train.py", "path/to/wheels", "NAME.py"}
    for words in command_lines(page):
        if words[:2] == ["nbtools", "new"] and len(words) > 3:
            written.add(f"scripts/{words[3]}.py")
        for word in words[1:]:
            if re.fullmatch(r"[\w./-]+\.(sh|py|ipynb|yml|txt)", word) and word not in written and "NAME" not in word:
                assert (ROOT / word).is_file(), words
        if words[0] == "bash":
            assert (ROOT / words[1]).is_file(), words
            known = "".join((ROOT / path).read_text(encoding="utf-8") for path in (words[1], "scripts/test.sh"))
            flags = [word for word in words[2:] if word.startswith("--")]
            assert all(re.search(rf"{flag}\b", known) for flag in flags), words
        if words[0] == "nbtools" and words[1] in COMMANDS:
            end = words.index("--") if "--" in words else len(words)
            own = [word.strip("[]") for word in words[2:end]]
            assert {word for word in own if word.startswith("-")} <= options(words[1]), words
        elif words[0] == "nbtools":
            pytest.fail(f"no such command: {words}")
        recipe = next((RECIPES[Path(word).stem] for word in words if Path(word).stem in RECIPES), None)
        if recipe and words[0] in ("python", "torchrun"):
            after = words[next(i for i, word in enumerate(words) if word.endswith(".py")) + 1 :]
            flags = [word[2:].replace("-", "_") for word in after if word.startswith("--")]
            assert set(flags) <= set(recipe.config_class.model_fields), words


def test_whole_commands_parse() -> None:
    parsed = 0
    for page in PAGES:
        for words in command_lines(page, with_inline=False):
            if words[0] == "nbtools":
                own = words[1 : words.index("--")] if "--" in words else words[1:]
                parser("", prediction_fields(), launch_flags()).parse_args(own)  # SystemExit if it is wrong
                parsed += 1
    assert parsed >= 15


@each_page
def test_every_flag_in_the_prose_is_known(page: Path) -> None:
    fields = {name for recipe in RECIPES.values() for name in recipe.config_class.model_fields}
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "scripts").glob("*.sh"))
    others = {"--nbval-lax", "--nbval-current-env", "--standalone", "--resume-from"}  # pytest's, torchrun's, the flags'
    others |= {"--logdir"}  # TensorBoard's
    known = others.union(*map(options, COMMANDS), re.findall(r"--[\w-]+", scripts))
    ours = prose(TEXTS[page]).partition("## Guides of older programs")[0]
    for flag in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", ours):
        name = flag[2:].replace("-", "_")
        assert flag in known or name in {*fields, *older("fields"), *older("ignored"), *SWITCHES}, flag


@each_page
def test_every_environment_variable_of_nbtools_exists(page: Path) -> None:
    sources = [*(ROOT / "nbtools").rglob("*.py"), *(ROOT / "scripts").glob("*.sh"), *(ROOT / "tests").rglob("*.py")]
    known = {name for path in sources for name in re.findall(r"NBTOOLS_[A-Z_]+", path.read_text(encoding="utf-8"))}
    assert set(re.findall(r"NBTOOLS_[A-Z_]+", TEXTS[page])) <= known


def test_the_table_has_every_command_and_each_commands_flags_exist() -> None:
    rows = re.findall(r"^\| `nbtools (\w+)[^`]*` \| (.*) \|$", TEXTS[CLI], flags=re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(LISTED)
    for name, text in rows:
        assert {flag for flag in re.findall(r"`(--?[\w-]+)", text) if flag != "--"} <= options(name), name
    for name in FORMER_NAMES:
        assert f"`nbtools {name}" in TEXTS[CLI], f"the earlier name {name} is not explained"


@each_page
def test_python_examples_use_public_names_and_their_arguments(page: Path) -> None:
    for example in blocks(TEXTS[page], "python"):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nt":
                assert node.attr in nbtools.__all__, node.attr
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nbtools"):
                module = __import__(str(node.module), fromlist=["_"])
                assert all(hasattr(module, alias.name) for alias in node.names)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = {"nt": nbtools, "media": nbtools.media}.get(ast.unparse(node.func.value))
                called = getattr(owner, node.func.attr, None)
                if inspect.isfunction(called):
                    keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg}
                    inspect.signature(called).bind(*node.args, **keywords)  # TypeError if it is wrong


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    from nbtools.cli import commands as command_line

    assert (command_line.DONE, command_line.FAILED, command_line.WRONG_CALL) == (0, 1, 2)
    assert (command_line.STILL_RUNNING, command_line.INTERRUPTED) == (124, 130)
    text = " ".join(TEXTS[CLI].split())
    assert "0 done, 1 the run failed or is lost, 2 the call was wrong, 130 stopped or interrupted" in text
    assert "`wait --timeout` gives 124" in text


def test_every_recipe_has_a_row_in_the_readme_and_in_its_own_page() -> None:
    for page in (README, ROOT / "nbtools" / "recipes" / "README.md"):
        assert set(RECIPES) <= set(re.findall(r"^\| `(\w+)` \|", TEXTS[page], flags=re.MULTILINE))
