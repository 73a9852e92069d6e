"""Field names and values of older programs: one table for script flags, `--set` and `nbtools new --from-yaml`.

An unknown name is returned unchanged, so that the config's validation can report it.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import orjson

from nbtools.errors import ConfigError, shown
from nbtools.script.field import Field, fields_of
from nbtools.script.values import FLAGS, TRUTHS, from_text
from nbtools.settings import Settings

REFUSED_BESIDE: Mapping[str, tuple[str, str]] = {
    "block_size": (
        "max_codes",
        "has no field: it is 5 for HISCO codes, else the length of the longest code in the data",
    )
}
"""Older name -> (field, reason): no alias in a recipe that has this field, where the name means another thing."""

ENABLES: Mapping[str, str] = {"use_compressed_context": "compress_interval"}
"""Field of each older switch: None if the switch is off; if it is on, the field's own entry is required."""

QUOTIENTS: Mapping[str, tuple[str, str]] = {"train_source_timesteps": ("num_episodes", "horizon")}
"""Older name -> (field, divisor): the field is the older number divided by the divisor's value."""

IMPLIED: Mapping[str, Mapping[str, Any]] = {"train_timesteps": {"epochs": 1_000_000, "checkpoint_epochs": False}}
"""Older name -> values of further fields: a program that counts steps has no epochs."""

SWITCHES: Mapping[str, tuple[str, str, str]] = {
    "fp16": ("precision", "fp16", "fp32"),
    "bf16": ("precision", "bf16", "fp32"),
    "no_fp16": ("precision", "fp32", "fp16"),
    "no_bf16": ("precision", "fp32", "bf16"),
    "log_wandb": ("report_to", "wandb", "none"),
}
"""Older switch -> field, and its value when the switch is on, and when it is off."""

_PRECISIONS = {"no": "fp32", "false": "fp32", "none": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgb]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


@functools.cache
def older(kind: Literal["fields", "ignored", "refused"]) -> Mapping[str, str]:
    """Return a table of older_names.json, by names of older launchers and programs.

    `fields` has the field that each stands for; `ignored` why one has no effect, `refused` why it has no field.
    """
    table = orjson.loads(Path(__file__).with_name("older_names.json").read_bytes())[kind]
    return {name: value for names, value in table.items() for name in names.split()}


def assigned(
    cls: type[Settings], texts: Iterable[str], base: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Parse texts such as `learning_rate=1e-4` into values for `cls`, whose validation still has to check them;
    ConfigError if a text has no `=`, or an older name stands for a field that `cls` lacks. `base` has the values that
    are changed."""
    values: dict[str, Any] = {}
    divided: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"{shown(text)}: has no '='; write FIELD=VALUE, such as learning_rate=1e-4")
        if is_quotient(cls, name):
            divided[name] = value
        else:
            field, parsed = translated_value(cls, name, value)
            values[field] = parsed
    for name, value in divided.items():
        try:
            field, parsed = quotient(cls, name, value, values, base)
        except ConfigError as error:
            raise ConfigError(f"{name}={value}: {error}") from None
        values[field] = parsed
    return values


def is_quotient(cls: type[Settings], name: str) -> bool:
    """Return whether a name means a field by its quotient with another."""
    return (plain := name.replace("-", "_")) in QUOTIENTS and plain not in cls.model_fields


def quotient(
    cls: type[Settings], name: str, text: str, given: Mapping[str, Any], base: Mapping[str, Any]
) -> tuple[str, Any]:
    """Return the field and its value for a number that another field's value divides.

    The divisor is among the values that are `given` with it, else in `base`, else the default.

    Raises:
        ConfigError: there is no such field, divisor or whole number; the message does not name the number.
    """
    field, divisor = QUOTIENTS[name.replace("-", "_")]
    if not {field, divisor} <= cls.model_fields.keys():
        raise ConfigError(f"means {field} x {divisor}, which {cls.__name__} does not have")
    parts = given.get(divisor, base.get(divisor, cls.model_fields[divisor].default))
    digits = counted(text.replace("_", ""))
    if not digits.isdecimal() or len(digits) > 18:
        raise ConfigError("is no whole number")
    if not isinstance(parts, int) or parts < 1:
        raise ConfigError(f"means {field} x {divisor}, and {divisor}={shown(parts)}; set {field} itself")
    whole, rest = divmod(int(digits), parts)
    if rest:
        raise ConfigError(f"means {field} x {divisor}, and is no multiple of {divisor}={parts}; set {field} itself")
    return field, whole


def translated_value(cls: type[Settings], name: str, text: str) -> tuple[str, Any]:
    """Return the field of `cls` that a name means, and the value that a text means for it, not yet validated;
    ConfigError if the name is an older one for a field that `cls` lacks."""
    field, translated_text = translated(cls, name, text)
    return field, None if translated_text is None else flag_value(cls, field, translated_text)


def flag_value(cls: type[Settings], name: str, text: str) -> Any:
    """Return the value of the text of a field's flag; the text for a field that `cls` lacks."""
    return from_text(text, fields_of(cls).get(name, Field(name)), FLAGS)


def translated(cls: type[Settings], name: str, text: str | None) -> tuple[str, str | None]:
    """Return the field of `cls` that a name means, and its value in the field's own words.

    The name has dashes or underscores; `text` is None for a flag without a value.

    Raises:
        ConfigError: the name is an older one for a field that `cls` lacks, or has none.
    """
    name = name.replace("-", "_")
    fields = cls.model_fields
    if name in SWITCHES and name not in fields and SWITCHES[name][0] in fields:
        field, on, off = SWITCHES[name]
        truth = TRUTHS.get(text.lower()) if text is not None else True
        return field, str(text) if truth is None else on if truth else off
    beside, why = REFUSED_BESIDE.get(name, ("", ""))
    why = why if beside in fields else older("refused").get(name, "")
    if why and name not in fields:
        raise ConfigError(f"{name}: {why}; leave it out")
    field = name if name in fields else older("fields").get(name, name)
    if field not in fields:
        if field != name:
            own = [known for known in cls.__annotations__ if known in fields]
            raise ConfigError(f"{name} means {field}, which {cls.__name__} does not have; its own are {', '.join(own)}")
        return name, text
    if text is not None:
        if field == "precision":
            text = _PRECISIONS.get(text.lower(), text)
        elif fields[field].annotation in (int, int | None):
            text = counted(text)
        elif fields[field].annotation is bool and text.lower() in TRUTHS:
            text = str(TRUTHS[text.lower()]).lower()
    return field, text


def counted(text: str) -> str:
    """Return `500k`, `5M` or `1.5G` as digits, and any other text unchanged."""
    if not (match := _COUNT.fullmatch(text.strip())) or len(text) > 20:
        return text
    number = Decimal(match[1]) * _UNITS[match[2].lower()]
    return str(int(number)) if number == number.to_integral_value() else text
