"""The model of Algorithm Distillation: a causal transformer (GPT-2) that predicts the next action from a history.

Every step is one token: the sum of four rows of the model's embedding, for column, row, last action and last reward
(Laskin et al. 2022, "In-context Reinforcement Learning with Algorithm Distillation", arXiv 2210.14215, also embed
observation, action and reward). Separate rows for column and row generalize over positions.

With a compressed context the steps are divided into regions of `compress_interval`, each between two marker tokens,
and the context is the current region and the one before it (github.com/tommyma3/AD_with_Compressed_Dataset). A region
ends by its number of steps, in training and in rollouts.

Shape suffixes: B batch, T steps, A actions, H width; the 4 are column, row, last action, last reward.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import Cache, GPT2Config, GPT2ForTokenClassification

from nbtools.data.algorithm_distillation.darkroom import NUM_ACTIONS, NUM_REWARDS, Darkroom, Integers
from nbtools.errors import CheckpointError
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.recipes.algorithm_distillation import vocab_size
from nbtools.recipes.built_models import gpt2_settings
from nbtools.training.engine import checkpoint
from nbtools.training.engine.sampler import IGNORED
from nbtools.training.text import pretrained_models

ACTIONS = ("right", "left", "down", "up", "stay")
REGION_START, REGION_END = NUM_REWARDS + 1, NUM_REWARDS + 2
"""Ids of the markers of regions, in the place of the last reward; the other three of a marker are 0."""


class ActionTransformer(nn.Module):
    """A causal transformer with a head that predicts actions."""

    forward_methods = ("next_logits",)

    def __init__(self, model: GPT2ForTokenClassification) -> None:
        super().__init__()
        self.model = model
        config, size = model.config, model.config.grid_size
        self.darkroom = Darkroom(size, config.horizon, reward_once=config.reward_once)
        """The environment of its training."""
        self.unseen_goals_G2: Integers = np.array(config.unseen_goals, dtype=np.int64).reshape(-1, 2)
        """Goals without training histories, as pairs of column and row."""
        self.context = int(config.n_positions)
        """Longest context in steps, the current one included."""
        self.compress_interval: int | None = getattr(config, "compress_interval", None)
        """Steps of a region of a compressed context."""
        offsets_4 = torch.tensor([0, size, 2 * size, 2 * size + NUM_ACTIONS + 1])
        self.register_buffer("offsets_4", offsets_4, persistent=False)
        self.offsets_4: Tensor

    def forward(self, tokens_BT4: Tensor, actions_BT: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of all actions, in nats; `IGNORED` ones add nothing."""
        logits_BTA = self.model(inputs_embeds=self.embedded(tokens_BT4), use_cache=False).logits
        return nn.functional.cross_entropy(
            logits_BTA.float().flatten(0, 1), actions_BT.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def embedded(self, tokens_BT4: Tensor) -> Tensor:
        """Return the embedding of each step: the sum of four rows. Shape (B, T, H)."""
        rows_BT4H: Tensor = self.model.transformer.wte(tokens_BT4 + self.offsets_4)
        return rows_BT4H.sum(2)

    def next_logits(self, tokens_BT4: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits of the action after the last step, in fp32. Shape (B, A).

        Args:
            tokens_BT4: steps after those in the cache.
            cache: keys and values of the previous steps, extended by these; None for no cache.
        """
        hidden_BTH = self.model.transformer(
            inputs_embeds=self.embedded(tokens_BT4), past_key_values=cache, use_cache=cache is not None
        ).last_hidden_state
        logits_BA: Tensor = self.model.classifier(self.model.dropout(hidden_BTH[:, -1]))
        return logits_BA.float()


def places_of_steps(num_steps: int, interval: int) -> npt.NDArray[np.int64]:
    """Return where steps are among the tokens of a compressed context, which starts at a region. Shape (T,)."""
    steps_T = np.arange(num_steps)
    return steps_T + 1 + 2 * (steps_T // interval)


def with_markers(tokens_BT4: npt.NDArray[np.int64], interval: int) -> npt.NDArray[np.int64]:
    """Return steps that start at a region with a marker before each region, and one behind each that another follows.

    The shape is (B, T + markers, 4).
    """
    places_T = places_of_steps(tokens_BT4.shape[1], interval)
    marked = np.zeros((len(tokens_BT4), places_T[-1] + 1, 4), dtype=np.int64)
    marked[..., 3] = REGION_START
    marked[:, places_T[interval::interval] - 2, 3] = REGION_END
    marked[:, places_T] = tokens_BT4
    return marked


def build_action_transformer(config: AlgorithmDistillationConfig, unseen_goals_G2: Integers) -> ActionTransformer:
    """Build a GPT-2 of the config's size; its own config records the environment and the unseen goals."""
    settings = gpt2_settings(config, vocab_size(config), config.sequence_length)
    names = ("grid_size", "horizon", "reward_once", "compress_interval")
    settings |= {name: getattr(config, name) for name in names}
    settings["unseen_goals"] = unseen_goals_G2.tolist()
    settings["id2label"] = dict(enumerate(ACTIONS))
    settings["label2id"] = {name: number for number, name in enumerate(ACTIONS)}
    return ActionTransformer(GPT2ForTokenClassification(GPT2Config(**settings)))


def open_action_transformer(folder: Path) -> ActionTransformer:
    """Load what `save_pretrained` wrote, executing nothing; CheckpointError if it holds no such model."""
    try:
        settings = GPT2Config.from_pretrained(folder, trust_remote_code=False)
        transformer = ActionTransformer(GPT2ForTokenClassification(settings))
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder}: holds no model of algorithm_distillation ({pretrained_models.first_line(error)})"
        ) from error
    checkpoint.load_weights(transformer.model, folder)
    return transformer
