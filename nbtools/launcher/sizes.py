"""Size of a training, computed from the config alone: weights, memory and checkpoints."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from nbtools.config import TrainConfig
from nbtools.errors import LaunchError, plural
from nbtools.launcher.findings import Finding, ok, size, warn
from nbtools.machine.devices import Device
from nbtools.recipes import lora, recipe_of

_BF16_SINCE = (8, 0)


def precision_of(config: TrainConfig, gpus: Sequence[Device] | None) -> str:
    """Return the precision of a training on `gpus`, or on the CPU without any, as its ranks will choose it for `auto`.

    It stays `auto` if the GPUs (None) or the compute capability of one are unknown.
    """
    capabilities = [None] if gpus is None else [gpu.compute_capability for gpu in gpus]
    if config.precision != "auto" or None in capabilities:
        return config.precision
    return "bf16" if capabilities and all(found and found >= _BF16_SINCE for found in capabilities) else "fp32"


def num_trainable_parameters(config: TrainConfig, vocab_size: int | None = None) -> int | None:
    """Return the number of trained weights; None for a pretrained model, whose size its download defines.

    `vocab_size` is the size of the trained tokenizer; None takes the config's upper bound.
    """
    if lora.is_adapted(config):
        sizes = recipe_of(config).adapter_sizes(config)
        return None if sizes is None else sizes.num_trained
    return recipe_of(config).num_parameters(config, vocab_size)


def training_bytes(config: TrainConfig, precision: str = "") -> int | None:
    """Return the memory per process of weights, gradients and AdamW's two moments, without activations.

    All are fp32 at every precision and DDP keeps a copy on every rank: 16 bytes per weight. The frozen weights under an
    adapter have neither gradients nor moments, and are held at `precision` (the config's by default) where autocast
    computes with them. None for a pretrained model of unknown size.
    """
    if lora.is_adapted(config):
        sizes = recipe_of(config).adapter_sizes(config)
        return None if sizes is None else sizes.num_bytes(precision or config.precision)
    parameters = num_trainable_parameters(config)
    return None if parameters is None else 16 * parameters


def sharded_bytes(config: TrainConfig, world_size: int, precision: str) -> int | None:
    """Return the memory per process that `training_bytes` is with strategy="fsdp"; None if the blocks are not known.

    A part of weights, gradients and moments, and what is gathered in the type of the computation: all weights outside
    the blocks, of which the backward pass has the whole gradient and its fp32 copy in the end unless an adapter leaves
    them frozen, and two blocks.
    """
    gathered, divided = recipe_of(config).num_gathered(config), training_bytes(config, precision)
    if gathered is None or divided is None:
        return None
    inner = 2 if precision in ("bf16", "fp16") else 4
    outside, block = gathered
    gradients = 0 if lora.is_adapted(config) else (inner + 4) * outside
    return divided // world_size + inner * outside + gradients + 2 * inner * block


def memory_of_strategies(config: TrainConfig, world_size: int, precision: str) -> tuple[int | None, int | None]:
    """Return the memory per process before activations, and that with strategy="fsdp" if the config has another one."""
    sharded = sharded_bytes(config, world_size, precision)
    if config.strategy == "fsdp":
        return sharded, None
    return training_bytes(config, precision), sharded if config.can_be_sharded and world_size > 1 else None


def activation_bytes(config: TrainConfig, precision: str) -> int | None:
    """Return about the memory per process of a step's activations, and of the weights that autocast copies.

    None for a pretrained model. A precision that is not known yet counts as fp32.
    """
    kept, parameters = recipe_of(config).activation_bytes(config, precision), num_trainable_parameters(config)
    if kept is None or parameters is None:
        return None
    copies = 2 * parameters if precision in ("bf16", "fp16") and config.strategy == "ddp" else 0
    return round(kept) + copies


def checkpoint_bytes(config: TrainConfig) -> int | None:
    """Return the approximate size of a checkpoint; None for a pretrained model.

    Weights and AdamW's two moments are fp32 at every precision: 4 + 8 bytes per weight. The rest (random state,
    tokenizer) is about ten kilobytes per rank.
    """
    parameters = num_trainable_parameters(config)
    return None if parameters is None else 12 * parameters


def num_checkpoints_kept(config: TrainConfig) -> int:
    """Return the largest number of checkpoints on disk at once: the newest, the best, and the one being written."""
    kept = config.keep_last + config.keep_best + 1
    if config.max_steps is None:
        return kept
    at_epochs = min(config.epochs, config.max_steps) if config.checkpoint_epochs else 0
    return min(kept, -(-config.max_steps // config.checkpoint_every) + at_epochs)


def check_disk(runs: Path, config: TrainConfig | None) -> Finding:
    """Compare the free bytes where the runs are with what the run keeps.

    Raises:
        LaunchError: the folder is not writable, or the disk has no room for one checkpoint.
    """
    folder = runs
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise LaunchError(f"{runs}: cannot be written (see {folder}); change its permissions, or set NBTOOLS_ROOT")
    free_bytes = shutil.disk_usage(folder).free
    free = f"{size(free_bytes)} free in runs/"
    each = None if config is None else checkpoint_bytes(config)
    if config is None or each is None:
        return ok("disk", f"{free}; the size of this training's checkpoints is not known")
    if free_bytes < each:
        raise LaunchError(
            f"{runs}: {size(free_bytes)} free, but a checkpoint of this model takes about {size(each)}: "
            "nbtools clean frees some, or set NBTOOLS_ROOT to a folder on another disk"
        )
    count = num_checkpoints_kept(config)
    text = f"{free}, {plural(count, 'checkpoint')} of about {size(each)} at once: {size(count * each)}"
    if free_bytes >= count * each:
        return ok("disk", text)
    return warn("disk", text, "nbtools clean frees some; keep_last and keep_best set how many are kept")
