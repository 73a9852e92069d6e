"""Size of a training, computed from the config alone: weights, memory and checkpoints, and what does not fit."""

import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from nbtools.config import Launch, TrainConfig
from nbtools.errors import plural
from nbtools.launcher.checks.findings import Finding, batch, ok, problem, size, warn
from nbtools.machine.devices import Device
from nbtools.recipes import lora, recipe_of
from nbtools.recipes.named_model import models_of

_BF16_SINCE = (8, 0)
_BATCHES_AHEAD = 2
"""Batches that a DataLoader worker has ready."""
_TOKEN_BYTES = 3 * 8
"""Bytes per token of a batch: inputs, labels and one more tensor of 64-bit integers."""


def precision_of(config: TrainConfig, gpus: Sequence[Device] | None) -> str:
    """Return the precision of a training on `gpus`, or on the CPU without any, as its ranks will choose it for `auto`.

    It stays `auto` if the GPUs (None) or the compute capability of one are unknown.
    """
    capabilities = [None] if gpus is None else [gpu.compute_capability for gpu in gpus]
    if config.precision != "auto" or None in capabilities:
        return config.precision
    return "bf16" if capabilities and all(found and found >= _BF16_SINCE for found in capabilities) else "fp32"


def num_trainable_parameters(config: TrainConfig, vocab_size: int | None = None) -> int | None:
    """Return the number of trained weights; None if that of a pretrained model is unknown.

    `vocab_size` is the size of the trained tokenizer; None takes the config's upper bound.
    """
    if lora.is_adapted(config):
        sizes = _adapter_sizes(config)
        return None if sizes is None else sizes.num_trained
    return recipe_of(config).num_parameters(config, vocab_size)


def _adapter_sizes(config: TrainConfig) -> lora.AdapterSizes | None:
    """Return the sizes of a training with an adapter; weights that the recipe adds to the models train whole."""
    models, total = models_of(config), recipe_of(config).num_parameters(config, None)
    sizes = [model.adapter_sizes(config) for model in models or ()]
    if total is None or models is None or None in sizes:
        return None
    known = [each for each in sizes if each is not None]
    trained, linear, others = (sum(part) for part in zip(*map(astuple, known), strict=True))
    return lora.AdapterSizes(trained + total - sum(model.num_parameters for model in models), linear, others)


def training_bytes(config: TrainConfig, precision: str = "") -> int | None:
    """Return the memory per process of weights, gradients and AdamW's two moments, without activations.

    All are fp32 at every precision and DDP keeps a copy on every rank: 16 bytes per weight, and 4 for each further
    value, a moving average or a starting weight, which count for both models of the GAN. The frozen weights under an
    adapter have neither gradients nor moments, and are held at `precision` (the config's by default) where autocast
    computes with them. None for a pretrained model of unknown size.
    """
    if lora.is_adapted(config):
        sizes = _adapter_sizes(config)
        copies = 0 if sizes is None else 4 * sizes.num_trained * _num_copies(config)
        return None if sizes is None else sizes.num_bytes(precision or config.precision) + copies
    parameters = num_trainable_parameters(config)
    return None if parameters is None else (16 + 4 * _num_copies(config)) * parameters


def _num_copies(config: TrainConfig) -> int:
    return bool(config.ema_decay) + getattr(config, "kl_to_start", False)


def sharded_bytes(config: TrainConfig, world_size: int, precision: str) -> int | None:
    """Return the memory per process that `training_bytes` is with strategy="fsdp"; None if the blocks are not known.

    A part of weights, gradients and moments, and what is gathered in the type of the computation: all weights outside
    the blocks, of which the backward pass has the whole gradient and its fp32 copy in the end unless an adapter leaves
    them frozen, and two blocks.
    """
    gathered, divided = _num_gathered(config), training_bytes(config, precision)
    if gathered is None or divided is None:
        return None
    inner = 2 if precision in ("bf16", "fp16") else 4
    outside, block = gathered
    gradients = 0 if lora.is_adapted(config) else (inner + 4) * outside
    return divided // world_size + inner * outside + gradients + 2 * inner * block


def _num_gathered(config: TrainConfig) -> tuple[int, int] | None:
    """Return the weights outside the blocks, and those of the largest block; CANINE's outer blocks count as outside."""
    models, count = models_of(config), recipe_of(config).num_parameters
    if models is None or (total := count(config, None)) is None:
        return None
    if models:
        return total - sum(model.num_in_blocks for model in models), max(model.num_in_block for model in models)
    num_layers: int = getattr(config, "num_layers")  # noqa: B009 - of every recipe
    num_models = 2 if hasattr(config, "judge_name") else 1
    deeper = count(config.model_copy(update={"num_layers": num_layers + 1}), None) or total
    return total - num_layers * (deeper - total), (deeper - total) // num_models


def activation_bytes(config: TrainConfig, precision: str) -> int | None:
    """Return about the memory per process of activations and autocast's copies of weights; None if unknown.

    A precision that is not known yet counts as fp32.
    """
    kept, parameters = recipe_of(config).activation_bytes(config, precision), num_trainable_parameters(config)
    if kept is None or parameters is None:
        return None
    copies = 2 * parameters if precision in ("bf16", "fp16") and config.strategy == "ddp" else 0
    return round(kept) + copies


@dataclass(frozen=True)
class Memory:
    """About the memory per process of a training step, in bytes."""

    state: int
    """Weights, gradients and AdamW's moments, and what FSDP gathers of them."""
    activations: int | None  # if known
    late_gradients: int = 0
    """Gradients, among `state`, that the backward pass allocates while it frees activations."""

    @property
    def total(self) -> int:
        """The peak: the activations that are in the way of late gradients take no memory of their own."""
        return self.state + max((self.activations or 0) - self.late_gradients, 0)


def memory_of(config: TrainConfig, world_size: int, precision: str) -> Memory | None:
    """Return the memory per process under the config's strategy; None if the model is unknown.

    On several ranks DDP holds all gradients all the time, in its buckets, as accumulation over passes does. Otherwise
    each step allocates them while it frees activations. Of shards it is the least: where there is more memory, nodes
    have replicas, and gradients stay whole over accumulated passes. On an NVIDIA H200 the peaks of seven trainings by
    one process were within 4 % (and 0.1 GB) of the figure, when all logits of a batch were computed at once.
    """
    is_sharded = config.strategy == "fsdp"
    state = sharded_bytes(config, world_size, precision) if is_sharded else training_bytes(config, precision)
    if state is None:
        return None
    is_late = world_size == 1 and not is_sharded and config.gradient_accumulation_steps == 1
    late = 4 * (num_trainable_parameters(config) or 0) if is_late else 0
    return Memory(state, activation_bytes(config, precision), late)


def memory_in_words(config: TrainConfig, world_size: int, precision: str, available: int | None = None) -> str:
    """Return the memory per process under each strategy and, of a named model, with LoRA; empty if it is unknown.

    With `available` bytes, each says whether it fits.
    """
    found = {}
    for adapter in ("none", "lora") if getattr(config, "model_name", None) else (None,):
        for strategy in ("ddp", "fsdp") if world_size > 1 else (config.strategy,):
            changes = {"strategy": strategy} | ({} if adapter is None else {"adapter": adapter})
            memory = memory_of(config.model_copy(update=changes), world_size, precision)
            if memory is not None:
                fits = "" if available is None else " (fits)" if memory.total <= available else " (too much)"
                found[strategy + (" with LoRA" if adapter == "lora" else "")] = size(memory.total) + fits
    return ", ".join(f"{name} {text}" for name, text in found.items())


def smallest_change(config: TrainConfig, world_size: int, precision: str, available: int) -> str:
    """Return the changes of the config with which a step fits into `available` bytes; empty if there are none."""
    halves = [2**k for k in range(20) if config.batch_size % 2**k == 0]
    passes = config.gradient_accumulation_steps
    groups: list[list[dict[str, Any]]] = [
        [{}, {"adapter": "lora"}] if getattr(config, "model_name", None) else [{}],
        [{}, {"strategy": "fsdp"}] if world_size > 1 else [{}],
        [{"batch_size": config.batch_size // n, "gradient_accumulation_steps": passes * n} for n in halves],
        [{}, {"gradient_checkpointing": True}],
    ]
    for parts in itertools.product(*groups):
        changes = {name: value for part in parts for name, value in part.items() if value != getattr(config, name)}
        memory = memory_of(config.model_copy(update=changes), world_size, precision)
        if memory is not None and memory.total <= available:
            words = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            return f"set {words}, with which a process takes about {size(memory.total)}"
    return ""


def checkpoint_bytes(config: TrainConfig) -> int | None:
    """Return the approximate size of a checkpoint; None for a pretrained model.

    Weights, their copies and AdamW's two moments are fp32 at every precision: 4 bytes per weight each. The rest
    (random state, tokenizer) is about ten kilobytes per rank.
    """
    parameters = num_trainable_parameters(config)
    return None if parameters is None else (12 + 4 * _num_copies(config)) * parameters


def num_checkpoints_kept(config: TrainConfig) -> int:
    """Return the largest number of checkpoints on disk at once: the newest, the best, and the one being written."""
    kept = config.keep_last + config.keep_best + 1
    if config.max_steps is None:
        return kept
    at_epochs = min(config.epochs, config.max_steps) if config.checkpoint_epochs else 0
    return min(kept, -(-config.max_steps // config.checkpoint_every) + at_epochs)


def check_size(config: TrainConfig, world_size: int, gpus: Sequence[Device] | None) -> list[Finding]:
    """Report batch, parameters and memory on `gpus` (None: unknown); a problem if one is too small for weights."""
    samples, product = batch(config, world_size)
    parameters, precision = num_trainable_parameters(config), precision_of(config, gpus)
    about = "about " if getattr(config, "model_name", None) else ""  # a recipe may add or leave out a head
    found = [
        ok("batch", f"{plural(samples, 'sample')} per step: {product}"),
        ok(
            "parameters",
            "known once the model is loaded"
            if parameters is None
            else f"{about}{parameters:,}, trained in {precision}",
        ),
    ]
    if (memory := memory_of(config, world_size, precision)) is None:
        return found
    text = f"{size(memory.state)} per process for weights, gradients and AdamW's moments, before activations"
    if memory.activations is not None:
        text = f"about {size(memory.total)} per process: {size(memory.state)} for weights, gradients and AdamW's "
        text += f"moments, {size(memory.activations)} for activations"
        text += ", before there are gradients" if memory.late_gradients else ""
    small = min(gpus or (), key=lambda device: device.memory_total_bytes, default=None)
    words = memory_in_words(config, world_size, precision, None if small is None else small.memory_total_bytes)
    words = f"; {words}" if "," in words else ""
    text += words
    if small is None or small.memory_total_bytes >= memory.total:
        return [*found, ok("memory", text)]
    has = f"GPU {small.index} ({small.name}) has {size(small.memory_total_bytes)}"
    step = smallest_change(config, world_size, precision, small.memory_total_bytes)
    step = step or "choose GPUs with more memory, or a smaller model"
    if small.memory_total_bytes >= memory.state:
        return [*found, warn("memory", f"{text}; {has}", step)]
    state = (
        f"weights, gradients and AdamW's moments of this model take {size(memory.state)} on every GPU, and {has}{words}"
    )
    return [*found, problem("memory", state, step)]


def check_shared_memory(config: TrainConfig | None, launch: Launch, folder: Path = Path("/dev/shm")) -> list[Finding]:
    """Warn if the batches that DataLoader workers have ready do not fit into this machine's shared memory."""
    if config is None or not config.num_workers or launch.cluster is not None or not folder.is_dir():
        return []
    num_batches = launch.num_processes * config.num_workers * _BATCHES_AHEAD
    wanted = num_batches * config.batch_size * getattr(config, "sequence_length", 1) * _TOKEN_BYTES
    if (free := shutil.disk_usage(folder).free) >= wanted:
        return []
    text = (
        f"{folder} has {size(free)} free, and {num_batches} batches of about {size(wanted // num_batches)} wait there"
    )
    step = f"lower num_workers={config.num_workers} or batch_size, or give the container more (--shm-size=8g)"
    return [warn("shared memory", text, step)]


def check_disk(runs: Path, config: TrainConfig | None) -> Finding:
    """Compare the free bytes with what a run keeps; a problem if there is no room for a checkpoint, or no access."""
    folder = runs
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return problem(
            "disk", f"{runs}: cannot be written (see {folder})", "change its permissions, or set NBTOOLS_ROOT"
        )
    free_bytes = shutil.disk_usage(folder).free
    free = f"{size(free_bytes)} free in runs/"
    each = None if config is None else checkpoint_bytes(config)
    if config is None or each is None:
        return ok("disk", f"{free}; the size of this training's checkpoints is not known")
    whole = each // 3 if config.strategy == "fsdp" else 0  # else a hard link
    if free_bytes < each:
        text = f"{runs}: {size(free_bytes)} free, but a checkpoint of this model takes about {size(each)}"
        return problem("disk", text, "nbtools clean frees some, or set NBTOOLS_ROOT to a folder on another disk")
    count = num_checkpoints_kept(config)
    total = count * each + whole
    text = f"{free}, {plural(count, 'checkpoint')} of about {size(each)} at once"
    text += f"{f', and {size(whole)} for outputs/model' if whole else ''}: {size(total)}"
    if free_bytes >= total:
        return ok("disk", text)
    return warn("disk", text, "nbtools clean frees some; keep_last and keep_best set how many are kept")
