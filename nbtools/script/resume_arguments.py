"""Resume arguments of a program: derived from the names of its arguments, and merged with a launch's arguments."""

import ast
import contextlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from nbtools.errors import ScriptError
from nbtools.script.source import parse_source, read_source

CHECKPOINT: Final = "{checkpoint}"
"""Placeholder in `Program.resume`, a whole argument or a part, for the path of a checkpoint."""
Takes = Literal["value", "preset", "number", "nothing", "bool"]
"""Kind of a flag's value: any value, a value with a text as its default, a number or choice that cannot be a path, none
(`store_true`), or a truth value."""

_NAMES: Final = (
    "resume_from_checkpoint", "ckpt_path", "resume_from", "resume_path", "resume_checkpoint", "resume_ckpt",
    "resume_training_from", "resume", "auto_resume", "load_checkpoint", "checkpoint_path", "load_ckpt", "load",
    "checkpoint", "ckpt",
)  # fmt: skip
"""Names of resume arguments, the least ambiguous first."""
_NO_PATHS: Final = {"int", "float", "INT", "FLOAT", "IntRange", "FloatRange", "Choice", "Literal"}
_INIT_FROM: Final = "init_from"
"""nanoGPT: `--init_from=resume` continues from the checkpoint in its `out_dir`."""
_OF_LIBRARY: Final = {"TrainingArguments": "--resume_from_checkpoint", "LightningCLI": "--ckpt_path"}
"""Flags that a library adds without the program naming them, by a name of the library."""
_READ_DATACLASSES: Final = {"HfArgumentParser", "tyro", "simple_parsing"}
"""Names of libraries that add a flag for each field of a dataclass."""
_DECLARES: Final = ("add_argument", "option", "Option")


def resume_words(flags: Collection[str] | Mapping[str, Takes], *, unasked: bool = False) -> tuple[str, ...]:
    """Return the resume arguments of a program with these flags; () if no flag is known to resume.

    Args:
        flags: such as `--resume` or, for `key=value` arguments, `trainer.ckpt_path=`; a mapping gives the kind of each
            value, else all take any value.
        unasked: whether they are used without asking the user, at a restart: then the name must mean a resume; `load`
            and `checkpoint` may also name initial weights, or weights for an evaluation.
    """
    takes: Mapping[str, Takes] = flags if isinstance(flags, Mapping) else dict.fromkeys(flags, "value")
    known: dict[str, str] = {}
    for flag, what in takes.items():
        name = _plain(flag).rpartition(".")[2]
        if name == _INIT_FROM or _may_resume(name, what, unasked):
            known.setdefault(name, flag)
    for name in _NAMES:
        if flag := known.get(name, ""):
            value = "True" if takes[flag] == "bool" else CHECKPOINT
            return (flag,) if takes[flag] == "nothing" else (f"{flag}{value}",) if flag[-1] == "=" else (flag, value)
    return (f"{known[_INIT_FROM].rstrip('=')}=resume",) if _INIT_FROM in known else ()


def _may_resume(name: str, takes: Takes, unasked: bool) -> bool:
    """Whether an argument of this name can take a checkpoint: one with a default text more likely says where to save,
    and a switch without `resume` in its name more likely turns on something else, such as activation checkpointing."""
    if "resume" in name:
        return takes != "number"
    return takes == "value" and (not unasked or name == "ckpt_path")


def takes_path(words: Sequence[str]) -> bool:
    """Whether resume arguments contain a checkpoint's path; else the program finds the checkpoint itself."""
    return any(CHECKPOINT in word for word in words)


def with_checkpoint(args: Sequence[str], words: Sequence[str], checkpoint: Path) -> list[str]:
    """Return the arguments of a program with its resume arguments, which replace the same arguments.

    Resume arguments precede a `--`, after which all words are positional. The word after a flag that takes a value is
    that value, also `epoch=3.ckpt`: such words are keys only for a program with `key=value` resume arguments.
    """
    flags = {_plain(word) for word in words if _is_flag(word)}
    keys = set() if flags else {_plain(word) for word in words if _is_key(word)}
    has_value = {_plain(word) for word in words if _is_flag(word) and "=" in word}
    has_value |= {_plain(one) for one, two in itertools.pairwise(words) if _is_flag(one) and not _is_flag(two)}
    end = args.index("--") if "--" in args else len(args)
    kept: list[str] = []
    is_value = False
    for word in args[:end]:
        is_flag, name = _is_flag(word), _plain(word)
        is_same = name in flags if is_flag else is_value or (_is_key(word) and name in keys)
        if not is_same:
            kept.append(word)
        is_value = is_flag and is_same and "=" not in word and name in has_value
    return [*kept, *(word.replace(CHECKPOINT, str(checkpoint)) for word in words), *args[end:]]


def named_checkpoint_in(args: Sequence[str], words: Sequence[str]) -> str:
    """Return the checkpoint path in a program's arguments, by its resume arguments `words`; empty without one."""
    found = ""
    for one, two in itertools.pairwise(("", *words)):
        if CHECKPOINT not in two:
            continue
        name = _plain(two if "=" in two else one)
        for word, after in itertools.zip_longest(args, args[1:], fillvalue=""):
            if (_is_flag(word) or _is_key(word)) and _plain(word) == name:
                found = word.partition("=")[2] if "=" in word else after
    return found


def arguments_in(path: Path, args: Sequence[str] = ()) -> dict[str, Takes]:
    """Return the flags that a program's source declares, and the flags in `args`.

    Nothing is executed, and no other file is read. Known are `add_argument("--x")` and options of click and typer,
    module constants that a configurator overrides, keys of a config that hydra passes, and the flags of the parsers of
    transformers and Lightning.
    """
    found: dict[str, Takes] = {}
    for word, after in itertools.zip_longest(args, args[1:], fillvalue="--"):
        if _is_flag(word) or _is_key(word):
            key, equals, _ = word.partition("=")
            flag = key if key.startswith("-") else key + equals
            found[flag] = "value" if equals or not _is_flag(after) else "nothing"
    with contextlib.suppress(ScriptError, RecursionError, MemoryError):
        tree = parse_source(path, read_source(path))
        nodes = [*ast.walk(tree)]
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        found |= dict(_declared(nodes))
        if names & _READ_DATACLASSES:
            classes = (node for node in nodes if isinstance(node, ast.ClassDef) and node.decorator_list)
            found |= dict(_assigned((each for node in classes for each in node.body), "--{}"))
        found |= dict.fromkeys((flag for word, flag in _OF_LIBRARY.items() if word in names), "value")
        if "hydra" in names:
            found |= dict.fromkeys(_keys(nodes), "value")
        if any(isinstance(node, ast.Constant) and node.value == "configurator.py" for node in nodes):
            found |= dict(_assigned(tree.body, "--{}="))
    return found


def _assigned(statements: Iterable[ast.stmt], flag: str) -> Iterator[tuple[str, Takes]]:
    """Yield the flags of the names that statements assign."""
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(ast.Name(id=name), value=value):
                yield flag.format(name), _taken(getattr(statement, "annotation", None), value)


def _taken(kind: ast.expr | None, default: ast.expr | None) -> Takes:
    """Return the kind of an argument's value, by the source of its type and by its default."""
    value = default.value if isinstance(default, ast.Constant) else None
    if isinstance(value, bool):
        return "bool"
    words = set(re.findall(r"\w+", ast.unparse(kind))) if kind is not None else set()
    if isinstance(value, int | float) or (words & _NO_PATHS and not words & {"str", "Path"}):
        return "number"
    return "preset" if isinstance(value, str) and value else "value"


def _declared(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, Takes]]:
    """Yield the flags in calls that declare them."""
    for node in nodes:
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in _DECLARES:
            continue
        keywords = {each.arg: each.value for each in node.keywords}
        action = ast.unparse(keywords.get("action", ast.Constant(None))).strip("'")
        takes = "number" if "choices" in keywords else _taken(keywords.get("type"), keywords.get("default"))
        if action.startswith("store_") or action.endswith("BooleanOptionalAction") or "is_flag" in keywords:
            takes = "nothing"
        for arg in node.args:
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and arg.value.startswith("-"):
                yield arg.value.partition("/")[0], takes


def _keys(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the keys of a config that a program reads: `cfg.trainer.ckpt_path`, `cfg.get("ckpt_path")`."""
    for node in nodes:
        match node:
            case ast.Attribute():
                yield ast.unparse(node).partition(".")[2] + "="
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                yield key + "="


def _plain(word: str) -> str:
    return word.partition("=")[0].lstrip("-+~").replace("-", "_").lower()


def _is_flag(word: str) -> bool:
    """Whether a word is a flag and not a negative number."""
    return re.match(r"--?[A-Za-z]", word) is not None


def _is_key(word: str) -> bool:
    """Whether a word is a `key=value` argument, as in hydra."""
    return re.match(r"[+~]*[A-Za-z_][\w.]*=", word) is not None
