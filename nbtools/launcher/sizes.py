"""Size of a training, computed from the config alone: weights, memory and checkpoints."""

from nbtools.config import TrainConfig
from nbtools.recipes import recipe_of


def num_trainable_parameters(config: TrainConfig, vocab_size: int | None = None) -> int | None:
    """Return the number of trained weights; None for a pretrained model, whose size its download defines.

    `vocab_size` is the size of the trained tokenizer; None takes the config's upper bound.
    """
    return recipe_of(config).num_parameters(config, vocab_size)


def training_bytes(config: TrainConfig) -> int | None:
    """Return the memory per process of weights, gradients and AdamW's two moments, without activations.

    All are fp32 at every precision and DDP keeps a copy on every rank: 16 bytes per weight. None for a pretrained
    model.
    """
    parameters = num_trainable_parameters(config)
    return None if parameters is None else 16 * parameters


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
