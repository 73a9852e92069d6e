"""The config of a masked language model of some thousand weights, on the folder `texts`."""

from typing import Any

from nbtools.recipes import MLMPretrainingConfig


def tiny_mlm(**changes: Any) -> MLMPretrainingConfig:
    values: dict[str, Any] = {"dataset": "texts", "batch_size": 4, "max_steps": 4, "epochs": 50, "min_words": 1}
    values |= {"num_layers": 1, "num_heads": 2, "hidden_size": 16, "sequence_length": 16, "vocab_size": 60}
    values |= {"log_every": 1, "eval_every": 2, "checkpoint_every": 2, "test_fraction": 0.0}
    return MLMPretrainingConfig(**{**values, **changes})
