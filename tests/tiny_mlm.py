"""The config of a masked language model of some thousand weights, on the folder `texts`, and its documents."""

from pathlib import Path
from typing import Any

from nbtools.recipes import MLMPretrainingConfig


def tiny_mlm(**changes: Any) -> MLMPretrainingConfig:
    values: dict[str, Any] = {"dataset": "texts", "batch_size": 4, "max_steps": 4, "epochs": 50, "min_words": 1}
    values |= {"num_layers": 1, "num_heads": 2, "hidden_size": 16, "sequence_length": 16, "vocab_size": 60}
    values |= {"log_every": 1, "eval_every": 2, "checkpoint_every": 2, "test_fraction": 0.0}
    return MLMPretrainingConfig(**{**values, **changes})


def write_texts(folder: Path, num_words: int = 40) -> None:
    """Write 30 documents into a new folder."""
    folder.mkdir()
    for number in range(30):
        text = " ".join(f"w{(number + step * step) % 40}" for step in range(num_words))
        (folder / f"{number:02}.txt").write_text(text)
