"""The settings of a run: `Launch` (devices and processes) and `TrainConfig` (the training).

Configs are models of plain literals; each recipe inherits from `TrainConfig` once.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nbtools.settings import Settings, may_be_path, setting

_GRES = r"(?:[A-Za-z0-9_.-]+:)?[0-9]{1,4}"
_TIME_LIMIT = r"[0-9]{1,6}(?::[0-9]{1,2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(?::[0-9]{1,2}){0,2}"
_MEMORY = r"[0-9]{1,9}[KMGT]?"
_WORDS = r"[A-Za-z0-9_.,+:@-]{1,200}"
_FEATURES = r"[A-Za-z0-9_.,+:@&|*()\[\]-]{1,200}"
"""Characters allowed in an `#SBATCH` value: none has a meaning for bash or sbatch."""
_LIMIT = r"\s*(.*\S)\s*([<>])\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?)\s*"


class Slurm(Settings):
    """Slurm settings of a run, named as in sbatch; None takes the site's default."""

    partition: str | None = setting(None, "Partition; None for the default one.", basic=True)
    account: str | None = setting(None, "Account that the job is charged to.", basic=True)
    qos: str | None = setting(None, "Quality of service.")
    time_limit: str | None = setting(
        None,
        "Largest duration, as 30 (minutes), 8:00:00 or 2-12:00:00 (days-hours); None for the partition's.",
        basic=True,
    )
    gpus_per_node: int | str | None = setting(
        None,
        "GPUs on each node, also with their type, as a100:4; 0 for the CPU; None for nproc_per_node.",
        "GPUs per node",
        basic=True,
    )
    cpus_per_task: int | None = setting(
        None, "CPU cores on each node, which has one task: torchrun.", "cores per node", ge=1, le=4096
    )
    mem: str | None = setting(None, "Memory on each node, as 64G; 0 for all.", "per node")
    constraint: str | None = setting(None, "Features that the nodes must have, as a100&nvlink.")
    preamble: str = setting("", "Lines of bash before the training, such as module load cuda/12.4.")
    requeue: bool = setting(
        True, "Continue from the latest verified checkpoint as the next attempt after a preemption or the time limit."
    )

    @field_validator("partition", "account", "qos", "time_limit", "gpus_per_node", "mem", "constraint")
    @classmethod
    def _fits_a_line(cls, value: object, info: Any) -> object:
        patterns = {
            "time_limit": (_TIME_LIMIT, "must be minutes (30), hours:minutes:seconds (8:00:00) or days-hours (2-12)"),
            "gpus_per_node": (_GRES, "must be a number, or a type and a number such as a100:4"),
            "mem": (_MEMORY, "must be a number and a unit, such as 64G"),
            "constraint": (_FEATURES, "must be features joined by & or |"),
        }
        pattern, allowed = patterns.get(info.field_name, (_WORDS, "must be one word of letters, digits and _.,+:@-"))
        if value is not None and not re.fullmatch(pattern, str(value)):
            raise ValueError(allowed)
        return value

    @field_validator("preamble")
    @classmethod
    def _is_text(cls, value: str) -> str:
        if "\0" in value or "\r" in value or len(value) > _LONGEST_PREAMBLE:
            raise ValueError(f"must be lines of bash, without carriage returns, at most {_LONGEST_PREAMBLE} characters")
        return value

    def num_gpus(self, nproc_per_node: int | Literal["gpu"]) -> int | None:
        """Return the number of GPUs per node; None if neither setting has it."""
        if self.gpus_per_node is None:
            return None if nproc_per_node == "gpu" else nproc_per_node
        return int(str(self.gpus_per_node).rpartition(":")[2])


class StopOn(Settings):
    """Conditions on which the supervisor stops a run as the Stop button does; True stands for the usual value."""

    nan: bool = setting(False, "A logged loss that is NaN or infinite.")
    no_improvement: int | None = setting(
        None,
        "Evaluations in a row without a better value of the metric that chooses the best checkpoint; True for 20.",
        "evaluations",
        ge=1,
        le=1_000_000,
    )
    loss_above: float | None = setting(
        None,
        "Training loss, the median of five rows, above this multiple of its median over the last 1,000; True for 10.",
        "x its median",
        gt=1,
        le=1_000_000,
    )
    time_budget_h: float | None = setting(None, "Time since the start of the processes.", "hours", gt=0, le=100_000)

    @field_validator("no_improvement", "loss_above", mode="before")
    @classmethod
    def _usual_value(cls, value: object, info: Any) -> object:
        usual = _USUAL[info.field_name] if value else None
        return usual if isinstance(value, bool) else value


class NotifyOn(StopOn):
    """Conditions on which a notice is sent, at most one of a kind per hour: those of `StopOn`, and further ones."""

    ended: bool = setting(False, "The end of the run, in any state.")
    failed: bool = setting(False, "The failure of the run, after its last restart.")
    stalled_min: float | None = setting(
        None, "No new step, or no output without known steps, for so long.", "minutes", gt=0, le=100_000
    )
    values: tuple[str, ...] = setting((), "Limits of metrics, such as eval/loss < 0.5 or train/grad_norm > 100.")

    @field_validator("values")
    @classmethod
    def _are_limits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = [re.fullmatch(_LIMIT, text) for text in value]
        if None in found:
            raise ValueError("each must be METRIC < NUMBER or METRIC > NUMBER, such as eval/loss < 0.5")
        return tuple(" ".join(limit.groups()) for limit in found if limit)


_USUAL = {"no_improvement": 20, "loss_above": 10.0}
"""Values that gave no false alarm in healthy runs of the recipes."""
_LONGEST_PREAMBLE = 10_000
COMMANDS = ("on_end", "notify_with")
"""Fields of `Launch` that are the words of a command, which no run directory has."""
PLACEHOLDERS = ("{sentence}", "{run}", "{state}")
"""Words of commands that are replaced."""
_MOST_PROCESSES = 1024
_MOST_MACHINES = 1024
GPUIndex = Annotated[int, Field(ge=0, le=1023)]


class Launch(Settings):
    """Devices and processes of a launch, under torchrun's names."""

    nproc_per_node: int | Literal["gpu"] = setting(
        1,
        "Processes on this machine, or on each node of a Slurm job, one per GPU when it has any; gpu for one per GPU "
        "of the machine that launches.",
        "processes",
        basic=True,
    )
    gpus: tuple[GPUIndex, ...] | None = setting(
        None,
        "GPU indices to use; () for CPU only; None for the first nproc_per_node GPUs, or the CPU without GPUs.",
        basic=True,
    )
    nnodes: int = setting(
        1,
        "Machines, or nodes of a Slurm job, with nproc_per_node processes each; without Slurm the launch tells the "
        "command that each further one needs.",
        "machines",
        ge=1,
        le=_MOST_MACHINES,
    )
    cluster: Slurm | None = setting(
        None, "Slurm(...) submits the run as a job of this user; None runs it on this machine.", basic=True
    )
    torchrun: bool | None = setting(
        None,
        "True starts the processes with torchrun; False starts the program once, as python does, with the GPUs of "
        "nproc_per_node processes; None for torchrun, but for a program that starts its own processes.",
    )
    python: str | None = setting(
        None,
        "Python executable, or folder of the environment, of the processes; None for the active environment, else the "
        "one beside the script, else that of nbtools. A recipe needs nbtools in it.",
    )
    omp_num_threads: int | None = setting(
        None, "CPU threads per process; None for cores // nproc_per_node, at least 1.", "threads", ge=1, le=4096
    )
    shutdown_timeout_s: int = setting(
        60, "Time for the last checkpoint at a stop; processes are killed after it.", "s", ge=1, le=86_400
    )
    max_restarts: int = setting(
        0, "Automatic restarts of a failed run, each from its latest verified checkpoint.", "restarts", ge=0, le=1000
    )

    stop_on: StopOn | None = setting(
        None, "StopOn(...): conditions on which the run is stopped, as by the Stop button."
    )
    on_end: tuple[str, ...] = setting(
        (),
        "Program and arguments started at the end of the run, without a shell; {sentence}, {run} and {state} as "
        "arguments of their own are replaced. A fork or a resumed run has none unless given one.",
    )

    notify_on: NotifyOn | None = setting(
        None, "Conditions on which a notice is sent to the address in ~/.config/nbtools/notify.json, at most hourly."
    )
    notify_with: tuple[str, ...] = setting((), "Program and arguments started for each notice, as by on_end.")

    @field_validator("stop_on", "notify_on", mode="before")
    @classmethod
    def _conditions(cls, value: object, info: Any) -> object:
        kind = StopOn if info.field_name == "stop_on" else NotifyOn
        return kind(**value) if isinstance(value, dict) else value  # whose messages name the condition

    @field_validator(*COMMANDS)
    @classmethod
    def _is_a_command(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if words and (not words[0].strip() or words[0] in PLACEHOLDERS):
            raise ValueError("must begin with a program, such as ('notify-send', '{sentence}')")
        for word in words:
            if "\0" in word:
                raise ValueError("must not contain a null character")
            if found := next((name for name in PLACEHOLDERS if name in word and name != word), None):
                raise ValueError(f"{found} must be an argument of its own: a shell would execute a part of a message")
        return words

    @field_validator("nproc_per_node", mode="before")
    @classmethod
    def _a_number_or_gpu(cls, value: object) -> object:
        # Here, since pydantic reports every member of a union.
        if value == "gpu":
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be a number of processes, or gpu for one per GPU")
        if not 1 <= value <= _MOST_PROCESSES:
            raise ValueError("must be >= 1" if value < 1 else f"must be <= {_MOST_PROCESSES}")
        return value

    def resolved(self, num_gpus: int) -> Self:
        """Return the settings for a machine with `num_gpus` GPUs: `gpu` becomes a number, one process on the CPU."""
        if self.nproc_per_node != "gpu":
            return self
        if self.cluster is not None:
            return self.replace(nproc_per_node=max(1, self.cluster.num_gpus("gpu") or 0))
        return self.replace(nproc_per_node=max(1, num_gpus if self.gpus is None else len(self.gpus)))

    @property
    def num_processes(self) -> int:
        """Processes on this machine, of resolved settings."""
        assert self.nproc_per_node != "gpu", "resolve the settings on a machine first"
        return self.nproc_per_node

    @property
    def world_size(self) -> int:
        """Processes on all machines, of resolved settings."""
        return self.nnodes * self.num_processes

    @field_validator("python")
    @classmethod
    def _is_a_path(cls, value: str | None) -> str | None:
        if value is not None and not may_be_path(value):
            raise ValueError("must be the path of a Python executable or of an environment, such as .venv")
        return value

    @model_validator(mode="after")
    def _devices_fit_together(self) -> Self:
        if self.torchrun is False and self.nnodes > 1:
            raise ValueError(
                f"torchrun=False with nnodes={self.nnodes}: only torchrun joins the processes of several machines; set "
                "torchrun=None or nnodes=1"
            )
        if self.nnodes > 1 and self.max_restarts:
            raise ValueError(
                f"max_restarts={self.max_restarts} with nnodes={self.nnodes}: a restart reaches this machine only; set "
                "max_restarts=0, and resume the run when it has failed"
            )
        if self.gpus is not None and self.cluster is None:
            if len(set(self.gpus)) != len(self.gpus):
                raise ValueError(f"gpus={self.gpus}: each index may appear once")
            if self.gpus and self.nproc_per_node != "gpu" and self.nproc_per_node > len(self.gpus):
                raise ValueError(
                    f"nproc_per_node={self.nproc_per_node} with gpus={self.gpus}: at most one process per GPU; "
                    "lower nproc_per_node or name more GPUs"
                )
        if self.cluster is None:
            return self
        count = self.cluster.num_gpus(self.nproc_per_node)
        if words := self.on_end or self.notify_with:
            name = "on_end" if self.on_end else "notify_with"
            raise ValueError(
                f"{name}={words} with cluster=Slurm(...): it is for runs on this machine; set {name}=(), and wait with "
                "nbtools wait RUN"
            )
        if self.gpus is not None:
            raise ValueError(
                f"gpus={self.gpus} with cluster=Slurm(...): Slurm chooses the devices; set gpus=None and "
                "gpus_per_node, which is 0 for the CPU"
            )
        if count is None:
            raise ValueError(
                "nproc_per_node='gpu' with cluster=Slurm(...): the machine that submits does not know the GPUs of a "
                "node; give gpus_per_node"
            )
        if count and self.nproc_per_node != "gpu" and self.nproc_per_node > count:
            raise ValueError(
                f"nproc_per_node={self.nproc_per_node} with gpus_per_node={self.cluster.gpus_per_node!r}: at most one "
                "process per GPU"
            )
        return self


def beta(default: float, of: str) -> Any:
    """Declare a decay of AdamW; recipes have their own defaults."""
    return setting(default, f"AdamW's decay per step of the mean {of}.", ge=0, lt=1)


def rate(text: str, *, basic: bool = False) -> Any:
    """Declare a learning rate."""
    return setting(1e-3, text, gt=0, le=10, basic=basic, steerable=True)


def num_steps(default: int | None, text: str, *, basic: bool = False) -> Any:
    """Declare a number of steps."""
    return setting(default, text, "steps", ge=1, le=1_000_000_000, basic=basic, steerable=True)


def num_evaluated_samples(what: str, unit: str) -> Any:
    """Declare `eval_samples`; a run from before that field existed measured all."""
    text = f"Held-out {what} that an evaluation measures, the same every time; None for all."
    return setting(2000, text, unit, ge=1, le=1_000_000_000, before=None)


class TrainConfig(Settings):
    """Fields of every recipe: batch, schedule, precision, and intervals of logging, evaluation and checkpoints.

    Intervals and `max_steps` count optimizer steps; `batch_size` is per process everywhere.
    """

    batch_size: int = setting(
        32, "Sequences per process and forward pass.", "sequences per process", ge=1, le=1_000_000, basic=True
    )
    gradient_accumulation_steps: int = setting(
        1, "Forward passes per optimizer step.", "forward passes", ge=1, le=1_000_000, basic=True
    )
    epochs: int = setting(
        1, "Passes over the training data; max_steps ends earlier.", "epochs", ge=1, le=1_000_000, basic=True
    )
    max_steps: int | None = num_steps(None, "Number of optimizer steps; None to train all epochs.", basic=True)
    learning_rate: float = rate("Peak learning rate of AdamW, after warm-up.", basic=True)
    lr_schedule: Literal["linear", "cosine", "wsd", "constant"] = setting(
        "linear", "Decay after warm-up; wsd is constant, then decays linearly over decay_ratio; constant has none."
    )
    decay_ratio: float = setting(0.1, "Share of the steps in which wsd decays, at the end.", "of all steps", gt=0, le=1)
    min_learning_rate: float = setting(0.0, "Learning rate to which the schedule decays.", ge=0)
    warmup_ratio: float = setting(0.1, "Share of the steps spent warming up.", "of all steps", ge=0, le=1)
    warmup_steps: int | None = setting(
        None, "Steps spent warming up, whatever warmup_ratio is; None for that.", "steps", ge=0
    )
    ema_decay: float = setting(
        0.0, "Decay of the weights' averages for evaluations and saved models; 0 for none.", ge=0, lt=1, steerable=True
    )
    weight_decay: float = setting(0.01, "AdamW's decoupled weight decay (not on biases and norms).", ge=0)
    adam_beta1: float = beta(0.9, "gradient")
    adam_beta2: float = beta(0.999, "squared gradient")
    gradient_clip: float = setting(1.0, "Largest gradient norm; 0 turns clipping off.", ge=0)
    max_skipped_steps: int = setting(
        20,
        "Consecutive steps skipped for a non-finite gradient norm after which the run fails; a skipped step changes "
        "no weight.",
        "steps",
        ge=1,
        le=1_000_000,
    )
    test_fraction: float = setting(
        0.5,
        "Share of the held-out data that the best checkpoint is tested on, once, at the end; the rest is for the "
        "evaluations that choose it. 0 for no test.",
        "of the held-out data",
        ge=0,
        lt=1,
        before=0.0,
    )
    precision: Literal["auto", "bf16", "fp16", "tf32", "fp32"] = setting(
        "auto",
        "auto is bf16 on GPUs that have it (compute capability 8.0 or above), else fp32. bf16 and fp16 mean autocast, "
        "fp16 with a loss scale; weights and optimizer stay fp32. tf32 is fp32 with the operands of GPU products "
        "rounded to TF32, as in all but fp32.",
        basic=True,
        before="fp32",
    )
    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp",
        "ddp keeps the whole model on every GPU and averages gradients; fsdp (FSDP2) divides weights, gradients and "
        "AdamW's moments among all processes, for a model that is larger than a GPU.",
        before="ddp",
    )
    gradient_checkpointing: bool = setting(
        False, "Recompute activations in the backward pass: less memory, about a third more time."
    )
    compile: bool = setting(
        False, "Compile the model's forward and backward pass (torch.compile): the first steps take minutes longer."
    )
    seed: int = setting(0, "Seeds weights, data order and masking.", ge=0, lt=2**32)
    deterministic: bool = setting(False, "Use deterministic kernels only: reproducible on GPUs, but slower.")
    num_workers: int = setting(
        0, "Data loading processes; 0 loads in the rank itself.", "processes per rank", ge=0, le=64
    )
    log_every: int = num_steps(10, "Steps between metric rows.")
    eval_every: int = num_steps(100, "Steps between evaluations; one more at the end.")
    checkpoint_every: int = num_steps(200, "Steps between checkpoints; one more at a stop and at the end.")
    checkpoint_epochs: bool = setting(True, "Also save a checkpoint at the end of each epoch.")
    keep_last: int = setting(3, "Number of newest checkpoints to keep.", "checkpoints", ge=1, le=1_000_000)
    keep_best: int = setting(
        1,
        "Number of further checkpoints to keep: the best of those saved at an evaluation (see the recipes' README).",
        "checkpoints",
        ge=0,
        le=1_000_000,
    )
    save_dir: str | None = setting(
        None, "Folder for a copy of the final model, history and plot; the run directory always has them."
    )
    report_to: Literal["none", "tensorboard", "wandb", "tensorboard,wandb"] = setting(
        "none",
        "Where rank 0 also writes the metrics: as TensorBoard events into the run directory, or to Weights & Biases, "
        "whose WANDB_... variables hold.",
    )
    profile_steps: int = setting(
        0, "Number of steps to profile, after the first five: a trace for Perfetto and a table.", "steps", ge=0, le=1000
    )
    collective_timeout_min: int = setting(
        10, "Time that ranks wait for one another in a collective before the run fails.", "minutes", ge=1, le=1440
    )

    @model_validator(mode="after")
    def _floor_below_peak(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate={self.min_learning_rate}: is above learning_rate={self.learning_rate}")
        return self

    def uncapped(self, changes: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
        """Return the changes and notes on them: `epochs` without `max_steps` lifts the cap of this config.

        The cap would otherwise end the training before the epochs that were asked for.
        """
        if self.max_steps is None or "epochs" not in changes or "max_steps" in changes:
            return dict(changes), ()
        note = f"max_steps={self.max_steps} is lifted, as epochs={changes['epochs']} is given without it"
        return {**changes, "max_steps": None}, (note,)

    def num_evaluated(self, num_held_out: int) -> int:
        """Return how many of the held-out samples an evaluation measures: `eval_samples`, where a recipe has it."""
        return min(getattr(self, "eval_samples", None) or num_held_out, num_held_out)

    def only(self, *names: str) -> Self:
        """Return a config with the values of these fields, and the defaults of all others."""
        return type(self)(**{name: getattr(self, name) for name in names})

    def effective_batch(self, world_size: int) -> int:
        """Return the samples per optimizer step: per process x accumulated x processes."""
        return self.batch_size * self.gradient_accumulation_steps * world_size
