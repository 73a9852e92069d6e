"""The shape of the house: which module may import what, how large the parts may grow, what is public."""

import ast
import io
import os
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import nbtools
from nbtools.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nbtools"
MODULES = sorted(PACKAGE.rglob("*.py"))
STEM = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] not in ("notebook", "training")]

STEM_PACKAGES = {"numpy", "orjson", "psutil", "pydantic", "yaml"}
NOTEBOOK_PACKAGES = STEM_PACKAGES | {"IPython", "ipywidgets", "matplotlib"}
TRAINING_PACKAGES = STEM_PACKAGES | {"safetensors", "tokenizers", "torch", "transformers"}
# What one module alone may import beyond its part of the house.
SINGLE_MODULES = {
    "devices.py": {"pynvml"},
    "notebook/execute.py": {"nbclient", "nbformat"},
    "notebook/plot.py": {"PIL"},  # matplotlib's own writer of PNG files, always there with it
    "notebook/drawings.py": {"PIL"},  # which also writes pictures that move
    "training/flags.py": {"tyro"},
    "training/hub.py": {"datasets"},
}
PACKAGES = {"nbtools", *(f"nbtools.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))}
# These start, or are read, before anything else: they and all that they import of nbtools stay this light.
LIGHT_MODULES = ("rundir.py", "supervisor.py")
LIGHT_PACKAGES = {"psutil"}
# May import anything, inside functions (and for type checkers).
DOORS = {"__init__.py", "cli/commands.py"}


@dataclass(frozen=True)
class Import:
    """One imported module: its full name, and whether it is imported as soon as the importing module is."""

    module: str
    line: int
    at_import: bool
    for_types: bool

    @property
    def package(self) -> str:
        return self.module.split(".")[0]


def imports_of(path: Path) -> list[Import]:
    """Read every import of a module, wherever it stands, without executing anything."""
    found: list[Import] = []

    def visit(node: ast.AST, at_import: bool, for_types: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, at_import, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; say nbtools.… in full"
            # `from nbtools.sources import corpus` imports nbtools.data.corpus.
            names = [node.module or ""]
            if node.module in PACKAGES:
                submodules = [f"{node.module}.{alias.name}" for alias in node.names]
                names += [name for name in submodules if module_path(name) is not None]
            found.extend(Import(name, node.lineno, at_import, for_types) for name in names)
        for child in ast.iter_child_nodes(node):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") and child in node.body
            visit(child, at_import and not inside, for_types or types)

    visit(ast.parse(path.read_text(encoding="utf-8")), at_import=True, for_types=False)
    return found


def module_path(name: str) -> Path | None:
    """The file of a module of nbtools, or None if there is no such module."""
    base = ROOT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def inside(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first if first in ("notebook", "training") else "stem"


@pytest.mark.parametrize("path", MODULES, ids=inside)
def test_a_module_imports_only_what_its_part_of_the_house_may(path: Path) -> None:
    allowed = {"stem": STEM_PACKAGES, "notebook": NOTEBOOK_PACKAGES, "training": TRAINING_PACKAGES}[part_of(path)]
    allowed = allowed | SINGLE_MODULES.get(inside(path), set()) | {"nbtools"}
    wrong = [
        f"{inside(path)}:{item.line}: {item.module}"
        for item in imports_of(path)
        if item.package not in sys.stdlib_module_names | allowed
    ]
    assert wrong == []


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    distributions = {"IPython": "ipython", "PIL": "pillow", "pynvml": "nvidia-ml-py", "yaml": "PyYAML"}
    for path in MODULES:
        parts = {"notebook": extras["notebook"], "training": extras["train"] + extras["data"]}
        lines = project["dependencies"] + parts.get(part_of(path), [])
        declared = {line.split(">=")[0] for line in lines}
        imported = {item.package for item in imports_of(path)} - sys.stdlib_module_names - {"nbtools"}
        assert {distributions.get(name, name) for name in imported} <= declared, inside(path)


@pytest.mark.parametrize("path", MODULES, ids=inside)
def test_the_wings_never_import_each_other_and_the_stem_imports_neither(path: Path) -> None:
    forbidden = {"stem": ("notebook", "training"), "notebook": ("training",), "training": ("notebook",)}[part_of(path)]
    wrong = []
    for item in imports_of(path):
        if not item.module.startswith(tuple(f"nbtools.{wing}" for wing in forbidden)):
            continue
        if inside(path) in DOORS and (item.for_types or not item.at_import):
            continue
        wrong.append(f"{inside(path)}:{item.line}: {item.module}")
    assert wrong == []


@pytest.mark.parametrize("name", LIGHT_MODULES)
def test_the_supervisor_and_the_run_directory_stay_light(name: str) -> None:
    seen: set[Path] = set()
    waiting = [PACKAGE / name]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        allowed = LIGHT_PACKAGES | SINGLE_MODULES.get(inside(path), set()) | {"nbtools"}
        for item in imports_of(path):
            if item.for_types or inside(path) == "__init__.py":
                continue  # PEP 562: nothing is loaded until a public name is used
            assert item.package in sys.stdlib_module_names | allowed, f"{inside(path)}:{item.line}: {item.module}"
            if item.package == "nbtools":
                target = module_path(item.module)
                assert target is not None, f"{inside(path)}:{item.line}: {item.module}"
                waiting.append(target)


def test_import_nbtools_and_the_whole_stem_loads_nothing_heavy() -> None:
    names = [
        "nbtools" if inside(path) == "__init__.py" else f"nbtools.{inside(path)[:-3].replace('/', '.')}"
        for path in STEM
        if path.name != "__main__.py" and path.parts[-2:] != ("cli", "commands.py")
    ]
    names = [name.removesuffix(".__init__") for name in names]
    program = (
        "import sys, nbtools\n"
        "light = set(sys.modules)\n"
        "from importlib import import_module\n"
        f"for name in {names!r}: import_module(name)\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'ipywidgets', 'IPython', 'tyro', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)), sorted({'numpy', 'pydantic', 'yaml', 'orjson', 'psutil'} & light))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    )
    assert answer.stdout == "[] []\n"


def test_the_public_surface_is_this_list() -> None:
    assert nbtools.__all__ == [
        "Checkpoint",
        "ConfigForm",
        "History",
        "Launch",
        "LivePlot",
        "RECIPES",
        "Run",
        "RunState",
        "__version__",
        "launch",
        "preflight",
        "read_script",
        "resume",
        "runs",
        "write_script",
    ]
    for name in nbtools.__all__:
        assert getattr(nbtools, name) is not None
    assert callable(nbtools.launch), "the function, although a module is called so too"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = nbtools.no_such_name


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]


@pytest.mark.parametrize("path", MODULES, ids=inside)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{inside(path)} has no docstring"


def num_code_lines(path: Path) -> int:
    """Lines that hold code: without blank lines, comments and docstrings, which should not be saved on."""
    source = path.read_text(encoding="utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - prose)


def test_the_stem_stays_within_its_budget() -> None:
    # 4,000 for config, script, launch and what a run shows; 2,000 for its whole life: the queue, restarts, causes of
    # failures, stacks, forks, preflight, clearing up; 250 for what all recipes share: media, older spellings, shell
    # scripts. From here on a new file replaces one. What a recipe is and where its data comes from is counted apart.
    apart = [path for path in STEM if path.parent.name in ("recipes", "sources")]
    assert sum(num_code_lines(path) for path in STEM if path not in apart) <= 6250
    assert sum(num_code_lines(path) for path in apart) <= 550 * len(RECIPES)


def test_no_module_outgrows_a_screenful_of_concerns() -> None:
    too_long = {inside(path): n for path in MODULES if (n := len(path.read_text("utf-8").splitlines())) > 400}
    assert too_long == {}


@pytest.mark.parametrize("key", RECIPES)
def test_one_key_names_the_recipe_everywhere(key: str) -> None:
    recipe = RECIPES[key]
    assert recipe.key == key
    assert recipe.config_class.__name__.lower() == f"{key.replace('_', '')}config"
    assert recipe.module == f"nbtools.training.{key}"
    for path in (f"nbtools/training/{key}.py", f"scripts/{key}.py", f"tests/test_{key}.py"):
        assert (ROOT / path).is_file(), path
    notebooks = [path.name for path in (ROOT / "notebooks").glob("*.ipynb") if key in path.read_text(encoding="utf-8")]
    assert notebooks, f"no notebook mentions {key}"


@pytest.mark.parametrize("key", RECIPES)
def test_a_recipe_shows_its_own_loop_in_sixty_lines(key: str) -> None:
    tree = ast.parse((PACKAGE / "training" / f"{key}.py").read_text(encoding="utf-8"))
    loops = [
        node for node in ast.walk(tree) if isinstance(node, ast.For) and "step" in ast.unparse(node.target).split("_")
    ]
    assert loops, "the recipe has a literal `for step …` loop"
    assert all((loop.end_lineno or 0) - loop.lineno < 60 for loop in loops)


def test_the_worker_knows_no_recipe_by_name() -> None:
    source = (PACKAGE / "training" / "worker.py").read_text(encoding="utf-8")
    assert [key for key in RECIPES if key in source or RECIPES[key].config_class.__name__ in source] == []


# --- the repository -------------------------------------------------------------------------------

TOP_LEVEL = {"notebooks", "nbtools", "scripts", "tests", "environment.yml", "README.md", "pyproject.toml", "LICENSE"}
GENERATED = {"runs", "build", "dist", "__pycache__"}

# Written in two halves, so that this file does not hold them.
FORBIDDEN = {
    "a path of the machine it was built on": ["/" + "work/", "/" + "root/", ".." + "/shared"],
    "a package index's address": ["pypi" + ".org", "python" + "hosted", "anaconda" + ".org"],
    "another project's name as what to install": ["pip install " + "nbtools"],
}


def repository_files() -> Iterator[Path]:
    """Every text file that belongs to the repository, hidden folders of ours included."""
    skipped = GENERATED | {".git", ".venv", ".hypothesis", ".ipynb_checkpoints", ".gl", ".whl"}
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            name for name in subfolders if name not in skipped and not name.endswith(("_cache", ".egg-info"))
        ]
        for name in names:
            path = Path(folder, name)
            if path.suffix not in (".png", ".pyc", ".so") and not path.is_symlink():
                yield path


def test_the_top_level_is_the_agreed_one() -> None:
    found = {
        path.name
        for path in ROOT.iterdir()
        if not path.name.startswith(".") and path.name not in GENERATED and path.suffix != ".egg-info"
    }
    assert found == TOP_LEVEL


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    wrong = []
    for path in repository_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        wrong += [f"{path.relative_to(ROOT)}: {word}" for word in FORBIDDEN[what] if word in text]
    assert wrong == []
