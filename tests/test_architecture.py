"""The architecture: which module may import what, how large the parts may grow, what is public."""

import ast
import io
import os
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import nbtools
from nbtools.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nbtools"
MODULES = sorted(PACKAGE.rglob("*.py"))
CORE = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] not in ("notebook", "training")]

CORE_PACKAGES = {"numpy", "orjson", "psutil", "pydantic", "yaml"}
NOTEBOOK_PACKAGES = CORE_PACKAGES | {"IPython", "ipywidgets", "matplotlib"}
TRAINING_PACKAGES = CORE_PACKAGES | {"safetensors", "tokenizers", "torch", "transformers"}
SINGLE_MODULES = {
    "__init__.py": {"lazy_loader"},
    "cli/output.py": {"rich"},  # a terminal's colours, inside functions
    "machine/devices.py": {"pynvml"},
    "notebook/plots/canvas.py": {"anywidget", "traitlets"},
    "notebook/panel/page.py": {"anywidget", "traitlets"},
    "notebook/plots/figure.py": {"PIL"},  # matplotlib's own writer of PNG files
    "notebook/plots/frames.py": {"PIL"},  # animated pictures
    "training/engine/flags.py": {"tyro"},
    "training/text/adapter.py": {"peft"},
    "data/hub.py": {"datasets", "huggingface_hub"},
    "data/tables.py": {"pyarrow"},
}
"""What one module alone may import beyond its part of the package."""

DOORS = {"__init__.py", "cli/commands.py"}
"""These may import anything, inside functions and for type checkers."""
LATE_BY_NAME = {
    "training/__init__.py",  # torch is loaded after the command line was read
    "training/trial/trial_process.py",  # and after the thread that ends a trial was started
}
"""The modules that import a module of nbtools by `import_module("nbtools…")`."""
LATE_IMPORTS = {
    "notebook/form/body.py",  # the panel is loaded when something is launched
    "notebook/board/runs.py",  # and the widgets when a board is displayed, so that scripts need none
}
"""The only other modules that import nbtools inside functions."""

BY_PATH = "script/intercept"
"""The only folder whose modules import each other relatively: it is started by path, by Pythons without nbtools."""

FOUNDATION = {"_version", "config", "errors", "parsing", "project", "settings", "steering"}
LOW = FOUNDATION | {"rundir", "machine", "metrics", "user_config"}
MAY_IMPORT = {
    "_version": set(),
    **{name: set() for name in ("errors", "parsing", "steering")},
    "settings": {"errors"},
    "config": {"settings"},
    "project": {"errors"},
    "rundir": FOUNDATION,
    "user_config": {"errors", "rundir"},
    "machine": FOUNDATION | {"rundir"},
    "metrics": FOUNDATION | {"rundir", "user_config"},
    "failures": LOW - {"metrics"},
    "run": LOW | {"failures"},
    "data": LOW,
    "recipes": LOW | {"data"},
    "script": LOW | {"data", "recipes"},
    "launcher": LOW | {"failures", "run", "data", "recipes", "script"},
    "predict": LOW | {"failures", "run", "data", "recipes", "script", "launcher"},
    "__main__": {"cli"},
}
"""Imports point downwards only: which packages each package may import. The wings and `cli` may import all of these."""
CORE_PARTS = set(MAY_IMPORT) - {"__main__"}
MAY_IMPORT |= {"cli": CORE_PARTS, "notebook": CORE_PARTS, "training": CORE_PARTS}

LIGHT_ROOTS = ("launcher/supervisor.py", "run/checkpoints.py", "rundir/rundir.py")
"""The supervisor lives as long as the run: it and all that it imports of nbtools need psutil alone."""
LIGHT_PACKAGES = {"psutil"}

MOST_MODULES = 12
RE_EXPORTING = {"__init__.py", "recipes", "metrics", "training", *(f"training/{key}" for key in RECIPES)}
"""Packages whose `__init__` is more than a docstring."""


def inside(path: Path) -> str:
    """A module's path below the package, such as `rundir/lock.py`."""
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    """The package or top-level module that a module belongs to, such as `rundir` or `config`."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def dotted(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


BY_NAME = {dotted(path): path for path in MODULES}


@dataclass(frozen=True)
class Import:
    """One imported module: its full name, and whether it is imported as soon as the importing module is."""

    module: str
    line: int
    at_import: bool
    for_types: bool
    by_name: bool = False
    """Whether it is a call of `import_module`."""

    @property
    def package(self) -> str:
        return self.module.split(".")[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Read every import of a module, wherever it stands, without executing anything."""
    found: list[Import] = []

    def visit(node: ast.AST, at_import: bool, for_types: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, at_import, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            is_relative = node.level == 1 and inside(path.parent) == BY_PATH
            assert node.level == 0 or is_relative, f"{path}:{node.lineno}: relative import; write nbtools.… in full"
            module = ".".join(filter(None, [*[dotted(path.parent)] * node.level, node.module]))
            for alias in node.names:  # `from nbtools.data import corpus` imports nbtools.data.corpus
                full = f"{module}.{alias.name}"
                found.append(Import(full if full in BY_NAME else module, node.lineno, at_import, for_types))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            if str(name).startswith("nbtools."):
                found.append(Import(str(name), node.lineno, at_import=False, for_types=False, by_name=True))
        for child in ast.iter_child_nodes(node):
            within = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") and child in node.body
            visit(child, at_import and not within, for_types or types)

    visit(tree_of(path), at_import=True, for_types=False)
    return tuple(found)


def targets_of(path: Path) -> dict[Path, int]:
    """The modules of nbtools that a module imports, with a line each: type-checking imports count, its own package's
    `__init__` does not, nor does the lazy `__init__` of nbtools."""
    found: dict[Path, int] = {}
    for item in imports_of(path):
        target = BY_NAME.get(item.module)
        if target in (None, path, PACKAGE / "__init__.py") or (
            target.name == "__init__.py" and path.is_relative_to(target.parent)
        ):
            continue
        found.setdefault(target, item.line)
    return found


def circle_of(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of a circle of a graph, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folder_of(path: Path) -> str:
    """The folder of a module; a module at the top is a folder of its own, for `config` is no part of `cli`."""
    return inside(path) if path.parent == PACKAGE else path.parent.relative_to(PACKAGE).as_posix()


# --- imports --------------------------------------------------------------------------------------


def test_no_circle_of_modules() -> None:
    graph = {inside(path): set(map(inside, targets_of(path))) for path in MODULES if inside(path) not in DOORS}
    assert circle_of(graph) == []


def test_no_circle_of_folders() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        if inside(path) not in DOORS:
            graph.setdefault(folder_of(path), set()).update(map(folder_of, targets_of(path)))
    assert circle_of({folder: others - {folder} for folder, others in graph.items()}) == []


def test_a_circle_is_found() -> None:
    assert set(circle_of({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()})) == {"a", "b", "c"}
    assert circle_of({"a": {"b", "c"}, "b": {"c"}}) == []


def test_a_call_of_import_module_counts_as_an_import() -> None:
    called = {item.module for item in imports_of(PACKAGE / "training" / "__init__.py") if item.by_name}
    assert called == {"nbtools.training.engine.flags", "nbtools.training.engine.worker"}


def test_packages_import_downwards_only() -> None:
    wrong = [
        f"{inside(path)}:{line}: {inside(target)}"
        for path in MODULES
        if inside(path) not in DOORS
        for target, line in targets_of(path).items()
        if part_of(target) not in MAY_IMPORT[part_of(path)] | {part_of(path)}
    ]
    assert wrong == []


def test_only_the_doors_and_two_modules_import_inside_functions() -> None:
    late = {
        inside(path)
        for path in MODULES
        for item in imports_of(path)
        if item.package == "nbtools" and not item.at_import and not item.for_types and not item.by_name
    }
    by_name = {inside(path) for path in MODULES for item in imports_of(path) if item.by_name}
    assert late - DOORS <= LATE_IMPORTS
    assert by_name - DOORS == LATE_BY_NAME
    assert len(LATE_IMPORTS) <= 2


def test_a_module_imports_only_the_packages_of_its_part() -> None:
    of_parts = {"notebook": NOTEBOOK_PACKAGES, "training": TRAINING_PACKAGES}
    wrong = [
        f"{inside(path)}:{item.line}: {item.module}"
        for path in MODULES
        for item in imports_of(path)
        if item.package
        not in {*sys.stdlib_module_names, "nbtools"}
        | of_parts.get(part_of(path), CORE_PACKAGES)
        | SINGLE_MODULES.get(inside(path), set())
    ]
    assert wrong == []


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    distributions = {"IPython": "ipython", "PIL": "pillow", "pynvml": "nvidia-ml-py", "yaml": "PyYAML"}
    for path in MODULES:
        parts = {"notebook": extras["notebook"], "training": extras["train"], "data": extras["data"]}
        lines = project["dependencies"] + parts.get(part_of(path), [])
        declared = {line.split(">=")[0] for line in lines}
        imported = {item.package for item in imports_of(path)} - sys.stdlib_module_names - {"nbtools"}
        assert {distributions.get(name, name) for name in imported} <= declared, inside(path)


def test_the_doors_import_the_wings_inside_functions_only() -> None:
    wrong = [
        f"{name}:{item.line}: {item.module}"
        for name in sorted(DOORS)
        for item in imports_of(PACKAGE / name)
        if item.module.startswith(("nbtools.notebook", "nbtools.training")) and item.at_import and not item.for_types
    ]
    assert wrong == []


@pytest.mark.parametrize("name", LIGHT_ROOTS)
def test_what_the_supervisor_imports_stays_light(name: str) -> None:
    seen: set[Path] = set()
    waiting = [PACKAGE / name]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        allowed = LIGHT_PACKAGES | SINGLE_MODULES.get(inside(path), set()) | {"nbtools"}
        for item in imports_of(path):
            if item.for_types:
                continue
            assert item.package in sys.stdlib_module_names | allowed, f"{inside(path)}:{item.line}: {item.module}"
            if item.module in BY_NAME and BY_NAME[item.module] != PACKAGE / "__init__.py":  # PEP 562: loads nothing
                waiting.append(BY_NAME[item.module])


# --- sizes ----------------------------------------------------------------------------------------


def test_no_folder_holds_more_than_twelve_modules() -> None:
    counts = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in MODULES if path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_an_init_is_a_docstring_but_where_names_are_re_exported() -> None:
    for path in MODULES:
        if path.name == "__init__.py" and folder_of(path) not in RE_EXPORTING:
            assert len(tree_of(path).body) == 1, inside(path)


_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def lines_of_code(path: Path) -> int:
    """Count the lines of a Python or JavaScript file without blank lines, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return sum(bool(line.strip()) and not line.strip().startswith("//") for line in text.splitlines())
    texts = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    documented = {
        line
        for node in texts
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = {line for part in tokens if part.type not in _NO_CODE for line in range(part.start[0], part.end[0] + 1)}
    return len(found - documented)


def test_lines_without_code_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Text.\n\nMore."""\n\n# why\nx = """a\nb"""\n\n\ndef f():\n    """Docs."""\n    return 1\n'
    )
    (tmp_path / "a.js").write_text("// why\n\nlet a = 1;\n")
    assert lines_of_code(tmp_path / "a.py") == 4
    assert lines_of_code(tmp_path / "a.js") == 1


MOST_LINES = {"nbtools": 38_206, "tests": 45_406}
"""Lines of code of product and tests. These numbers only fall: what is new makes room by a cut elsewhere."""


@pytest.mark.parametrize("folder", MOST_LINES)
def test_the_lines_of_code_stay_within_a_limit_that_only_falls(folder: str) -> None:
    files = [path for kind in ("*.py", "*.js") for path in (ROOT / folder).rglob(kind)]
    assert sum(map(lines_of_code, files)) <= MOST_LINES[folder]


def attributes_of(tree: ast.ClassDef) -> set[str]:
    """Return the attributes that the methods of a class set on their object."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def test_an_object_has_at_most_fifteen_attributes() -> None:
    """Fields of configs and records are declared in the body, and do not count."""
    classes = [(path, node) for path in MODULES for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    assert len(classes) > 200
    assert [(inside(path), node.name) for path, node in classes if len(attributes_of(node)) > 15] == []


# --- names ----------------------------------------------------------------------------------------

RECIPE_FOLDERS = {f"{wing}/{key}" for wing in ("data", "training") for key in RECIPES}


def test_module_names_repeat_only_across_recipe_folders() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        if path.name not in ("__init__.py", "__main__.py"):
            homes.setdefault(path.stem, []).append(inside(path))
    wrong = [
        paths
        for paths in homes.values()
        if len(paths) > 1 and not {path.rpartition("/")[0] for path in paths} <= RECIPE_FOLDERS
    ]
    assert wrong == [], "name each module by what only it holds"


BESIDE_THE_MIRROR = {"system", "browser", "benchmarks", "programs", "gpu"}
"""Folders of tests that are about no single package."""


def test_tests_mirror_the_packages() -> None:
    homes: dict[str, set[str]] = {}
    for path in MODULES:
        homes.setdefault(path.stem, set()).add(path.parent.relative_to(PACKAGE).as_posix())
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        where = path.parent.relative_to(ROOT / "tests")
        if where.as_posix().partition("/")[0] not in BESIDE_THE_MIRROR:
            home = homes.get(path.stem.removeprefix("test_"), {where.as_posix()})
            if not (PACKAGE / where / "__init__.py").is_file() or where.as_posix() not in home:
                wrong.append(f"{path.relative_to(ROOT).as_posix()}: {' or '.join(sorted(home))}")
    assert wrong == [], "a file of tests lies in the folder of the module that it is called after"


IN_EVERY_RECIPE = {"train", "main", "Evaluation", "Predictor", "hook"}
"""Names that each recipe's folder defines for itself, or each library that can be asked for its arguments."""


def test_public_classes_and_functions_have_one_home_and_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(inside(path))
    twice = {
        name: paths
        for name, paths in homes.items()
        if len(paths) > 1 and name not in IN_EVERY_RECIPE and name != "hook"
    }
    assert twice == {}


def test_no_package_has_the_name_of_a_public_function() -> None:
    packages = {path.parent.name for path in MODULES if path.name == "__init__.py"}
    assert packages & set(nbtools.__all__) == set()


def test_import_nbtools_and_the_whole_core_loads_nothing_heavy() -> None:
    names = [
        "nbtools" if inside(path) == "__init__.py" else f"nbtools.{inside(path)[:-3].replace('/', '.')}"
        for path in CORE
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
    surface = """
    Checkpoint ConfigForm History Launch LivePlot Playground Program RECIPES Run RunState Slurm
    StopOn __version__ clean compare doctor launch media new preflight read_script report reproduce resume runs
    scaling show_media write_script
    """
    assert nbtools.__all__ == surface.split()
    for name in nbtools.__all__:
        assert getattr(nbtools, name) is not None
    assert callable(nbtools.launch), "the function, although a module is called so too"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = nbtools.no_such_name


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in MODULES if not ast.get_docstring(tree_of(path))]
    assert [*map(inside, silent)] == []


@pytest.mark.parametrize("key", RECIPES)
def test_one_key_names_the_recipe_everywhere(key: str) -> None:
    recipe = RECIPES[key]
    assert recipe.key == key
    assert recipe.config_class.__name__.lower() == f"{key.replace('_', '')}config"
    assert recipe.module == f"nbtools.training.{key}"
    homes = (f"nbtools/recipes/{key}.py", f"nbtools/training/{key}/train.py", f"tests/training/{key}/test_train.py")
    for path in (*homes, f"scripts/{key}.py"):
        assert (ROOT / path).is_file(), path
    notebooks = [path.name for path in (ROOT / "notebooks").glob("*.ipynb") if key in path.read_text(encoding="utf-8")]
    assert notebooks, f"no notebook mentions {key}"


@pytest.mark.parametrize("key", RECIPES)
def test_a_recipe_shows_its_own_loop_in_sixty_lines(key: str) -> None:
    tree = tree_of(PACKAGE / "training" / key / "train.py")
    loops = [
        node for node in ast.walk(tree) if isinstance(node, ast.For) and "step" in ast.unparse(node.target).split("_")
    ]
    assert loops, "the recipe has a literal `for step …` loop"
    assert all((loop.end_lineno or 0) - loop.lineno < 60 for loop in loops)


def test_the_worker_knows_no_recipe_by_name() -> None:
    source = (PACKAGE / "training" / "engine" / "worker.py").read_text(encoding="utf-8")
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
            name
            for name in subfolders
            if name not in skipped and not name.startswith(".venv-") and not name.endswith(("_cache", ".egg-info"))
        ]
        for name in names:
            path = Path(folder, name)
            if name != ".git" and path.suffix not in (".png", ".pyc", ".so") and not path.is_symlink():
                yield path


def test_the_top_level_is_the_agreed_one() -> None:
    found = {
        path.name
        for path in ROOT.iterdir()
        if not path.name.startswith(".") and path.name not in GENERATED and path.suffix != ".egg-info"
    }
    assert found == TOP_LEVEL


def test_no_file_names_the_machine_an_index_or_another_project() -> None:
    words = [word for of_kind in FORBIDDEN.values() for word in of_kind]
    wrong = []
    for path in repository_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        wrong += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert wrong == []
