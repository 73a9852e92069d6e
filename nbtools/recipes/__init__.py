"""The training recipes of nbtools: configs, presets and sizes, without torch."""

from typing import Literal

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError, did_you_mean
from nbtools.recipes import algorithm_distillation, llm_gan, masked_diffusion, mlm_pretraining, text_classification
from nbtools.recipes.algorithm_distillation import AlgorithmDistillationConfig as AlgorithmDistillationConfig
from nbtools.recipes.llm_gan import LLMGANConfig as LLMGANConfig
from nbtools.recipes.masked_diffusion import MaskedDiffusionConfig as MaskedDiffusionConfig
from nbtools.recipes.mlm_pretraining import MLMPretrainingConfig as MLMPretrainingConfig
from nbtools.recipes.recipe import Preset as Preset
from nbtools.recipes.recipe import Recipe as Recipe
from nbtools.recipes.recipe import Recipes
from nbtools.recipes.recipe import Source as Source
from nbtools.recipes.text_classification import TextClassificationConfig as TextClassificationConfig

# Written out, because an editor completes the values of a Literal without running anything; a test compares them.
RecipeKey = Literal["mlm_pretraining", "masked_diffusion", "text_classification", "algorithm_distillation", "llm_gan"]
PresetName = Literal[
    "cpu_demo", "h200_8gpu_fast", "h200_8gpu_standard", "h200_8gpu_quality", "4gpu_standard", "2gpu_standard",
    "1gpu_standard", "base_8gpu", "base_1gpu", "shakespeare_2gpu", "shakespeare_4gpu", "pretraining_8gpu",
    "mixer_1gpu", "mixer_2gpu", "mixer_4gpu", "finetune_1gpu", "finetune_2gpu", "finetune_4gpu", "2gpu",
    "4gpu", "8gpu", "test", "small", "full",
]  # fmt: skip
"""Names of the presets of all recipes."""

RECIPES = Recipes(
    {
        module.RECIPE.key: module.RECIPE
        for module in (mlm_pretraining, masked_diffusion, text_classification, algorithm_distillation, llm_gan)
    }
)


def recipe_of(config: TrainConfig) -> Recipe:
    """Return the recipe that `config` belongs to."""
    for recipe in RECIPES.values():
        if type(config) is recipe.config_class:
            return recipe
    known = ", ".join(recipe.config_class.__name__ for recipe in RECIPES.values())
    raise ConfigError(f"{type(config).__name__}: no recipe has this config class; use one of {known}")


def recipe_named(key: str) -> Recipe:
    """Return the recipe with the key `key`; ConfigError if there is no such recipe."""
    if key not in RECIPES:
        near = did_you_mean(key, RECIPES) or f"nbtools has {', '.join(RECIPES)}"
        raise ConfigError(f"recipe={key[:80]!r}: there is no such recipe; {near}")
    return RECIPES[key]
