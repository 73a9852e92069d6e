"""Flat YAML configs of older programs, read into the values of a recipe; unknown entries are returned as comments.

Values are read as text, so that `no`, `1e-4` and `500k` keep their spelling instead of YAML 1.1's types.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError, did_you_mean, shown
from nbtools.script.compat import aliases
from nbtools.script.source import read_source
from nbtools.script.values import TRUTHS
from nbtools.settings import errors_by_field

LARGEST_BYTES = 2**18
_CONTEXTS = {"sequence_length", "context_len", "context_length", "n_transit"}
_POSITIONS = {"max_seq_len", "max_seq_length", "max_len", "max_length", "block_size"}
"""Names of the size of a table of positions, in files that have one of `_CONTEXTS` too."""
_REINFORCEMENT = {"gae_lambda", "clip_range", "clip_coef", "ent_coef", "vf_coef", "target_kl", "n_envs", "num_envs"}
_REINFORCEMENT |= {"total_timesteps", "total_source_timesteps", "source_lr", "learning_starts", "buffer_size"}
_SHARED = {"batch_size", "n_epochs", "num_epochs", "learning_rate", "max_grad_norm", "gradient_accumulation_steps"}
"""Names that may be of a reinforcement-learning algorithm, in files that have one of `_REINFORCEMENT` too."""
_ENABLES: Mapping[str, str] = {"use_compressed_context": "compress_interval"}
"""Field of each older switch: None if the switch is off; if it is on, the field's own entry is required."""
_QUOTIENTS: Mapping[str, tuple[str, str]] = {"train_source_timesteps": ("num_episodes", "horizon")}
"""Older name -> (field, divisor): the field is the older number divided by the divisor's value."""
_IMPLIED: Mapping[str, Mapping[str, Any]] = {"train_timesteps": {"epochs": 1_000_000, "checkpoint_epochs": False}}
"""Older name -> values of further fields: a program that counts steps has no epochs."""
_NO_FIELD = "has no such field"


@dataclass(frozen=True)
class FlatYAML:
    """The values of a file for one recipe, and its remaining entries."""

    values: dict[str, Any]
    unknown: dict[str, str]
    """Key without a field -> reason, with the nearest field."""
    remarks: tuple[str, ...]
    """The source lines of these entries, as comment lines for a script."""
    taken: tuple[str, ...]
    """The entries that became values, each with its field if that has another name."""


def read_flat_yaml(path: Path, cls: type[TrainConfig]) -> FlatYAML:
    """Read a file of `key: value` lines into values for `cls`; ScriptError if the file is unreadable, ConfigError if it
    is not flat YAML, or a field has two values or a wrong one."""
    text = _text(path)
    values: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    unknown: dict[str, str] = {}
    remarks: list[str] = []
    taken: list[str] = []
    # Quotients come last, when the values of their divisors are known.
    entries = sorted(_entries(path, text), key=lambda entry: entry[1].replace("-", "_") in _QUOTIENTS)
    names = {key.replace("-", "_") for _, key, _, _ in entries}
    for line, key, value, source in entries:
        try:
            _check_is_meant(key.replace("-", "_"), names)
            field, meant = _meaning(cls, key, value, values)
        except ConfigError as error:
            unknown[key] = str(error)
            remarks += [f"#   {part}" for part in source.splitlines()]
            continue
        if values.get(field, meant) != meant and not _denies(said_by[field], values[field]):
            if _denies(key, meant):
                continue
            raise ConfigError(f"{path}:{line}: {key} and {said_by[field]} both mean {field} and differ; keep one")
        values[field], said_by[field] = meant, key
        taken.append(key if key.replace("-", "_") == field else f"{key} as {field}")
        if wrong := errors_by_field(cls, {field: meant}).get(field):
            raise ConfigError(f"{path}:{line}: {key}={shown(meant)}: {wrong} ({cls.__name__})")
    rest = [name for name in cls.model_fields if name not in values]
    for key, why in unknown.items():
        if why.endswith(_NO_FIELD) and (near := did_you_mean(key.replace("-", "_"), rest)):
            unknown[key] = f"{why}; {near}"
        field = _ENABLES.get(key.replace("-", "_"), "")  # of a switch that is on
        if field in cls.model_fields and values.get(field) is None:
            raise ConfigError(f"{path}: {key} needs {field}, which is not there; add {field}: N ({cls.__name__})")
    for key in said_by.values():
        values = {**_IMPLIED.get(key.replace("-", "_"), {}), **values}
    if remarks:
        remarks.insert(0, f"# What {ascii(path.name)[1:-1]} says beyond this; nothing here uses it:")
    return FlatYAML(values, unknown, tuple(remarks), tuple(taken))


def _check_is_meant(name: str, names: Collection[str]) -> None:
    """Raise a ConfigError with the reason if an entry means something else beside others with these `names`."""
    if name in _POSITIONS and (context := sorted(_CONTEXTS.intersection(names))):
        raise ConfigError(f"is taken for the size of a table of positions, as {context[0]} is there too; not taken")
    found = sorted(_REINFORCEMENT.intersection(names)) or (["n_steps"] if {"n_steps", "n_epochs"} <= {*names} else [])
    if name in _SHARED and found:
        raise ConfigError(
            f"may be a value of the reinforcement learning that {found[0]} is of; not taken: if it is one of this "
            "training, give it with --set"
        )


def _denies(key: str, meant: object) -> bool:
    """Return whether an entry only rules out a precision: `fp16: false` does not contradict `bf16: true`."""
    return key in ("fp16", "bf16") and meant == "fp32"


def _text(path: Path) -> str:
    if len(data := read_source(path)) > LARGEST_BYTES:
        raise ConfigError(f"{path}: larger than {LARGEST_BYTES} bytes; give a flat file of `key: value` lines")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; convert the file") from None


def _entries(path: Path, text: str) -> Iterator[tuple[int, str, yaml.Node, str]]:
    """Yield line, key, value and source text of each entry; no object is constructed from a tag or alias."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not YAML: {shown(str(error).partition(chr(10))[0], 200)}") from None
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}:{root.start_mark.line + 1}: is no list of `key: value` lines")
    seen: set[str] = set()
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{path}:{line}: a key has to be a name")
        if key.value in seen:
            raise ConfigError(f"{path}:{line}: {shown(key.value)} is given twice; keep one")
        seen.add(key.value)
        yield line, key.value, value, text[key.start_mark.index : value.end_mark.index].rstrip()


def _meaning(cls: type[TrainConfig], key: str, value: yaml.Node, known: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the field and its value, given those of other fields; ConfigError with the reason if there is none."""
    name = key.replace("-", "_")
    says_off = isinstance(value, yaml.ScalarNode) and TRUTHS.get(value.value.lower()) is False
    if says_off and _ENABLES.get(name) in cls.model_fields:
        return _ENABLES[name], None
    if name in aliases.older("ignored"):
        raise ConfigError(f"is not needed: {aliases.older('ignored')[name]}")
    if name in _QUOTIENTS:
        return _quotient(cls, name, value.value if isinstance(value, yaml.ScalarNode) else "", known)
    field, _ = aliases.translated(cls, name, "")
    if field not in cls.model_fields:
        raise ConfigError(f"{cls.__name__} {_NO_FIELD}")
    if isinstance(value, yaml.ScalarNode):
        is_null = value.tag == "tag:yaml.org,2002:null"
        return aliases.translated_value(cls, name, "None" if is_null else value.value)
    if isinstance(value, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in value.value):
        annotation = str(cls.model_fields[field].annotation)
        if "tuple[str, ...]" in annotation:
            return field, tuple(item.value for item in value.value)
    raise ConfigError(f"holds nested values, which {field} does not take")


def _quotient(cls: type[TrainConfig], name: str, text: str, known: Mapping[str, Any]) -> tuple[str, int]:
    """Return the field and its value for a number that the value of another field divides, known or its default."""
    field, divisor = _QUOTIENTS[name]
    if not {field, divisor} <= cls.model_fields.keys():
        raise ConfigError(f"means {field} x {divisor}, which {cls.__name__} does not have")
    parts = known.get(divisor, cls.model_fields[divisor].default)
    digits = aliases.counted(text.replace("_", ""))
    if not digits.isdecimal() or len(digits) > 18:
        raise ConfigError("is no whole number")
    if not isinstance(parts, int) or parts < 1:
        raise ConfigError(f"means {field} x {divisor}, and {divisor}={shown(parts)}; set {field} itself")
    whole, rest = divmod(int(digits), parts)
    if rest:
        raise ConfigError(f"means {field} x {divisor}, and is no multiple of {divisor}={parts}; set {field} itself")
    return field, whole
