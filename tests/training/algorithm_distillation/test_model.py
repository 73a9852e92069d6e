"""The model of Algorithm Distillation: its loss, its tokens, its cache, and that anybody can load it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, DynamicCache, GPT2Config, GPT2LMHeadModel

from nbtools.data.algorithm_distillation.darkroom import Darkroom
from nbtools.errors import CheckpointError
from nbtools.launcher.checks.sizes import num_trainable_parameters
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.training.algorithm_distillation import model

SMALL: dict[str, Any] = {"grid_size": 3, "horizon": 4, "num_episodes": 5, "sequence_length": 12}
SMALL |= {"num_layers": 2, "num_heads": 2, "hidden_size": 16}
UNSEEN = np.array([[0, 2], [1, 1]])


def small(**changes: Any) -> AlgorithmDistillationConfig:
    return AlgorithmDistillationConfig(**{**SMALL, **changes})


@pytest.fixture
def transformer() -> model.ActionTransformer:
    torch.manual_seed(0)
    made = model.build_action_transformer(small(), UNSEEN).eval()
    for weight in made.parameters():  # GPT-2 begins with zero biases, which would hide what they are added to
        torch.nn.init.normal_(weight, std=0.3)
    return made


def windows(count: int, length: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    tokens_BT4 = rng.integers(0, (3, 3, 6, 3), (count, length, 4))
    return torch.from_numpy(tokens_BT4), torch.from_numpy(rng.integers(0, 5, (count, length)))


def test_the_loss_is_the_formula_action_by_action(transformer: model.ActionTransformer) -> None:
    tokens_BT4, actions_BT = windows(3)
    table = transformer.model.get_input_embeddings().weight
    expected = 0.0
    for row in range(3):
        for place in range(12):
            seen = tokens_BT4[row, : place + 1]
            embedded = [
                table[column] + table[3 + line] + table[6 + action] + table[12 + reward]
                for column, line, action, reward in seen.tolist()
            ]
            logits_A = transformer.model(inputs_embeds=torch.stack(embedded)[None]).logits[0, -1].double()
            expected += (logits_A.logsumexp(0) - logits_A[actions_BT[row, place]]).item()
    assert transformer(tokens_BT4, actions_BT).item() == pytest.approx(expected, rel=1e-4)


def test_every_weight_learns_even_every_row_of_the_embedding(transformer: model.ActionTransformer) -> None:
    transformer(*windows(40)).backward()
    gradients = {name: weight.grad for name, weight in transformer.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values()), "or DDP would wait for it"
    rows_V = gradients["model.transformer.wte.weight"].abs().sum(1)  # type: ignore[union-attr]
    assert len(rows_V) == 3 + 3 + 6 + 3
    assert rows_V.min() > 0


def test_no_action_depends_on_what_comes_later(transformer: model.ActionTransformer) -> None:
    tokens_BT4, _ = windows(1)
    changed = tokens_BT4.clone()
    changed[:, 6:] = torch.tensor([0, 0, 0, 0])
    before, after = (
        transformer.model(inputs_embeds=transformer.embedded(tokens)).logits for tokens in (tokens_BT4, changed)
    )
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@torch.no_grad()
def test_with_a_cache_it_says_what_it_says_of_the_whole(transformer: model.ActionTransformer) -> None:
    tokens_BT4, _ = windows(3)
    cache = DynamicCache(config=transformer.model.config)
    transformer.next_logits(tokens_BT4[:, :7], cache)
    for place in range(7, 12):
        stepwise = transformer.next_logits(tokens_BT4[:, place : place + 1], cache)
        whole = transformer.next_logits(tokens_BT4[:, : place + 1])
        assert torch.allclose(stepwise, whole, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{}, {"grid_size": 9, "horizon": 8, "sequence_length": 40}, {"num_layers": 3}, {"compress_interval": 4}]
)
def test_the_number_of_weights_is_known_before_there_are_any(changes: dict[str, Any]) -> None:
    config = small(**changes)
    real = sum(weight.numel() for weight in model.build_action_transformer(config, UNSEEN).parameters())
    assert num_trainable_parameters(config) == real


def test_whoever_has_transformers_can_load_it(transformer: model.ActionTransformer, tmp_path: Path) -> None:
    transformer.model.save_pretrained(tmp_path / "model")
    opened = model.open_action_transformer(tmp_path / "model").eval()
    assert opened.darkroom == Darkroom(3, 4)
    assert opened.unseen_goals_G2.tolist() == UNSEEN.tolist()
    assert torch.equal(opened(*windows(2)), transformer(*windows(2)))
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "model", trust_remote_code=False)
    assert plain.config.id2label == {0: "right", 1: "left", 2: "down", 3: "up", 4: "stay"}
    embedded = transformer.embedded(windows(2)[0])
    assert torch.equal(plain(inputs_embeds=embedded).logits, transformer.model(inputs_embeds=embedded).logits)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=15, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path / "other")
    (tmp_path / "nothing").mkdir()
    for name in ("other", "nothing"):
        with pytest.raises(CheckpointError, match=f"{name}: holds no model of algorithm_distillation"):
            model.open_action_transformer(tmp_path / name)
    model.build_action_transformer(small(), UNSEEN).model.save_pretrained(tmp_path / "cut")
    path = tmp_path / "cut" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        model.open_action_transformer(tmp_path / "cut")
