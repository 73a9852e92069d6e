"""Masked diffusion language models (LLaDA): config, presets and sizes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from nbtools.config import TrainConfig, beta
from nbtools.data import corpus, data_files, hub, prepared, tables
from nbtools.data.first_rows import FirstRows
from nbtools.data.masked_diffusion import pairs
from nbtools.errors import ConfigError, DataError
from nbtools.recipes import activations, built_models, lora, text_data
from nbtools.recipes.recipe import Recipe, SampleCounts, Source
from nbtools.rundir.json_files import read_small
from nbtools.settings import setting


class MaskedDiffusionConfig(TrainConfig):
    """Masked diffusion language modelling (LLaDA): pretraining on text, or fine-tuning on prompts and answers."""

    dataset: str | None = setting(
        None,
        "A text file, a folder of .txt files, a folder made by `nbtools prepare`, or a table (.jsonl, .json, .parquet, "
        ".csv, .tsv) of texts, prompts and answers, or messages; None for the English text that ships with Python. "
        "From the Hugging Face hub: hf/OWNER/NAME or hf/OWNER/NAME:CONFIG. Options follow: ,column=body,split=test.",
        basic=True,
    )
    tokenizer: Literal["chars", "words"] = setting(
        "chars",
        "Tokens of a vocabulary built on the text: chars keeps every character; words are lower-cased and lose "
        "whitespace. A pretrained model or a prepared folder has its own.",
        basic=True,
        shapes=True,
    )
    model_name: str | None = text_data.MODEL_NAME
    adapter: lora.Adapter = lora.ADAPTER
    lora_rank: int = lora.RANK
    lora_alpha: int = lora.ALPHA
    lora_targets: tuple[str, ...] | None = lora.TARGETS
    trust_remote_code: bool = setting(
        False, "Run the Python code that comes with `model_name`, where it has some; LLaDA needs none."
    )
    num_layers: int = built_models.NUM_LAYERS
    num_heads: int = built_models.NUM_HEADS
    hidden_size: int = built_models.width(128, 2, "2 x num_heads")
    adam_beta2: float = beta(0.98, "squared gradient")  # RoBERTa's: the plateau at token frequencies is shorter
    dropout: float = built_models.DROPOUT
    keep_model_dropout: bool = text_data.KEEP_MODEL_DROPOUT
    sequence_length: int = setting(
        64,
        "Tokens per sequence, which documents fill one after the other, or most tokens of a prompt and its answer.",
        "tokens",
        ge=8,
        le=32_768,
        basic=True,
    )
    vocab_size: int = built_models.vocabulary(
        1000, "Largest size of a vocabulary built on the text; rarer tokens become [UNK].", "tokens"
    )
    min_words: int = text_data.MIN_WORDS
    clean: corpus.Clean = text_data.CLEAN
    special_tokens: corpus.SpecialTokens = text_data.SPECIAL_TOKENS
    random_length_share: float = setting(
        0.01,
        "Share of sequences cut to a random length, so that the model learns short texts; not for pairs.",
        "of the sequences",
        ge=0,
        le=1,
    )
    pad_to: Literal["longest", "packed", "sequence_length"] = setting(
        "longest",
        "Rows of a batch of pairs. longest: a pair each, of similar length, padded to the longest; packed: "
        "several pairs in a row, in any order, which do not attend to each other (the log says how much is padding); "
        "sequence_length: a pair each, filled with end-of-text tokens that count in the loss.",
        before="sequence_length",
    )
    eval_draws: int = setting(512, "Masked sequences per evaluation, always the same.", "sequences", ge=1, le=1_000_000)
    sample_texts: int = setting(
        2, "Texts to sample at every evaluation; the first is shown step by step; 0 for none.", "texts", ge=0, le=64
    )
    sample_length: int | None = setting(
        None,
        "Tokens of a sampled text; None for sequence_length, at most 64; of answers at most the longest one plus 8.",
        "tokens",
        ge=1,
        le=32_768,
    )
    sample_steps: int | None = setting(
        None, "Evaluations of the model per sampled text; None for one per token.", "steps", ge=1, le=32_768
    )
    sample_block_length: int | None = setting(
        None, "Tokens per block; blocks are sampled from left to right; None for one block.", "tokens", ge=1, le=32_768
    )
    temperature: float = setting(0.7, "Sampling temperature; 0 takes the most likely token.", ge=0, le=100)
    remasking: Literal["low_confidence", "random"] = setting(
        "low_confidence", "Predictions that a step keeps: the most confident, or random ones."
    )
    guidance: float = setting(0.0, "Scale of classifier-free guidance towards the prompt; 0 for none.", ge=0, le=100)
    suppress_eos: bool = setting(False, "Never sample the end-of-text token (instruction-tuned models overuse it).")
    eos_last: bool = setting(
        False, "Unmask the tokens that end a text or a turn after all others, so that answers do not end too early."
    )

    def num_evaluated(self, num_held_out: int) -> int:
        """Return how many of the held-out sequences an evaluation masks, some of them several times."""
        return min(self.eval_draws, num_held_out)

    @property
    def sampling(self) -> tuple[int, int, int]:
        """Length, steps and block length of sampled texts, with None resolved."""
        length = min(self.sequence_length, 64) if self.sample_length is None else self.sample_length
        block = length if self.sample_block_length is None else self.sample_block_length
        return length, length if self.sample_steps is None else self.sample_steps, block

    @model_validator(mode="after")
    def _values_fit_together(self) -> Self:
        text_data.check_encoder(self)
        length, steps, block = self.sampling
        if length > self.sequence_length:
            raise ValueError(f"sample_length={length}: must be <= sequence_length={self.sequence_length}")
        check_sampling(length, steps, block)
        return self


def check_sampling(length: int, steps: int, block_length: int) -> None:
    """Check that steps and blocks fit the number of tokens to sample, or raise ConfigError."""
    if min(length, steps, block_length) < 1:
        given = f"sample_length={length}, sample_steps={steps}, sample_block_length={block_length}"
        raise ConfigError(f"{given}: each must be at least 1")
    if length % block_length:
        raise ConfigError(f"sample_block_length={block_length}: must divide the sampled length {length}")
    num_blocks = length // block_length
    if steps % num_blocks or steps > length:
        raise ConfigError(
            f"sample_steps={steps}: must be a multiple of the {num_blocks} blocks of {block_length} tokens, and "
            f"<= {length}, as a step reveals at least one token"
        )


def is_llada(settings: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a LLaDA, which loads without remote code."""
    return settings.get("model_type") == "llada" or "LLaDAModelLM" in (settings.get("architectures") or ())


def refuse_remote_code(config: MaskedDiffusionConfig) -> None:
    """Refuse a local model that comes with Python code, unless the user has allowed it or it is a LLaDA.

    The code of other hub models is refused when their config.json is there.

    Raises:
        ConfigError: the user has not allowed the code.
    """
    if config.model_name is not None and not config.trust_remote_code and _needs_code(Path(config.model_name)):
        raise ConfigError(remote_code_refused(config.model_name))


def with_consent(config: TrainConfig, folder: Path, trust_remote_code: bool) -> TrainConfig:
    """Return a run's config for opening its model: the model's code runs if this call says so, whatever the run says.

    Raises:
        ConfigError: the training ran the code of the model in `folder`, and this call does not allow it.
    """
    if not isinstance(config, MaskedDiffusionConfig):
        return config
    if config.trust_remote_code and not trust_remote_code and _needs_code(folder):
        raise ConfigError(
            "the model comes with Python code of its own, which would run on this machine, and a run directory cannot "
            "allow that: if you trust it, pass --trust-remote-code (trust_remote_code=True in Python)"
        )
    return config.replace(trust_remote_code=trust_remote_code)


def _needs_code(folder: Path) -> bool:
    """Whether a model's config.json names Python code and it is no LLaDA; False for a hub id or a damaged file."""
    try:
        settings = json.loads(read_small(folder / "config.json"))
    except (OSError, ValueError, RecursionError):  # whatever loads the model reports it
        return False
    return isinstance(settings, dict) and bool(settings.get("auto_map")) and not is_llada(settings)


def remote_code_refused(model_name: str) -> str:
    """Return what to do about a model that comes with Python code."""
    return (
        f"model_name={model_name!r}: comes with Python code of its own that would run on this machine; if you trust "
        "it, set trust_remote_code=True in the script, or pass --trust-remote-code"
    )


def _source(config: MaskedDiffusionConfig, root: Path | None) -> Source:
    path = None if config.dataset is None else data_files.dataset_path(config.dataset, root)
    if path is not None and prepared.is_prepared(path):
        prepared.read_prepared_metadata(path)
        return Source(str(config.dataset), (path / prepared.TRAIN, path / prepared.VALIDATION))
    data_files.hub_dataset(config.dataset, root)  # unless a file is called like it
    return text_data.text_source(config, root)


def _guess_columns(first: FirstRows) -> dict[str, str | tuple[str, ...] | None]:
    return {"column": None} if any(map(pairs.are_pairs, first.rows[:1])) else text_data.guess_column(first)


def _count_samples(config: MaskedDiffusionConfig, root: Path | None) -> SampleCounts | None:
    path = None if config.dataset is None else data_files.dataset_path(config.dataset, root)
    if path is not None and prepared.is_prepared(path):
        metadata = prepared.read_prepared_metadata(path)
        length, num_test = config.sequence_length, metadata.num_test_tokens if config.test_fraction else 0
        return SampleCounts(metadata.num_train_tokens // length, metadata.num_val_tokens // length, num_test // length)
    if config.model_name is not None or hub.named(config.dataset) is not None:
        return None  # depends on its tokenizer; counting downloads nothing
    found = [] if config.dataset is None else data_files.tables_in(config.dataset, root)
    if found and pairs.has_pairs(found, hub.split_options(config.dataset or "")[1].get("column")):
        return _counted_pairs(found, config)
    return text_data.count_samples(config, root, lambda text: num_tokens(text, config.tokenizer))


def num_tokens(text: str, tokenizer: str) -> int:
    """Return the number of tokens of a text for a vocabulary built on the text."""
    return len(text) if tokenizer == "chars" else corpus.num_words(text)


def _counted_pairs(sources: list[tables.Source], config: MaskedDiffusionConfig) -> SampleCounts:
    found = list(pairs.read_pairs(*sources))
    if not found:
        raise DataError(f"{sources[0]}: empty; write a line {{'prompt': ..., 'answer': ...}} for each pair, as JSON")
    if any(pair.turns for pair in found):
        raise pairs.no_template(str(sources[0]))

    def tokens_of(pair: pairs.Pair) -> int:
        return num_tokens(pair.prompt, config.tokenizer) + num_tokens(pair.answer, config.tokenizer)

    parts = pairs.split_pairs(found, config.sequence_length, tokens_of, config.test_fraction)
    return SampleCounts.of(map(len, parts), pairs.repeated_prompts(found))


RECIPE = Recipe(
    key="masked_diffusion",
    title="Masked diffusion",
    summary="Train or fine-tune a language model that generates text by unmasking tokens in any order (LLaDA).",
    config_class=MaskedDiffusionConfig,
    num_parameters=text_data.num_parameters_of,
    # Half of the tokens are masked on average.
    activation_bytes=lambda config, precision: activations.text_bytes(config, precision, 0.5),
    source=_source,
    count_samples=_count_samples,
    counted_by=("dataset", "min_words", "clean", "tokenizer", "model_name", "sequence_length", "test_fraction"),
    reads_text=True,
    guess_columns=_guess_columns,
    data_fields=("dataset", "min_words", "clean", "special_tokens", "pad_to"),
    refuse=refuse_remote_code,
)
