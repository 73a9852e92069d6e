"""Field names and values of older programs: one table for script flags, `--set` and `nbtools new --from-yaml`.

An unknown name is returned unchanged, so that the config's validation can report it.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from nbtools.errors import ConfigError, shown
from nbtools.script.field_text import parse_field

_OLDER_NAMES = {
    "dataset": ("data_dir", "data_path"),
    "batch_size": ("train_batch_size", "batch_size_per_gpu", "per_device_train_batch_size"),
    "gradient_accumulation_steps": ("accumulation_steps",),
    "epochs": ("n_epochs", "num_epochs", "num_train_epochs"),
    "max_steps": ("train_timesteps",),
    "learning_rate": ("lr",),
    "precision": ("mixed_precision",),
    "gradient_clip": ("max_grad_norm",),
    "save_dir": ("save_path", "output_dir"),
    "checkpoint_every": ("checkpoint_freq",),
    "hidden_size": ("tf_n_embd", "n_embd", "n_embed"),
    "num_layers": ("tf_n_layer", "n_layer", "n_layers"),
    "num_heads": ("tf_n_head", "n_head", "n_heads"),
    "sequence_length": ("max_seq_len", "n_transit", "max_agent_tokens"),
    "dropout": ("tf_dropout",),
    "eval_batch_size": ("test_batch_size",),
    "eval_draws": ("eval_samples",),
    "min_chars": ("min_story_length",),
    "max_chars": ("max_story_length",),
}
ALIASES: Mapping[str, str] = {older: field for field, names in _OLDER_NAMES.items() for older in names}
"""Field of each older name."""

IGNORED: Mapping[str, str] = {
    "local_rank": "the launcher's environment says which process this is",
    "distributed": "the number of processes is read from the environment",
    "use_compressed_context": "compress_interval says it",
    "save_checkpoints": "checkpoints are always saved, every checkpoint_every steps and at each epoch's end",
}
"""Arguments of older launchers and programs that have no effect, and the reason."""

REFUSED: Mapping[str, str] = {
    "packing": (
        "is no choice: documents fill their sequences without padding; pairs share none, since they would attend "
        "to each other, which is another loss, and those of similar length share a batch instead"
    )
}
"""Names of other programs that have no field, and the reason."""

ENABLES: Mapping[str, str] = {"use_compressed_context": "compress_interval"}
"""Field of each older switch: None if the switch is off; if it is on, the field's own entry is required."""

QUOTIENTS: Mapping[str, tuple[str, str]] = {
    "num_warmup_steps": ("warmup_ratio", "max_steps"),
    "warmup_steps": ("warmup_ratio", "max_steps"),
    "train_source_timesteps": ("num_episodes", "horizon"),
}
"""Older name -> (field, divisor): the field is the older number divided by the divisor's value."""

IMPLIED: Mapping[str, Mapping[str, Any]] = {"train_timesteps": {"epochs": 1_000_000, "checkpoint_epochs": False}}
"""Older name -> values of further fields: a program that counts steps has no epochs."""

SWITCHES: Mapping[str, tuple[str, str]] = {
    "fp16": ("fp16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "no_fp16": ("fp32", "fp16"),
    "no_bf16": ("fp32", "bf16"),
}
"""Older switch -> value of `precision` when it is on, and when it is off."""

TRUTHS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_PRECISIONS = {"no": "fp32", "false": "fp32", "none": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgb])", re.IGNORECASE)
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


def assigned(cls: type[BaseModel], texts: Iterable[str]) -> dict[str, Any]:
    """Parse texts such as `learning_rate=1e-4` into values for `cls`, whose validation still has to check them;
    ConfigError if a text has no `=`, or an older name stands for a field that `cls` lacks."""
    values = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"{shown(text)}: has no '='; write FIELD=VALUE, such as learning_rate=1e-4")
        field, parsed = translated_value(cls, name, value)
        values[field] = parsed
    return values


def translated_value(cls: type[BaseModel], name: str, text: str) -> tuple[str, Any]:
    """Return the field of `cls` that a name means, and the value that a text means for it, not yet validated;
    ConfigError if the name is an older one for a field that `cls` lacks."""
    field, translated_text = translated(cls, name, text)
    return field, None if translated_text is None else parse_field(translated_text, cls.model_fields.get(field))


def translated(cls: type[BaseModel], name: str, text: str | None) -> tuple[str, str | None]:
    """Return the field of `cls` that a name means, and its value in the field's own words.

    The name has dashes or underscores; `text` is None for a flag without a value.

    Raises:
        ConfigError: the name is an older one for a field that `cls` lacks, or in `REFUSED`.
    """
    name = name.replace("-", "_")
    fields = cls.model_fields
    if name in SWITCHES and name not in fields and "precision" in fields:
        on, off = SWITCHES[name]
        truth = TRUTHS.get(text.lower()) if text is not None else True
        return "precision", str(text) if truth is None else on if truth else off
    if name in REFUSED and name not in fields:
        raise ConfigError(f"{name}: {REFUSED[name]}; leave it out")
    field = name if name in fields else ALIASES.get(name, name)
    if field not in fields:
        if field != name:
            own = [known for known in cls.__annotations__ if known in fields]
            raise ConfigError(
                f"{name} means {field}, which {cls.__name__} does not have; of its own it has {', '.join(own)}"
            )
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
