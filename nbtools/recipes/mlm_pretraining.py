"""BERT-style masked language modelling: its config, presets and sizes."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from nbtools.config import TrainConfig, beta, num_evaluated_samples
from nbtools.data import corpus
from nbtools.errors import plural
from nbtools.recipes import activations, built_models, lora, text_data
from nbtools.recipes.recipe import Preset, Recipe, SampleCounts
from nbtools.settings import setting

_DATA_FIELDS = ("dataset", "max_samples", "streaming", "min_words", "clean", "special_tokens")
_FEWEST_OF_BYTES = 256 + len(built_models.SPECIAL_TOKENS) - 1  # without [UNK]


class MLMPretrainingConfig(TrainConfig):
    """BERT-style masked language modelling, from scratch or from pretrained weights."""

    dataset: str | None = setting(
        None,
        "A text file, a folder of .txt files, or tables with a column of text (.jsonl, .json, .parquet, .csv, .tsv); "
        "None for the English text that ships with Python. From the Hugging Face hub: imdb, hf (C4's English), "
        "hf/OWNER/NAME or hf/OWNER/NAME:CONFIG. Options follow: ,column=body,split=test,revision=main.",
        basic=True,
    )
    max_samples: int | None = setting(
        None,
        "Documents to take from the start of the dataset; None for all of it (hf: 500,000).",
        "documents",
        ge=2,
        le=1_000_000_000,
    )
    streaming: bool = setting(
        True, "Read a dataset of the hub over the network during training; False downloads all its files first."
    )
    tokenizer: Literal["words", "byte_bpe"] = setting(
        "words",
        "Tokens of a vocabulary built on the training part: byte_bpe (byte-level BPE, as GPT-2's; its merges are those "
        "of at most 33 million characters) keeps every character of any script; words are lower-cased and lose "
        "whitespace. A pretrained model has its own.",
        basic=True,
        shapes=True,
    )
    model_name: str | None = text_data.MODEL_NAME
    adapter: lora.Adapter = lora.ADAPTER
    lora_rank: int = lora.RANK
    lora_alpha: int = lora.ALPHA
    lora_targets: tuple[str, ...] | None = lora.TARGETS
    num_layers: int = built_models.NUM_LAYERS
    num_heads: int = built_models.NUM_HEADS
    hidden_size: int = built_models.width(64, 2, "2 x num_heads")
    adam_beta2: float = beta(0.98, "squared gradient")  # RoBERTa's: the plateau at word frequencies is shorter
    dropout: float = built_models.DROPOUT
    keep_model_dropout: bool = text_data.KEEP_MODEL_DROPOUT
    add_special_tokens: bool = setting(
        True,
        "Put the special tokens of the tokenizer of `model_name` around every sequence ([CLS] ... [SEP]); without one, "
        "[SEP] ends each document and nothing else is added.",
        before=False,
    )
    sequence_length: int = setting(
        64, "Tokens per sequence; documents fill sequences without padding.", "tokens", ge=8, le=8192, basic=True
    )
    vocab_size: int = built_models.vocabulary(
        2000,
        "Largest size of a vocabulary built here; rarer words become [UNK], byte_bpe has its 256 bytes and no [UNK].",
        "tokens",
    )
    min_words: int = text_data.MIN_WORDS
    clean: corpus.Clean = text_data.CLEAN
    special_tokens: corpus.SpecialTokens = text_data.SPECIAL_TOKENS
    mask_probability: float = setting(0.15, "Share of tokens to predict: 80% [MASK], 10% random, 10% kept.", gt=0, lt=1)
    eval_samples: int | None = num_evaluated_samples("sequences", "sequences")

    @model_validator(mode="after")
    def _values_fit_together(self) -> Self:
        text_data.check_encoder(self)
        if self.tokenizer == "byte_bpe" and self.model_name is None and self.vocab_size < _FEWEST_OF_BYTES:
            least = f"must be >= {_FEWEST_OF_BYTES}, for 256 bytes and 4 special tokens"
            raise ValueError(f"vocab_size={self.vocab_size} with tokenizer='byte_bpe': {least}")
        return self


def _count_samples(config: MLMPretrainingConfig, root: Path | None) -> SampleCounts | None:
    return None if config.tokenizer == "byte_bpe" else text_data.count_samples(config, root, corpus.num_words)


def _gpu_preset(
    use: str, total_batch: int, num_gpus: int, shape: tuple[int, int, int], *, epochs: int, lr: float, samples: int
) -> Preset:
    """A preset on `num_gpus` GPUs that share `total_batch`, of `shape` (layers, heads, width)."""
    values = {"batch_size": total_batch // num_gpus, "epochs": epochs, "learning_rate": lr, "precision": "bf16"}
    values |= {"dataset": "hf", "max_samples": samples}
    values |= dict(zip(("num_layers", "num_heads", "hidden_size"), shape, strict=True))
    values |= {"sequence_length": 128, "vocab_size": 10_000}
    # About four times per epoch: a document of C4 fills about three sequences.
    every = round(3 * samples / total_batch / 4, -2)
    values |= {"eval_every": int(every), "checkpoint_every": int(every)}
    real = "base_8gpu" if num_gpus > 4 else "base_1gpu"
    small = f"width {shape[2]} as in the older program of this preset (for real use: {real})"
    return Preset(f"{use}, {small}; downloads {samples:,} documents of C4", num_gpus, values)


def _base_preset(num_gpus: int, batch_size: int, accumulated: int) -> Preset:
    """A preset of ModernBERT-base's shape (Warner et al. 2024, arXiv 2412.13663): 149 million weights."""
    values: dict[str, Any] = {"batch_size": batch_size, "gradient_accumulation_steps": accumulated}
    values |= {"tokenizer": "byte_bpe"}
    values |= {"dataset": "hf", "max_samples": 10_000_000, "vocab_size": 50_000, "sequence_length": 512}
    values |= {"num_layers": 22, "num_heads": 12, "hidden_size": 768, "mask_probability": 0.3, "warmup_ratio": 0.06}
    values |= {"learning_rate": 5e-4, "precision": "bf16", "num_workers": 4}
    values |= {"eval_every": 1000, "checkpoint_every": 1000}
    use = f"{plural(num_gpus, 'GPU')}, a ModernBERT-base of 149 M parameters, total batch 512 of 512 tokens"
    return Preset(f"{use}; downloads 10,000,000 documents of C4", num_gpus, values)


_CPU_DEMO: dict[str, Any] = {"batch_size": 16, "epochs": 20, "max_steps": 600, "checkpoint_epochs": False}
_CPU_DEMO |= {"learning_rate": 3e-3, "hidden_size": 128}

RECIPE = Recipe(
    key="mlm_pretraining",
    title="Masked language modelling",
    summary="Pretrain a small bidirectional encoder to fill in masked words.",
    config_class=MLMPretrainingConfig,
    presets={
        "cpu_demo": Preset("Two CPU cores, one to two minutes, no download", 2, _CPU_DEMO, gpus=()),
        "h200_8gpu_fast": _gpu_preset("8 H200, fast", 512, 8, (4, 4, 8), epochs=3, lr=5e-5, samples=500_000),
        "h200_8gpu_standard": _gpu_preset("8 H200, standard", 256, 8, (6, 8, 16), epochs=5, lr=3e-5, samples=1_000_000),
        "h200_8gpu_quality": _gpu_preset(
            "8 H200, best quality", 128, 8, (8, 12, 24), epochs=10, lr=2e-5, samples=2_000_000
        ),
        "4gpu_standard": _gpu_preset("4 GPUs", 128, 4, (4, 4, 8), epochs=5, lr=3e-5, samples=500_000),
        "2gpu_standard": _gpu_preset("2 GPUs", 64, 2, (4, 4, 8), epochs=5, lr=3e-5, samples=500_000),
        "1gpu_standard": _gpu_preset("1 GPU", 16, 1, (4, 4, 8), epochs=5, lr=3e-5, samples=250_000),
        "base_8gpu": _base_preset(8, 64, 1),
        "base_1gpu": _base_preset(1, 64, 8),
    },
    num_parameters=text_data.num_parameters_of,
    activation_bytes=lambda config, precision: activations.text_bytes(config, precision, config.mask_probability),
    source=text_data.text_source,
    count_samples=_count_samples,
    counted_by=(*_DATA_FIELDS, "tokenizer", "model_name", "sequence_length", "test_fraction"),
    reads_text=True,
    guess_columns=text_data.guess_column,
    data_fields=_DATA_FIELDS,
)
