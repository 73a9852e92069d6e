"""The model of Algorithm Distillation: a causal transformer (GPT-2) that reads what happened and says what to do next.

Every step of the room is one token: the sum of four rows of the model's own embedding, for column, row, last action and
last reward (Laskin et al. 2022, "In-context Reinforcement Learning with Algorithm Distillation", arXiv 2210.14215, have
observation, action and reward there as well). Told apart like this, what it learns of a column holds in every row.

Shape suffixes: B batch, T steps, A actions, H width; the 4 are column, row, last action, last reward.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import Cache, GPT2Config, GPT2ForTokenClassification

from nbtools.data.algorithm_distillation.darkroom import NUM_ACTIONS, Darkroom, Integers
from nbtools.errors import CheckpointError
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.recipes.algorithm_distillation import vocab_size
from nbtools.recipes.gpt2 import gpt2_settings
from nbtools.training.engine import checkpoint
from nbtools.training.text import pretrained

ACTIONS = ("right", "left", "down", "up", "stay")


class Distiller(nn.Module):
    """A causal transformer with a head that scores the actions."""

    def __init__(self, model: GPT2ForTokenClassification) -> None:
        super().__init__()
        self.model = model
        size = model.config.grid_size
        offsets_4 = torch.tensor([0, size, 2 * size, 2 * size + NUM_ACTIONS + 1])
        self.register_buffer("offsets_4", offsets_4, persistent=False)
        self.offsets_4: torch.Tensor

    @property
    def darkroom(self) -> Darkroom:
        """The room that it was trained in."""
        config = self.model.config
        return Darkroom(config.grid_size, config.horizon, reward_once=config.reward_once)

    @property
    def unseen_goals_G2(self) -> Integers:
        """The goals that no history was made for, as pairs of column and row."""
        return np.array(self.model.config.unseen_goals, dtype=np.int64).reshape(-1, 2)

    @property
    def context(self) -> int:
        """The most steps that it can read, the newest one included."""
        return int(self.model.config.n_positions)

    def forward(self, tokens_BT4: torch.Tensor, actions_BT: torch.Tensor) -> torch.Tensor:
        """Return the sum of the cross-entropies of all actions, in nats.

        Args:
            tokens_BT4: what was seen before each action.
            actions_BT: what was done.
        """
        logits_BTA = self.model(inputs_embeds=self.embedded(tokens_BT4), use_cache=False).logits
        return nn.functional.cross_entropy(logits_BTA.float().flatten(0, 1), actions_BT.flatten(), reduction="sum")

    def embedded(self, tokens_BT4: torch.Tensor) -> torch.Tensor:
        """Return the sum of the four rows of the embedding that stand for each step. Shape (B, T, H)."""
        rows_BT4H: torch.Tensor = self.model.transformer.wte(tokens_BT4 + self.offsets_4)
        return rows_BT4H.sum(2)

    def next_logits(self, tokens_BT4: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """Return the scores of the actions after the last of these steps, in fp32. Shape (B, A).

        Args:
            tokens_BT4: steps that follow those in the cache.
            cache: of the steps before, grows by these; None where there are none to come.
        """
        hidden_BTH = self.model.transformer(
            inputs_embeds=self.embedded(tokens_BT4), past_key_values=cache, use_cache=cache is not None
        ).last_hidden_state
        logits_BA: torch.Tensor = self.model.classifier(self.model.dropout(hidden_BTH[:, -1]))
        return logits_BA.float()


def build_distiller(config: AlgorithmDistillationConfig, unseen_goals_G2: Integers) -> Distiller:
    """Build a GPT-2 of the config's size; what room and which goals it is for stands in its own config, too."""
    settings = gpt2_settings(config, vocab_size(config.grid_size), config.sequence_length)
    settings |= {name: getattr(config, name) for name in ("grid_size", "horizon", "reward_once")}
    settings["unseen_goals"] = unseen_goals_G2.tolist()
    settings["id2label"] = dict(enumerate(ACTIONS))
    settings["label2id"] = {name: number for number, name in enumerate(ACTIONS)}
    return Distiller(GPT2ForTokenClassification(GPT2Config(**settings)))


def open_distiller(folder: Path) -> Distiller:
    """Open what the model's `save_pretrained` wrote; nothing in the folder is executed.

    Raises:
        CheckpointError: it holds no such model, or is damaged.
    """
    try:
        settings = GPT2Config.from_pretrained(folder, trust_remote_code=False)
        distiller = Distiller(GPT2ForTokenClassification(settings))
        distiller.darkroom, distiller.unseen_goals_G2  # noqa: B018 - they may be missing
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder}: holds no model of algorithm_distillation ({pretrained.first_line(error)})"
        ) from error
    checkpoint.load_weights(distiller.model, folder)
    return distiller
