"""The settings of a run: `Launch` (devices and processes) and `TrainConfig` (the training).

One declaration feeds the form, the flags, the validation and the docs. Configs are frozen pydantic models of plain
literals; each recipe inherits from `TrainConfig` once.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nbtools.errors import ConfigError, shown


def setting(
    default: Any = ..., *, help: str, unit: str = "", basic: bool = False, shapes: bool = False, **bounds: Any
) -> Any:
    """Declare a config field.

    Args:
        default: default value; without one the field is required.
        help: description in one sentence.
        unit: unit of a number.
        basic: whether the form shows it before "More settings".
        shapes: whether the value shapes the model, so that weights of another value do not fit.
        bounds: pydantic's `gt`, `ge`, `lt`, `le`.
    """
    return Field(
        default, description=help, json_schema_extra={"unit": unit, "basic": basic, "shapes": shapes}, **bounds
    )


class Settings(BaseModel):
    """A frozen pydantic model that rejects unknown names, wrong types, NaN and infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError("\n".join(_explained(item, type(self)) for item in error.errors())) from None

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some values changed."""
        return type(self)(**{**self.model_dump(), **changes})

    @classmethod
    def unit(cls, name: str) -> str:
        """Unit of the field `name`, or an empty string."""
        extra = cls.model_fields[name].json_schema_extra
        return str(extra["unit"]) if isinstance(extra, dict) else ""

    @classmethod
    def is_basic(cls, name: str) -> bool:
        """Whether the form shows the field `name` before "More settings"."""
        extra = cls.model_fields[name].json_schema_extra
        return bool(extra["basic"]) if isinstance(extra, dict) else False

    @classmethod
    def shapes_model(cls, name: str) -> bool:
        """Whether weights fit only a model with the same value of the field `name`."""
        extra = cls.model_fields[name].json_schema_extra
        return bool(extra["shapes"]) if isinstance(extra, dict) else False


def errors_by_field(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, str]:
    """Validate `values` and return one message per wrong field; `""` holds a message on several fields."""
    return {name: _message(item, cls) for name, item in _problems(cls, values).items()}


def complaints(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, str]:
    """Like `errors_by_field`, with messages that name the field, its value and the class."""
    return {name: _explained(item, cls) for name, item in _problems(cls, values).items()}


def _problems(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        BaseModel.__init__(cls.__new__(cls), **values)
    except ValidationError as error:
        return {str(item["loc"][0]) if item["loc"] else "": item for item in reversed(error.errors())}
    return {}


def _explained(item: Any, cls: type[Settings]) -> str:
    name = ".".join(str(part) for part in item["loc"])
    message = _message(item, cls)
    if not name:
        return f"{message} ({cls.__name__})"
    if item["type"] == "extra_forbidden":
        return f"{shown(name)}: {message}"
    given = "" if item["type"] == "missing" else f"={shown(item['input'])}"
    return f"{name}{given}: {message} ({cls.__name__})"


_BOUNDS = {
    "greater_than": "> {gt}",
    "greater_than_equal": ">= {ge}",
    "less_than": "< {lt}",
    "less_than_equal": "<= {le}",
}


def _message(item: Any, cls: type[Settings]) -> str:
    """Return what is allowed, by the field's declaration."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(str(item["loc"][0])[:100], cls.model_fields, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(cls.model_fields)}"
        return f"{cls.__name__} has no such field; {hint}"
    if kind in _BOUNDS:
        return "must be " + _BOUNDS[kind].format(**{key: _plain_number(value) for key, value in context.items()})
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return "is required"
    text = str(item["msg"])
    return text[0].lower() + text[1:]


def _plain_number(value: object) -> object:
    """Return 0 for 0.0: pydantic turns the bounds of float fields into floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


GPUIndex = Annotated[int, Field(ge=0, le=1023)]


class Launch(Settings):
    """Devices and processes of a launch, under torchrun's names."""

    nproc_per_node: int = setting(
        1, ge=1, le=1024, basic=True, unit="processes", help="Processes on this machine, one per GPU when it has any."
    )
    gpus: tuple[GPUIndex, ...] | None = setting(
        None,
        basic=True,
        help="GPU indices to use; () for CPU only; None for the first nproc_per_node GPUs, or the CPU without GPUs.",
    )
    omp_num_threads: int | None = setting(
        None,
        ge=1,
        le=4096,
        unit="threads",
        help="CPU threads per process; None for cores // nproc_per_node, at least 1.",
    )
    shutdown_timeout_s: int = setting(
        60, ge=1, le=86_400, unit="s", help="Time for the last checkpoint at a stop; processes are killed after it."
    )
    max_restarts: int = setting(
        0,
        ge=0,
        le=1000,
        unit="restarts",
        help="Automatic restarts of a failed run, each from its latest verified checkpoint.",
    )

    @model_validator(mode="after")
    def _one_process_per_gpu(self) -> Self:
        if self.gpus is not None:
            if len(set(self.gpus)) != len(self.gpus):
                raise ValueError(f"gpus={self.gpus}: each index may appear once")
            if self.gpus and self.nproc_per_node > len(self.gpus):
                raise ValueError(
                    f"nproc_per_node={self.nproc_per_node} with gpus={self.gpus}: at most one process per GPU; "
                    "lower nproc_per_node or name more GPUs"
                )
        return self


class TrainConfig(Settings):
    """Fields of every recipe: batch, schedule, precision, and intervals of logging, evaluation and checkpoints.

    Intervals and `max_steps` count optimizer steps; `batch_size` is per process everywhere.
    """

    batch_size: int = setting(
        32, ge=1, le=1_000_000, basic=True, unit="sequences per process", help="Sequences per process and forward pass."
    )
    gradient_accumulation_steps: int = setting(
        1, ge=1, le=1_000_000, basic=True, unit="forward passes", help="Forward passes per optimizer step."
    )
    epochs: int = setting(
        1, ge=1, le=1_000_000, basic=True, unit="epochs", help="Passes over the training data; max_steps ends earlier."
    )
    max_steps: int | None = setting(
        None,
        ge=1,
        le=1_000_000_000,
        basic=True,
        unit="steps",
        help="Number of optimizer steps; None to train all epochs.",
    )
    learning_rate: float = setting(1e-3, gt=0, le=10, basic=True, help="Peak learning rate of AdamW, after warm-up.")
    lr_schedule: Literal["linear", "cosine", "constant"] = setting(
        "linear", help="Decay to zero after warm-up; constant has none."
    )
    warmup_ratio: float = setting(0.1, ge=0, le=1, unit="of all steps", help="Share of the steps spent warming up.")
    weight_decay: float = setting(0.01, ge=0, help="AdamW's decoupled weight decay (not on biases and norms).")
    gradient_clip: float = setting(1.0, ge=0, help="Largest gradient norm; 0 turns clipping off.")
    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        basic=True,
        help="bf16 and fp16 mean autocast, fp16 with a loss scale; weights and optimizer stay fp32.",
    )
    gradient_checkpointing: bool = setting(
        False, help="Recompute activations in the backward pass: less memory, about a third more time."
    )
    seed: int = setting(0, ge=0, lt=2**32, help="Seeds weights, data order and masking.")
    deterministic: bool = setting(False, help="Use deterministic kernels only: reproducible on GPUs, but slower.")
    num_workers: int = setting(
        0, ge=0, le=64, unit="processes per rank", help="Data loading processes; 0 loads in the rank itself."
    )
    log_every: int = setting(10, ge=1, le=1_000_000_000, unit="steps", help="Steps between metric rows.")
    eval_every: int = setting(
        100, ge=1, le=1_000_000_000, unit="steps", help="Steps between evaluations; one more at the end."
    )
    checkpoint_every: int = setting(
        200,
        ge=1,
        le=1_000_000_000,
        unit="steps",
        help="Steps between checkpoints; one more at a stop and at the end.",
    )
    checkpoint_epochs: bool = setting(True, help="Also save a checkpoint at the end of each epoch.")
    keep_last: int = setting(3, ge=1, le=1_000_000, unit="checkpoints", help="Number of newest checkpoints to keep.")
    keep_best: int = setting(
        1,
        ge=0,
        le=1_000_000,
        unit="checkpoints",
        help="Number of further checkpoints to keep: those saved at an evaluation with the lowest eval/loss.",
    )
    save_dir: str | None = setting(
        None, help="Folder for a copy of the final model, history and plot; the run directory always has them."
    )
    report_to: Literal["none", "tensorboard"] = setting(
        "none", help="tensorboard also writes the metrics as TensorBoard events into the run directory."
    )
    profile_steps: int = setting(
        0,
        ge=0,
        le=1000,
        unit="steps",
        help="Number of steps to profile, after the first five: a trace for Perfetto and a table.",
    )
    collective_timeout_min: int = setting(
        10,
        ge=1,
        le=1440,
        unit="minutes",
        help="Time that ranks wait for one another in a collective before the run fails.",
    )

    def effective_batch(self, world_size: int) -> int:
        """Return the samples per optimizer step: per process x accumulated x processes."""
        return self.batch_size * self.gradient_accumulation_steps * world_size

    @field_validator("*", mode="before")
    @classmethod
    def _strict_numbers(cls, value: object, info: Any) -> object:
        # pydantic would accept True for 1 and "32" for 32
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and annotation is not bool:
            raise ValueError(f"{value} is a truth value, not a number or text")
        if isinstance(value, str) and annotation in (int, float, bool, int | None, float | None):
            raise ValueError("is text; give a number or truth value without quotes")
        return value
