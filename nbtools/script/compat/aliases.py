"""Field names and values of older programs: one table for script flags, `--set` and `nbtools new --from-yaml`.

An unknown name is returned unchanged, so that the config's validation can report it.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from nbtools.errors import ConfigError, shown
from nbtools.script.field import Field, fields_of
from nbtools.script.values import FLAGS, TRUTHS, from_text
from nbtools.settings import Settings

_OLDER_NAMES = {
    "dataset": "data_dir data_path train_file", "val_data": "validation_file", "validation_share": "share_val",
    "text_col": "input_col text_column text_column_name", "lang_col": "language_col",
    "target_cols": "label_column label_column_name", "skip_unlabelled": "drop_bad_labels",
    "max_samples": "max_train_samples", "model_name": "model_name_or_path", "tokenizer": "tokenizer_name",
    "batch_size": "train_batch_size batch_size_per_gpu per_device_train_batch_size",
    "gradient_accumulation_steps": "accumulation_steps", "epochs": "n_epochs num_epochs num_train_epochs",
    "max_steps": "train_timesteps", "learning_rate": "lr", "lr_schedule": "lr_scheduler_type",
    "warmup_steps": "num_warmup_steps",
    "precision": "mixed_precision", "gradient_clip": "max_grad_norm", "compile": "torch_compile",
    "num_workers": "dataloader_num_workers", "save_dir": "save_path output_dir",
    "log_every": "log_interval logging_steps", "eval_every": "eval_interval eval_steps",
    "checkpoint_every": "checkpoint_freq save_interval save_steps", "keep_last": "save_total_limit",
    "hidden_size": "tf_n_embd n_embd n_embed", "num_layers": "tf_n_layer n_layer n_layers",
    "num_heads": "tf_n_head n_head n_heads", "dropout": "tf_dropout", "mask_probability": "mlm_probability",
    "sequence_length": "context_len context_length n_transit max_agent_tokens max_len max_length max_seq_len "
    "max_seq_length block_size",
    "augmentation": "augmentation_prob", "unknown_lang": "unk_lang_prob", "eval_draws": "eval_samples",
    "eval_batch_size": "test_batch_size per_device_eval_batch_size", "eval_samples": "max_eval_samples",
    "min_chars": "min_story_length", "max_chars": "max_story_length",
}  # fmt: skip
ALIASES: Mapping[str, str] = {older: field for field, names in _OLDER_NAMES.items() for older in names.split()}
"""Field of each older name."""

IGNORED: Mapping[str, str] = {
    "local_rank": "the launcher's environment says which process this is",
    "distributed": "the number of processes is read from the environment",
    "use_compressed_context": "compress_interval says it",
    "save_checkpoints": "checkpoints are always saved, every checkpoint_every steps and at each epoch's end",
    "pin_memory": "batches for a GPU always are in pinned memory",
    **dict.fromkeys(("do_train", "do_eval"), "a script trains and evaluates"),
    "overwrite_output_dir": "each run has a directory of its own",
    "preprocessing_num_workers": "it changes no result",
    "pad_to_max_length": "a batch is as long as its sequences",
    "ddp_find_unused_parameters": "it follows from the model",
    "load_best_model_at_end": "the best checkpoint is kept (keep_best), and tested at the end",
}
"""Arguments of older launchers and programs that have no effect, and the reason."""

_REASONS = {
    "packing": "is no choice: documents fill their sequences without padding; pairs share none, since they would "
    "attend to each other, which is another loss, and those of similar length share a batch instead",
    "language": "has no field: a column of the data has the language of each text (lang_col), unk without one",
    "freeze_encoder": "has no field: adapter='lora' leaves the pretrained weights as they are and trains a part beside",
    "only_encoder": "has no field: a model's folder in model_name gives the encoder alone",
    "use_within_block_sep": "has no field: codes are spelled character by character, commas included",
    "initial_checkpoint resume_from_checkpoint": "is no value of the config: give it to the script as --resume-from "
    "FILE, or name a model's folder in model_name",
    "num_transformations": "has no field: an augmented text has three random edits",
    "decoder_dim_feedforward": "has no field: layers of the decoder are 4 times as wide inside as outside",
    "wandb_project wandb_project_name": "has no field: the variable WANDB_PROJECT names the project",
    "dataset_name dataset_config_name": "is written behind dataset: hf/OWNER/NAME:CONFIG,split=train",
    "test_file": "has no field: the test has test_fraction of the held-out data",
    "validation_split_percentage": "has no field: validation_share, where a recipe has it, is a share of 1",
    "line_by_line": "is no choice: a table gives a document per row, and a text file is cut into sections",
    "config_name config_overrides model_type": "has no field: hidden_size, num_layers and num_heads shape a new model, "
    "model_name names a trained one",
    "do_predict": "has no field: nbtools predict RUN uses the trained model",
    "optim adam_epsilon": "has no field: the optimizer is AdamW, with an epsilon of 1e-8",
    "evaluation_strategy eval_strategy save_strategy logging_strategy": "has no field: log_every, eval_every and "
    "checkpoint_every count steps, and checkpoint_epochs saves at each epoch's end",
    "run_name": "has no field: a run has the name of its script",
    "push_to_hub": "has no field: nbtools export writes the model's folder, which can be uploaded",
}
REFUSED: Mapping[str, str] = {name: reason for names, reason in _REASONS.items() for name in names.split()}
"""Names of other programs that have no field, and the reason."""

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
        ConfigError: the name is an older one for a field that `cls` lacks, or in `REFUSED`.
    """
    name = name.replace("-", "_")
    fields = cls.model_fields
    if name in SWITCHES and name not in fields and SWITCHES[name][0] in fields:
        field, on, off = SWITCHES[name]
        truth = TRUTHS.get(text.lower()) if text is not None else True
        return field, str(text) if truth is None else on if truth else off
    beside, why = REFUSED_BESIDE.get(name, ("", ""))
    why = why if beside in fields else REFUSED.get(name, "")
    if why and name not in fields:
        raise ConfigError(f"{name}: {why}; leave it out")
    field = name if name in fields else ALIASES.get(name, name)
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
