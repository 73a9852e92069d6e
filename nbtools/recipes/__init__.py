"""The training recipes of nbtools: configs, presets and sizes, without torch."""

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError
from nbtools.recipes import algorithm_distillation, llm_gan, masked_diffusion, mlm_pretraining, text_classification
from nbtools.recipes.algorithm_distillation import AlgorithmDistillationConfig
from nbtools.recipes.llm_gan import LLMGANConfig
from nbtools.recipes.masked_diffusion import MaskedDiffusionConfig
from nbtools.recipes.mlm_pretraining import MLMPretrainingConfig
from nbtools.recipes.recipe import Preset, Recipe, Source
from nbtools.recipes.text_classification import TextClassificationConfig

__all__ = [
    "RECIPES",
    "AlgorithmDistillationConfig",
    "LLMGANConfig",
    "MLMPretrainingConfig",
    "MaskedDiffusionConfig",
    "Preset",
    "Recipe",
    "Source",
    "TextClassificationConfig",
    "recipe_named",
    "recipe_of",
]

RECIPES: dict[str, Recipe] = {
    module.RECIPE.key: module.RECIPE
    for module in (mlm_pretraining, masked_diffusion, text_classification, algorithm_distillation, llm_gan)
}


def recipe_of(config: TrainConfig) -> Recipe:
    """Return the recipe that `config` belongs to."""
    for recipe in RECIPES.values():
        if type(config) is recipe.config_class:
            return recipe
    known = ", ".join(recipe.config_class.__name__ for recipe in RECIPES.values())
    raise ConfigError(f"{type(config).__name__}: no recipe has this config class; use one of {known}")


def recipe_named(key: str) -> Recipe:
    """Return the recipe with the key `key`.

    Raises:
        ConfigError: there is no such recipe.
    """
    if key not in RECIPES:
        raise ConfigError(f"recipe={key[:80]!r}: there is no such recipe; nbtools has {', '.join(RECIPES)}")
    return RECIPES[key]
