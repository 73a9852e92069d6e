"""LLM GAN, a generator against a judge (both language models): config, presets, data and sizes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from nbtools.config import TrainConfig, beta, rate
from nbtools.data import corpus, data_files, hub, split
from nbtools.data.first_rows import FirstRows
from nbtools.data.llm_gan import stories
from nbtools.errors import Say, shown
from nbtools.recipes import activations, built_models, lora, named_model, text_data
from nbtools.recipes.recipe import Recipe, SampleCounts, Source
from nbtools.settings import setting

NUM_SPECIAL_TOKENS = 3
"""Padding, begin and end: the first tokens of every vocabulary built here."""
NUM_MARKS = 3
"""Tokens of a vocabulary built here that mark the two texts and the verdict in a judge's input."""


class LLMGANConfig(TrainConfig):
    """A generator and a judge, both causal language models: a warm-up each, then adversarial training.

    Every step reads one batch of human texts. The first `generator_warmup_steps` train the generator to predict them,
    the next `judge_warmup_steps` (or more, until `judge_accuracy` is reached) train the judge to tell them from
    generated texts, and all later steps are adversarial. `learning_rate` and its schedule are those of the generator in
    adversarial steps.
    """

    dataset: str | None = setting(
        None,
        "A table (.csv, .tsv, .jsonl, .json, .parquet) with prompts and human texts, a folder of such tables, or a "
        "dataset of the Hugging Face hub (hf/OWNER/NAME:CONFIG,split=train[:5000]); `topics` for the English text that "
        "ships with Python; None for sequences of a random Markov chain, whose true likelihood is known.",
        basic=True,
    )
    text_col: str | None = setting(None, "Column of the human text; None takes human_story, human_solution or text.")
    prompt_cols: tuple[str, ...] | None = setting(
        None, "Prompt columns; None takes title and genre, or problem, whichever exist."
    )
    min_chars: int = setting(100, "Shortest human text.", "characters", ge=1, le=1_000_000)
    max_chars: int = setting(500, "Longer human texts are cut.", "characters", ge=1, le=1_000_000)
    short_texts: Literal["refuse", "leave_out"] = setting("refuse", "Texts below min_chars are an error, or left out.")
    clean: corpus.Clean = setting(
        "none",
        "none keeps the texts and prompts of a CSV file as they are; light drops spaces around a text, and makes the "
        "spaces and line ends of a prompt single spaces.",
        before="light",
    )
    num_sequences: int = setting(10_000, "Training sequences of the Markov chain.", "sequences", ge=16, le=100_000_000)
    num_symbols: int = setting(30, "Symbols of the Markov chain.", "symbols", ge=2, le=1000, shapes=True)
    tokenizer: Literal["words", "chars"] = setting("words", "Tokens of texts, without a pretrained model.", shapes=True)
    vocab_size: int = built_models.vocabulary(2000, "Largest vocabulary.", "words")
    model_name: str | None = setting(
        None,
        "Generator to start from: a local folder or a hub id such as meta-llama/Llama-3.2-1B-Instruct; None builds a "
        "GPT-2 of the size below.",
        basic=True,
        shapes=True,
    )
    judge_name: str | None = setting(
        None, "Judge to start from, with the generator's vocabulary; None takes model_name.", shapes=True
    )
    adapter: lora.Adapter = lora.ADAPTER
    lora_rank: int = lora.RANK
    lora_alpha: int = lora.ALPHA
    lora_targets: tuple[str, ...] | None = lora.TARGETS
    num_layers: int = setting(2, "Layers of each model.", "layers", ge=1, le=128, basic=True, shapes=True)
    num_heads: int = built_models.NUM_HEADS
    hidden_size: int = built_models.width(64, 4, "num_heads")
    adam_beta1: float = beta(0.5, "gradient")  # the loss of each model changes with every step of the other
    dropout: float = built_models.DROPOUT
    keep_model_dropout: bool = text_data.KEEP_MODEL_DROPOUT
    sequence_length: int = setting(12, "Longest text with end token.", "tokens", ge=2, le=8192, basic=True, shapes=True)
    prompt_length: int = setting(
        32, "Longest prompt; a longer one loses its beginning.", "tokens", ge=1, le=8192, shapes=True
    )
    temperature: float = setting(1.0, "Sampling temperature of texts; below 1 they vary less.", gt=0, le=10)
    judging: Literal["scores", "verdicts"] = setting(
        "scores",
        "scores: the judge scores every token, a reward per token; verdicts: it reads both texts and writes which one "
        "is human, a reward per text.",
        basic=True,
        shapes=True,
    )
    objective: Literal["adversarial", "likelihood"] = setting(
        "adversarial",
        "adversarial: the two warm-ups, then the judge's rewards; likelihood, its control: every step trains the "
        "generator on human texts at warmup_learning_rate, and the judge stays as it is.",
        basic=True,
    )
    max_judge_tokens: int = setting(16, "Longest verdict of the judge.", "tokens", ge=4, le=8192, shapes=True)
    generator_warmup_steps: int = setting(
        300, "Steps that train the generator on human texts.", "steps", ge=0, le=1_000_000_000, basic=True
    )
    judge_warmup_steps: int = setting(
        300, "Least number of steps that train the judge alone.", "steps", ge=0, le=1_000_000_000, basic=True
    )
    judge_accuracy: float = setting(
        0.8,
        "Accuracy on held-out pairs that the judge needs before adversarial training starts.",
        "of the pairs",
        ge=0,
        lt=1,
    )
    judge_steps: int = setting(
        3, "Updates of the judge per adversarial update of the generator.", "judge steps", ge=1, le=1000
    )
    warmup_learning_rate: float = rate("Learning rate of both models during warm-up.")
    judge_learning_rate: float = rate("Learning rate of the judge in adversarial steps.")
    discount: float | None = setting(
        None,
        "Discount of later rewards in a token's return; None for 0.25 with scores and 1 with verdicts.",
        ge=0,
        le=1,
    )
    entropy_weight: float = setting(0.005, "Weight of the entropy bonus, against repetition.", ge=0, le=100)
    freeze_generator: bool = setting(False, "Do not train the generator after its warm-up, as a baseline.")
    kl_to_start: bool = setting(
        False, "Measure the KL divergence from the generator's starting weights, of which a copy stays in memory."
    )
    texts_at_once: int | None = setting(
        None,
        "Texts that a rank writes and judges together; None for all of an optimizer step. Lower it if memory is short.",
        "texts",
        ge=1,
        le=1_000_000,
    )
    eval_samples: int = setting(512, "Texts to generate at every evaluation.", "texts", ge=8, le=1_000_000)

    @property
    def credit(self) -> float:
        """`discount`, with None resolved."""
        usual = 0.25 if self.judging == "scores" else 1.0
        return usual if self.discount is None else self.discount

    @model_validator(mode="after")
    def _values_fit_together(self) -> Self:
        lora.check_adapter(self)
        if self.model_name is None or self.judge_name is None:
            built_models.check_gpt2_width(self.hidden_size, self.num_heads)
        if self.min_chars > self.max_chars:
            raise ValueError(f"min_chars={self.min_chars} with max_chars={self.max_chars}: must not be larger")
        if self.judge_name is not None and self.model_name is None:
            raise ValueError(
                f"judge_name={shown(self.judge_name)}: a pretrained judge needs a generator with its vocabulary; give "
                "model_name, too"
            )
        if self.dataset is None and self.model_name is not None:
            raise ValueError(
                f"model_name={shown(self.model_name)}: a pretrained model needs texts; give a dataset: a CSV file, or "
                f"{stories.TOPICS}"
            )
        if self.objective == "likelihood" and self.freeze_generator:
            raise ValueError("freeze_generator=True: with objective='likelihood' nothing is trained; choose one")
        if self.dataset is None and self.judging == "verdicts":
            raise ValueError("judging='verdicts': needs texts, not a Markov chain; give a dataset, or use scores")
        return self


def _num_parameters(config: LLMGANConfig, vocab_size: int | None) -> int | None:
    """Count the weights of both models; `vocab_size` is that of the data."""
    if config.model_name is not None:
        return named_model.num_parameters(config)
    if vocab_size is None:
        vocab_size = config.vocab_size if config.dataset is not None else config.num_symbols + NUM_SPECIAL_TOKENS
    generator = built_models.num_gpt2_parameters(config, vocab_size, num_positions(config))
    labels = 1 if config.judging == "scores" else 0
    return generator + built_models.num_gpt2_parameters(config, vocab_size, discriminator_positions(config), labels)


def _activation_bytes(config: LLMGANConfig, precision: str) -> float | None:
    """The larger one of the two models' passes; the judge reads a human and a generated text, or both in one input."""
    if (size := named_model.size_of(config)) is None:
        return None
    vocab_size = size.vocab_size if config.dataset is not None else config.num_symbols + NUM_SPECIAL_TOKENS
    writes = config.batch_size * config.sequence_length * vocab_size * 2  # their logarithms, too, for the entropy
    judged = config.batch_size * (2 if config.judging == "scores" else 1) * discriminator_positions(config)
    verdicts = 0 if config.judging == "scores" else config.batch_size * config.max_judge_tokens * vocab_size
    return max(
        activations.transformer_bytes(config, size, precision, config.batch_size * num_positions(config), writes),
        activations.transformer_bytes(config, size, precision, judged, verdicts),
    )


def model_settings(config: LLMGANConfig, vocab_size: int, num_positions: int) -> dict[str, Any]:
    """Return the arguments of `transformers.GPT2Config` for either model built here.

    The initial weights of narrow models are wider than GPT-2's 0.02: at width 64 the judge's accuracy reaches 0.86 in
    75 steps, not 200.
    """
    settings = built_models.gpt2_settings(config, vocab_size, num_positions)
    return settings | {"initializer_range": max(0.02, 0.8 / math.sqrt(config.hidden_size))}


def num_positions(config: LLMGANConfig) -> int:
    """Longest input of the generator: a prompt and a text; the Markov chain's prompt is one begin token."""
    return (1 if config.dataset is None else config.prompt_length) + config.sequence_length


def discriminator_positions(config: LLMGANConfig) -> int:
    """Longest input of the judge: the generator's; for verdicts a prompt, two texts and a verdict."""
    if config.judging == "scores":
        return num_positions(config)
    return config.prompt_length + 2 * config.sequence_length + NUM_MARKS + config.max_judge_tokens


def load_stories(
    config: LLMGANConfig, root: Path | None = None, say: Say = lambda text: None
) -> tuple[list[stories.Story], list[stories.Story], list[stories.Story]]:
    """Read the training, evaluation and test texts of a dataset; `say` receives notes on texts that are left out.

    Raises:
        DataError: the file is missing or malformed, a text is too short, or fewer than two texts are left.
    """
    if config.dataset == stories.TOPICS:
        topics = list(stories.python_stories(config.min_chars, config.max_chars))
        return stories.split_stories(topics, stories.TOPICS, config.test_fraction, say)
    assert config.dataset is not None, "the Markov chain has no texts"
    return stories.read_stories(data_files.sources_of(config.dataset, root), config, say)


def _source(config: LLMGANConfig, root: Path | None) -> Source:
    if config.dataset is None:
        return Source("sequences of a random Markov chain")
    if config.dataset == stories.TOPICS:
        return text_data.PYTHON_TEXT
    return text_data.table_source([config.dataset], root)


def _guess_columns(first: FirstRows) -> dict[str, str | tuple[str, ...] | None]:
    return {"text_col": None if stories.usual_text(first.columns) else first.text_column(), "prompt_cols": None}


def _usual_columns(columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    text = stories.usual_text(columns)
    return {"text_col": (text,) if text else (), "prompt_cols": stories.usual_prompt(columns, text)}


def _count_samples(config: LLMGANConfig, root: Path | None) -> SampleCounts | None:
    if config.dataset is None:
        held_out = config.eval_samples
        return SampleCounts(config.num_sequences, held_out, held_out if config.test_fraction else 0)
    if hub.named(config.dataset) is not None:
        return None  # counting downloads nothing
    parts = load_stories(config, root)
    note = split.repeated_note(split.keys_of(story.text for part in parts for story in part), "text")
    return SampleCounts.of(map(len, parts), note)


_DATA_FIELDS = (
    "dataset", "text_col", "prompt_cols", "min_chars", "max_chars",
    "short_texts", "clean", "num_sequences", "num_symbols",
)  # fmt: skip

RECIPE = Recipe(
    key="llm_gan",
    title="Generator against judge",
    summary="Train a language model against a judge that tells its texts from human ones.",
    config_class=LLMGANConfig,
    num_parameters=_num_parameters,
    activation_bytes=_activation_bytes,
    source=_source,
    count_samples=_count_samples,
    counted_by=(*_DATA_FIELDS, "eval_samples", "test_fraction"),
    guess_columns=_guess_columns,
    usual_columns=_usual_columns,
    data_fields=_DATA_FIELDS,
    costliest=lambda config: config.replace(generator_warmup_steps=0, judge_warmup_steps=0, judge_accuracy=0.0),
)
