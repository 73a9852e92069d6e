"""BERT-style masked language modelling: its config, presets and sizes."""

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from nbtools.config import TrainConfig, beta, num_evaluated_samples
from nbtools.data import corpus
from nbtools.recipes import activations, built_models, lora, text_data
from nbtools.recipes.recipe import Recipe, SampleCounts
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


RECIPE = Recipe(
    key="mlm_pretraining",
    title="Masked language modelling",
    summary="Pretrain a small bidirectional encoder to fill in masked words.",
    config_class=MLMPretrainingConfig,
    num_parameters=text_data.num_parameters_of,
    activation_bytes=lambda config, precision: activations.text_bytes(config, precision, config.mask_probability),
    source=text_data.text_source,
    count_samples=_count_samples,
    counted_by=(*_DATA_FIELDS, "tokenizer", "model_name", "sequence_length", "test_fraction"),
    reads_text=True,
    guess_columns=text_data.guess_column,
    data_fields=_DATA_FIELDS,
)
