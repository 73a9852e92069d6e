"""Settings of predictions with a trained model, per recipe. No torch."""

import contextlib
import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError
from nbtools.recipes import LLMGANConfig, MaskedDiffusionConfig, recipe_of
from nbtools.settings import Settings, setting

Input = str | dict[str, str]
"""A text, or values by name: a text classifier takes `text` and `lang`."""


class PredictSettings(Settings):
    """The settings of a prediction; a default is replaced by the value of the run's config under the same name."""

    input_help: ClassVar[str]
    example: ClassVar[str]
    needs_input: ClassVar[bool] = True
    """Whether an empty input means nothing to the model."""
    columns: ClassVar[tuple[str, ...]] = ("text",)
    """Results that are columns of a table; JSON contains all."""


def _trained(config: type[TrainConfig], name: str, *, basic: bool = False) -> Any:
    """Declare a setting as that of the same name in the config of a training."""
    field = copy.copy(config.model_fields[name])
    field.json_schema_extra = {"unit": config.unit(name), "basic": basic}
    return field


SEED = setting(0, "Seed of the random numbers.", ge=0, lt=2**63, basic=True)
PREDICT_BATCH_SIZE = setting(64, "Texts per forward pass; affects speed and memory only.", "texts", ge=1)
NUM_FRAMES = setting(0, "Intermediate states to record with a result, which a page can play.", "states", ge=0, le=200)


class MLMPretrainingPredict(PredictSettings):
    """Fill the masks of texts."""

    input_help = "A text in which [MASK] stands for each missing token."
    example = "The [MASK] of the house was open."
    top_k: int = setting(5, "Candidates for each mask.", "tokens", ge=1, le=100, basic=True)
    predict_batch_size: int = PREDICT_BATCH_SIZE


class TextClassificationPredict(PredictSettings):
    """Assign codes to texts."""

    input_help = "A text to assign codes to."
    example = "smed og husmand"
    columns = ("codes", "descriptions", "probability", "is_accepted", "note")
    lang: str | None = setting(
        None, "Language of texts that name none, as in the training data; None if it is unknown.", basic=True
    )
    num_sets: int = setting(
        1, "Sets of codes to search for; they are listed, likeliest first.", "sets", ge=1, le=100, basic=True
    )
    descriptions: str | None = setting(
        None,
        "A CSV file with codes (hisco or code) and what they mean (en_hisco_text or description), such as OccCANINE's "
        "Key.csv, which is listed with the codes.",
    )
    top_k: int = setting(5, "Codes that are listed with the probability that each has alone.", "codes", ge=0, le=100)
    predict_batch_size: int = PREDICT_BATCH_SIZE


class MaskedDiffusionPredict(PredictSettings):
    """Write texts, continuations of texts, or answers to prompts."""

    input_help = "The beginning of a text, or a prompt; leave it empty for a text without a prompt."
    example = "The house "
    needs_input = False
    temperature: float = _trained(MaskedDiffusionConfig, "temperature", basic=True)
    sample_steps: int | None = _trained(MaskedDiffusionConfig, "sample_steps", basic=True)
    sample_length: int | None = setting(
        None, "Tokens to write; None for as many as fit behind the prompt, at most 64.", "tokens", ge=1, le=32_768
    )
    sample_block_length: int | None = _trained(MaskedDiffusionConfig, "sample_block_length")
    remasking: Literal["low_confidence", "random"] = _trained(MaskedDiffusionConfig, "remasking", basic=True)
    guidance: float = _trained(MaskedDiffusionConfig, "guidance")
    suppress_eos: bool = _trained(MaskedDiffusionConfig, "suppress_eos")
    eos_last: bool = _trained(MaskedDiffusionConfig, "eos_last")
    chat_template: bool = setting(True, "Put the prompt into the tokenizer's chat template, if it has one.")
    seed: int = SEED
    predict_batch_size: int = setting(16, "Texts per forward pass; affects speed and memory only.", "texts", ge=1)
    num_frames: int = NUM_FRAMES


class AlgorithmDistillationPredict(PredictSettings):
    """Runs the model in the Darkroom with frozen weights."""

    input_help = "A goal as column:row, counted from 0; leave it empty for the first goal that the training left out."
    example = "7:2"
    needs_input = False
    episodes: int = setting(20, "Episodes of each rollout.", ge=1, le=10_000, basic=True)
    rollouts: int = setting(16, "Rollouts; their mean return is reported.", ge=1, le=10_000, basic=True)
    keeps_context: bool = setting(True, "Keep earlier episodes in the context, from which the model learns the goal.")
    hides_rewards: bool = setting(False, "Show the model a reward of 0 at every step.")
    seed: int = SEED
    num_frames: int = NUM_FRAMES


class LLMGANPredict(PredictSettings):
    """Writes texts with the generator."""

    input_help = "A prompt, written as in the training data; the Markov chain has none."
    example = "title: The house"
    needs_input = False
    temperature: float = _trained(LLMGANConfig, "temperature", basic=True)
    num_texts: int = setting(1, "Texts for each prompt.", "texts", ge=1, le=1000, basic=True)
    seed: int = SEED
    predict_batch_size: int = PREDICT_BATCH_SIZE


PREDICT_SETTINGS: Mapping[str, type[PredictSettings]] = {
    "mlm_pretraining": MLMPretrainingPredict,
    "masked_diffusion": MaskedDiffusionPredict,
    "text_classification": TextClassificationPredict,
    "algorithm_distillation": AlgorithmDistillationPredict,
    "llm_gan": LLMGANPredict,
}


def settings_of(config: TrainConfig) -> PredictSettings:
    """Return the settings for a run, with its config's values."""
    cls = PREDICT_SETTINGS[recipe_of(config).key]
    values: dict[str, Any] = {}
    for name in cls.model_fields:
        if (value := getattr(config, name, None)) is not None:
            with contextlib.suppress(ConfigError):  # beyond the bounds of a prediction
                cls(**{name: value})
                values[name] = value
    return cls(**values)
