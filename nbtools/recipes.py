"""The training systems nbtools ships: each one's config, presets and size formulas. Costs nothing to import."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from nbtools import corpus
from nbtools.config import Launch, TrainConfig, setting
from nbtools.errors import ConfigError, DataError, shown


class MLMPretrainingConfig(TrainConfig):
    """BERT-style masked language modelling, from scratch or from pretrained weights."""

    dataset: str | None = setting(
        None,
        basic=True,
        help="A text file or a folder of .txt files; None for the English text that ships with Python.",
    )
    model_name: str | None = setting(
        None,
        shapes=True,
        help="A local folder or hub id to start from (`from_pretrained`); None builds a ModernBERT as given below.",
    )
    num_layers: int = setting(2, ge=1, le=128, basic=True, shapes=True, unit="layers", help="Transformer layers.")
    num_heads: int = setting(4, ge=1, le=128, basic=True, shapes=True, unit="heads", help="Attention heads per layer.")
    hidden_size: int = setting(
        64,
        ge=2,
        le=16_384,
        basic=True,
        shapes=True,
        unit="dimensions",
        help="Width of the model; a multiple of 2 x num_heads.",
    )
    dropout: float = setting(0.0, ge=0, lt=1, help="Dropout in attention and feed-forward layers.")
    sequence_length: int = setting(64, ge=8, le=8192, basic=True, unit="tokens", help="Tokens per sequence.")
    vocab_size: int = setting(
        2000,
        ge=16,
        le=1_000_000,
        shapes=True,
        unit="words",
        help="Size of the word-level vocabulary built on the corpus.",
    )
    min_words: int = setting(5, ge=1, le=1_000_000, unit="words", help="Documents with fewer words are left out.")
    mask_probability: float = setting(
        0.15, gt=0, lt=1, help="Share of the tokens to predict: 80% [MASK], 10% random, 10% kept."
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.model_name is None and self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size={self.hidden_size} with num_heads={self.num_heads}: rotary positions need "
                f"hidden_size to be a multiple of 2 x num_heads = {2 * self.num_heads}"
            )
        return self


@dataclass(frozen=True)
class Preset:
    """Named values for a recipe: where it runs, and what differs from the config's defaults."""

    description: str
    nproc_per_node: int
    values: Mapping[str, Any]
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Recipe:
    """A training system: one key names its module, script, notebook and tests."""

    key: str
    title: str
    summary: str
    config_class: type[TrainConfig]
    presets: Mapping[str, Preset]
    """The first one is what a new form shows."""

    @property
    def module(self) -> str:
        """The module whose `main(config)` trains it; the stem only ever writes this name down."""
        return f"nbtools.training.{self.key}"

    def preset(self, name: str) -> tuple[TrainConfig, Launch]:
        """Build the config and the launch settings of the preset `name`.

        Raises:
            ConfigError: the recipe has no such preset.
        """
        if name not in self.presets:
            raise ConfigError(f"preset={shown(name)}: {self.key} has {', '.join(self.presets)}")
        preset = self.presets[name]
        return self.config_class(**preset.values), Launch(nproc_per_node=preset.nproc_per_node, gpus=preset.gpus)


def _gpu_preset(total_batch: int, num_gpus: int, shape: tuple[int, int, int], epochs: int, lr: float) -> Preset:
    """A preset on `num_gpus` GPUs that share `total_batch`, of `shape` (layers, heads, width)."""
    values = {"batch_size": total_batch // num_gpus, "epochs": epochs, "learning_rate": lr, "precision": "bf16"}
    values |= dict(zip(("num_layers", "num_heads", "hidden_size"), shape, strict=True))
    values |= {"sequence_length": 128, "vocab_size": 10_000}
    return Preset(f"{num_gpus} GPU{'s' if num_gpus > 1 else ''}, total batch {total_batch}", num_gpus, values)


RECIPES: dict[str, Recipe] = {
    "mlm_pretraining": Recipe(
        key="mlm_pretraining",
        title="Masked language modelling",
        summary="Pretrain a small bidirectional encoder to fill in masked words.",
        config_class=MLMPretrainingConfig,
        presets={
            "cpu_demo": Preset(
                "Learns within a minute or two on two CPU cores; needs no download",
                2,
                {
                    "batch_size": 16,
                    "epochs": 20,
                    "max_steps": 600,
                    "checkpoint_epochs": False,
                    "learning_rate": 3e-3,
                    "num_layers": 2,
                    "num_heads": 4,
                    "hidden_size": 128,
                    "sequence_length": 64,
                    "vocab_size": 2000,
                },
                gpus=(),
            ),
            "h200_8gpu_fast": _gpu_preset(512, 8, (4, 4, 8), epochs=3, lr=5e-5),
            "h200_8gpu_standard": _gpu_preset(256, 8, (6, 8, 16), epochs=5, lr=3e-5),
            "h200_8gpu_quality": _gpu_preset(128, 8, (8, 12, 24), epochs=10, lr=2e-5),
            "4gpu_standard": _gpu_preset(128, 4, (4, 4, 8), epochs=5, lr=3e-5),
            "2gpu_standard": _gpu_preset(64, 2, (4, 4, 8), epochs=5, lr=3e-5),
            "1gpu_standard": _gpu_preset(16, 1, (4, 4, 8), epochs=5, lr=3e-5),
        },
    ),
}


def recipe_of(config: TrainConfig) -> Recipe:
    """Return the recipe that `config` belongs to."""
    for recipe in RECIPES.values():
        if type(config) is recipe.config_class:
            return recipe
    known = ", ".join(recipe.config_class.__name__ for recipe in RECIPES.values())
    raise ConfigError(f"{type(config).__name__}: no recipe has this config class; use one of {known}")


def recipe_named(key: str) -> Recipe:
    """Return the recipe called `key`.

    Raises:
        ConfigError: there is none.
    """
    if key not in RECIPES:
        raise ConfigError(f"recipe={key[:80]!r}: there is no such recipe; nbtools has {', '.join(RECIPES)}")
    return RECIPES[key]


# --- size of the model ----------------------------------------------------------------------------

SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
"""The first words of every vocabulary built here: their positions are their ids."""


def modernbert_settings(config: MLMPretrainingConfig, vocab_size: int | None = None) -> dict[str, Any]:
    """Return the arguments of `transformers.ModernBertConfig` for a model built from `config`.

    Args:
        config: the model's shape.
        vocab_size: words the tokenizer really has, where the corpus gave fewer than `config.vocab_size`.
    """
    ids = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    return {
        "vocab_size": config.vocab_size if vocab_size is None else vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": 3 * config.hidden_size // 2,  # ModernBERT's own ratio: the gated layer has two of these
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.sequence_length,
        "global_attn_every_n_layers": 1,  # full attention everywhere: sequences are short
        # RoFormer's base. ModernBERT's 160,000 is made for 8,192 tokens and costs 0.6 nats here (64 tokens, 600 steps).
        "global_rope_theta": 10_000.0,
        # Wide enough for narrow models: 0.05 at width 64, ModernBERT's own 0.02 at 400. With 0.02 at width 64, learning
        # any context took twice as many steps.
        "initializer_range": 0.4 / math.sqrt(config.hidden_size),
        "attention_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "embedding_dropout": config.dropout,
        "tie_word_embeddings": True,
        "pad_token_id": ids["[PAD]"],
        "cls_token_id": ids["[CLS]"],
        "bos_token_id": ids["[CLS]"],
        "sep_token_id": ids["[SEP]"],
        "eos_token_id": ids["[SEP]"],
    }


def num_parameters(config: TrainConfig, vocab_size: int | None = None) -> int | None:
    """Return how many weights the model of `config` trains; None where only the downloaded model knows.

    Args:
        config: any recipe's config.
        vocab_size: words the tokenizer really has, where the corpus gave fewer than `config.vocab_size`.
    """
    if not isinstance(config, MLMPretrainingConfig) or config.model_name is not None:
        return None
    shape = modernbert_settings(config, vocab_size)
    vocabulary, width, inner = (int(shape[name]) for name in ("vocab_size", "hidden_size", "intermediate_size"))
    attention = 4 * width * width  # queries, keys, values and the output projection, without biases
    feed_forward = 3 * width * inner  # two halves in (one of them the gate), one out
    # Norms have a scale and no shift: two in each layer but one in the first, one after the embedding, one at the end.
    layers = config.num_layers * (attention + feed_forward + 2 * width) - width
    embedding = vocabulary * width + width  # the decoder shares these weights and adds a bias per word
    head = width * width + width
    return embedding + layers + width + head + vocabulary


def checkpoint_bytes(config: TrainConfig) -> int | None:
    """Return about how large a checkpoint is; None where only the downloaded model knows.

    Weights and AdamW's two moments are fp32 whatever the precision: 4 + 8 bytes for each. The rest (random state,
    tokenizer) is some ten kilobytes per rank.
    """
    parameters = num_parameters(config)
    return None if parameters is None else 12 * parameters


def num_checkpoints_kept(config: TrainConfig) -> int:
    """Return how many checkpoints are on disk at once at most: the newest, the best, and the one being written."""
    kept = config.keep_last + config.keep_best + 1
    if config.max_steps is None:
        return kept
    at_epochs = min(config.epochs, config.max_steps) if config.checkpoint_epochs else 0
    return min(kept, -(-config.max_steps // config.checkpoint_every) + at_epochs)


# --- number of steps ------------------------------------------------------------------------------

LARGEST_COUNTED_BYTES = 64 * 2**20
"""`schedule` does not count datasets larger than this: a form should answer soon. The training always counts."""


@dataclass(frozen=True)
class Schedule:
    """How many samples and optimizer steps a training has."""

    num_train_samples: int
    num_eval_samples: int
    effective_batch: int
    """Samples per optimizer step: per process x accumulated x processes."""
    steps_per_epoch: int
    total_steps: int

    @classmethod
    def of(cls, config: TrainConfig, world_size: int, num_train_samples: int, num_eval_samples: int) -> Self:
        """Derive the steps from the number of samples; every training uses this very function.

        Every optimizer step is a full one: what is left of an epoch is left out, and the next epoch shuffles anew.

        Raises:
            DataError: there are too few samples for one optimizer step, or none to evaluate on.
        """
        effective_batch = config.effective_batch(world_size)
        if num_train_samples < effective_batch:
            raise DataError(
                f"{num_train_samples} training samples are too few for one step of {config.batch_size} per process x "
                f"{config.gradient_accumulation_steps} accumulated x {world_size} processes = {effective_batch}; "
                "lower batch_size or nproc_per_node, or give more data"
            )
        if num_eval_samples < 1:
            raise DataError("no full sample is left to evaluate on; lower sequence_length or give more data")
        steps_per_epoch = num_train_samples // effective_batch
        total_steps = config.epochs * steps_per_epoch
        if config.max_steps is not None:
            total_steps = min(total_steps, config.max_steps)
        return cls(num_train_samples, num_eval_samples, effective_batch, steps_per_epoch, total_steps)


def schedule(
    config: TrainConfig,
    world_size: int,
    *,
    root: str | Path | None = None,
    largest_bytes: int = LARGEST_COUNTED_BYTES,
) -> Schedule | None:
    """Count the samples and steps that `config` means on `world_size` processes.

    Args:
        config: any recipe's config.
        world_size: number of processes.
        root: what a relative dataset path starts from; the project of the working directory when None.
        largest_bytes: datasets larger than this are not counted (seven megabytes take about a second).

    Returns:
        None where only the training will know: the tokenizer comes with a pretrained model, or the dataset is larger
        than `largest_bytes`.

    Raises:
        DataError: the dataset is missing, malformed, or too small.
    """
    if not isinstance(config, MLMPretrainingConfig) or config.model_name is not None:
        return None
    fingerprint: tuple[tuple[str, int, int], ...] = ()
    if config.dataset is not None:
        path = corpus.resolve(config.dataset, root)
        facts = [(str(file), file.stat()) for file in corpus.files_in(path)]
        if sum(fact.st_size for _, fact in facts) > largest_bytes:
            return None
        fingerprint = tuple((name, fact.st_size, fact.st_mtime_ns) for name, fact in facts)
        dataset: str | None = str(path)
    else:
        dataset = None
    lengths = _counted(dataset, config.min_words, config.sequence_length, fingerprint)
    return Schedule.of(config, world_size, *lengths)


@functools.lru_cache(maxsize=64)
def _counted(dataset: str | None, min_words: int, sequence_length: int, fingerprint: object) -> tuple[int, int]:
    """Return the numbers of training and evaluation sequences; `fingerprint` makes a changed file count anew."""
    train, evaluation = corpus.split(corpus.read_documents(dataset, min_words))
    return corpus.num_sequences(train, sequence_length), corpus.num_sequences(evaluation, sequence_length)
