"""How large a training is: weights, memory and checkpoints, from the config alone."""

from nbtools.config import TrainConfig
from nbtools.recipes import recipe_of


def num_trainable_parameters(config: TrainConfig, vocab_size: int | None = None) -> int | None:
    """Return how many weights the model of `config` trains; None where only the downloaded model knows.

    Args:
        config: any recipe's config.
        vocab_size: words the tokenizer really has, where the data gave fewer than the config allows.
    """
    return recipe_of(config).num_parameters(config, vocab_size)


def training_bytes(config: TrainConfig) -> int | None:
    """Return the memory per process of weights, gradients and AdamW's two moments, without activations.

    All of them are fp32 whatever the precision, and DDP keeps a copy of everything on every rank: 16 bytes a weight.
    None where only the downloaded model knows.
    """
    parameters = num_trainable_parameters(config)
    return None if parameters is None else 16 * parameters


def checkpoint_bytes(config: TrainConfig) -> int | None:
    """Return about how large a checkpoint is; None where only the downloaded model knows.

    Weights and AdamW's two moments are fp32 whatever the precision: 4 + 8 bytes for each. The rest (random state,
    tokenizer) is some ten kilobytes per rank.
    """
    parameters = num_trainable_parameters(config)
    return None if parameters is None else 12 * parameters


def num_checkpoints_kept(config: TrainConfig) -> int:
    """Return how many checkpoints are on disk at once at most: the newest, the best, and the one being written."""
    kept = config.keep_last + config.keep_best + 1
    if config.max_steps is None:
        return kept
    at_epochs = min(config.epochs, config.max_steps) if config.checkpoint_epochs else 0
    return min(kept, -(-config.max_steps // config.checkpoint_every) + at_epochs)
