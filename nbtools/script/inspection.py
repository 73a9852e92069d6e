"""Inspection of a program's file without running it: its language, and the way to start it."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from nbtools.errors import LaunchError, ScriptError, shown
from nbtools.parsing import syntax_tree
from nbtools.project import located
from nbtools.script.source import parse_source, read_source

_SPAWNS = re.compile(
    r"(?:.*(?:mp|multiprocessing)\.)?(?:spawn|start_processes)|(?:.*\.)?(?:notebook_launcher|elastic_launch)"
)
"""Functions that start the ranks: those of torch.multiprocessing, accelerate and torch."""
_AGENTS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
"""Words of a command that starts the ranks, and modules that contain its function."""
_SPAWNING_STRATEGY = re.compile(r"ddp_(?:spawn|fork|notebook)\w*")
"""Strategies of Lightning that start the ranks even under torchrun; its others, such as `ddp`, do not."""
_RANK_VARIABLES = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
_JOINS = re.compile(r"init_(?:process_group|distributed|device_mesh)|distributed_c10d")
_READS_RANK = re.compile(r"\b[A-Z_]*RANK\b|WORLD_SIZE|SLURM_PROCID")
_TRAINERS = re.compile(
    r"\b(?:accelerate|deepspeed|horovod|\w*lightning\w*|mmengine|composer|colossalai|fairseq2?|megatron|nemo|ignite|jax"
    r"|fastai|detectron2|torchtitan|torchtune|nbtools\.training|\w*Trainer)\b"
)
"""Libraries that join the ranks of a launch, and classes of others that do; not those that the program defines."""
_OWN_CLASS = re.compile(r"^\s*class +(\w+)", re.MULTILINE)
_OLD_ARGUMENT = re.compile(r"[\"']--local[-_]rank\b")
_STARTERS = re.compile(r"\b(?:torchrun|accelerate\s+launch|deepspeed|python[0-9.]*)\b[^\n]*?(\S+\.py\b|-m\s+[\w.]+)")
_SHELL = re.compile(rb"#!.*\b(?:ba|da|z|k)?sh\b")


@dataclass(frozen=True)
class Inspection:
    """The language of a program's file, and the way to start it."""

    spawns_at: int | None
    """Line in which it starts its own ranks, if it does not read its rank from torchrun; None otherwise."""
    relative_import_at: int | None
    """Line of an import relative to its package, which fails unless it is started as a module; None without one."""


def python_file(script: str | Path) -> Path:
    """Return the absolute path of a file with Python code; LaunchError if there is no such file, or it is not Python,
    and the message has the next step."""
    try:
        path = located(script)
        if not path.is_file():
            raise LaunchError(f"script={str(script)[:300]!r}: {_not_a_file(path)}")
        source = read_source(path)
        if other := _other_language(path, source):
            raise LaunchError(f"{path}: {other}")
        parse_source(path, source)
    except ScriptError as error:
        raise LaunchError(str(error)) from None
    except (OSError, ValueError) as error:  # a path with a null character, or one that is too long
        raise LaunchError(f"script={str(script)[:300]!r}: cannot be read: {error}; give the path of a script") from None
    return path


def inspect_program(path: Path) -> Inspection:
    """Read a file that `python_file` accepts."""
    tree = syntax_tree(path.read_bytes(), path)
    nodes = list(ast.walk(tree))
    reads_rank = any(isinstance(node, ast.Constant) and node.value in _RANK_VARIABLES for node in nodes)
    spawns = None if reads_rank else next((getattr(node, "lineno", 1) for node in nodes if _starts_ranks(node)), None)
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level)
    return Inspection(spawns, next((node.lineno for node in imports), None))


def why_apart(text: str) -> str:
    """Return why the ranks of a program with this source do not train together; empty if it mentions what joins them.

    One look over the text: for a process group, a launcher's variables, or a library that joins the ranks.
    """
    own = set(_OWN_CLASS.findall(text))
    if _READS_RANK.search(text) or any(name not in own for name in _TRAINERS.findall(text)):
        return ""
    if _OLD_ARGUMENT.search(text):
        return "takes --local_rank, which torchrun does not pass, and never reads LOCAL_RANK"
    return "" if _JOINS.search(text) else "names no process group, no variable of a launcher and no trainer"


def _starts_ranks(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute() | ast.Name() as function) if _SPAWNS.fullmatch(ast.unparse(function)):
            return True
        case ast.keyword(arg="strategy", value=ast.Constant(value=str(strategy))):
            return _SPAWNING_STRATEGY.fullmatch(strategy) is not None
        case ast.List(elts=words) | ast.Tuple(elts=words):
            return any(isinstance(word, ast.Constant) and word.value in _AGENTS for word in words)
        case ast.ImportFrom(module=str(module)):
            return module in _AGENTS
    return False


def module_of(path: Path) -> tuple[str, Path]:
    """Return the dotted name of a file in its package, and the folder in which `python -m` finds it."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        parts.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(parts)), folder


def _not_a_file(path: Path) -> str:
    if (path / "__main__.py").is_file():
        return f"is a package; launch it as a module from {path.parent}: nbtools launch -m {path.name}"
    if path.is_dir():
        programs = sorted(each.name for each in path.glob("*.py"))[:5]
        return f"is a folder ({path.parent}); give one of its programs: {', '.join(programs) or 'it has none'}"
    what = "is not a file" if path.exists() else "no such file"
    return f"{what} ({path.parent}); give the path of a Python file"


def _other_language(path: Path, source: bytes) -> str:
    """Return the advice for a file that is a notebook or a shell script; empty for all others."""
    if path.suffix == ".ipynb":
        return f"is a notebook; jupyter nbconvert --to script {shown(path.name)} makes a Python file of it to launch"
    if path.suffix in (".sh", ".bash", ".slurm", ".sbatch", ".zsh") or _SHELL.match(source):
        found = _STARTERS.search(source.decode("utf-8", "replace").replace("\\\n", " "))
        starts = f", with its arguments after --: nbtools launch {found[1]} -- ..." if found else ""
        return f"is a shell script; launch the Python program that it starts{starts}"
    return ""
