"""Field names and values of older programs: one table for script flags, `--set` and `nbtools new --from-yaml`.

An unknown name is returned unchanged, so that the config's validation can report it.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
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


def assigned(cls: type[Settings], texts: Iterable[str]) -> dict[str, Any]:
    """Parse texts such as `learning_rate=1e-4` into values for `cls`, whose validation still has to check them;
    ConfigError if a text has no `=`, or an older name stands for a field that `cls` lacks."""
    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"{shown(text)}: has no '='; write FIELD=VALUE, such as learning_rate=1e-4")
        field, parsed = translated_value(cls, name, value)
        values[field] = parsed
    return values


def translated_value(cls: type[Settings], name: str, text: str) -> tuple[str, Any]:
    """Return the field of `cls` that a name means, and the value that a text means for it, not yet validated;
    ConfigError if the name is an older one for a field that `cls` lacks."""
    field, translated_text = translated(cls, name, text)
    if translated_text is None:
        return field, None
    return field, from_text(translated_text, fields_of(cls).get(field, Field(field)), FLAGS)


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
