"""Memory per process of both strategies, from the config alone: against figures computed by hand and real models."""

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, ModernBertConfig, ModernBertForMaskedLM, PreTrainedModel

from nbtools.config import TrainConfig
from nbtools.data.text_classification.codes import CodeSystem
from nbtools.errors import LaunchError
from nbtools.launcher.preflight import check_size
from nbtools.launcher.sizes import memory_of_strategies, num_trainable_parameters, sharded_bytes, training_bytes
from nbtools.machine.devices import Device
from nbtools.recipes import (
    RECIPES,
    AlgorithmDistillationConfig,
    LLMGANConfig,
    MaskedDiffusionConfig,
    MLMPretrainingConfig,
    TextClassificationConfig,
    recipe_of,
)
from nbtools.recipes.gpt2 import gpt2_settings
from nbtools.recipes.modernbert import modernbert_settings, num_gathered
from nbtools.recipes.text_classification import NUM_GENERATED_CODES
from nbtools.training.sharding.fsdp import blocks_of
from nbtools.training.text_classification.model import build_classifier

LLADA = MaskedDiffusionConfig(model_name="GSAI-ML/LLaDA-8B-Instruct", precision="bf16", batch_size=1)
GB = 10**9


def gpus(gib: int, count: int) -> list[Device]:
    return [Device(index, f"GPU-{index}", "a GPU", gib * 2**30, 0, (), str(index), (9, 0)) for index in range(count)]


def test_llada_by_hand() -> None:
    """16 bytes for 8.016 billion weights; two tables of 126,464 x 4,096 (1.036) and two of 32 blocks are gathered."""
    assert training_bytes(LLADA, "bf16") == pytest.approx(128.25 * GB, rel=1e-3)
    gathered = 8 * 1.036 * GB + 4 * 0.2181 * GB
    for world_size in (1, 2, 8):
        found = sharded_bytes(LLADA, world_size, "bf16")
        assert found == pytest.approx(128.25 * GB / world_size + gathered, rel=1e-3)


def test_an_adapter_on_llada_by_hand() -> None:
    """Frozen: 7.498 billion in linear layers at 2 bytes, the rest at 4; trained at 16; gathered in bf16."""
    config = LLADA.replace(adapter="lora", lora_targets=("q_proj", "v_proj"))
    trained = 32 * 2 * 16 * (4096 + 4096)
    frozen = 2 * 7.4972e9 + 4 * 0.5182e9
    for world_size in (1, 2, 8):
        expected = (16 * trained + frozen) / world_size + 2 * 1.036e9 + 4 * 0.2181e9
        assert sharded_bytes(config, world_size, "bf16") == pytest.approx(expected, rel=1e-3)
        assert memory_of_strategies(config, world_size, "bf16")[1] == (
            None if world_size == 1 else sharded_bytes(config, world_size, "bf16")
        )


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_weights_outside_the_blocks_and_of_a_block_are_those_of_the_real_model(layers: int) -> None:
    config = MLMPretrainingConfig(num_layers=layers, num_heads=2, hidden_size=32, vocab_size=60)
    model = ModernBertForMaskedLM(ModernBertConfig(**modernbert_settings(config, 60)))
    last = sum(weight.numel() for weight in model.model.layers[-1].parameters())
    blocks = sum(weight.numel() for weight in model.model.layers.parameters())
    outside, block = num_gathered(config, 60)
    assert outside == sum(weight.numel() for weight in model.parameters()) - blocks
    assert layers == 1 or block == last


def test_what_does_not_fit_is_refused_with_the_strategy_that_does() -> None:
    sharded = LLADA.replace(strategy="fsdp")
    with pytest.raises(LaunchError, match=r"take 119\.4 GiB .* has 80\.0 GiB: set strategy='fsdp', .* 23\.5 GiB"):
        check_size(LLADA, 8, gpus(80, 8))
    for config in (LLADA, sharded):
        with pytest.raises(LaunchError, match=r"GPU 0 \(a GPU\) has 24\.0 GiB: choose GPUs with more memory"):
            check_size(config, 1, gpus(24, 1))
    assert "23.5 GiB per process" in str(check_size(sharded, 8, gpus(80, 8))[-1])
    assert "68.3 GiB per process" in str(check_size(sharded, 2, gpus(141, 2))[-1])
    assert RECIPES["masked_diffusion"].num_gathered(LLADA.replace(model_name="my/own")) is None


def gpt2s(config: AlgorithmDistillationConfig | LLMGANConfig) -> list[PreTrainedModel]:
    count = 1 if isinstance(config, AlgorithmDistillationConfig) else 2
    return [GPT2LMHeadModel(GPT2Config(**gpt2_settings(config, 20, 30))) for _ in range(count)]


def canine(config: TextClassificationConfig) -> list[PreTrainedModel]:
    codes = [f"{number:05}" for number in range(NUM_GENERATED_CODES)]
    system = CodeSystem.of("hisco", codes, config.max_codes)
    return [build_classifier(config, system, torch.full((len(codes),), 0.1))]


@pytest.mark.parametrize(
    ("config", "build"),
    [
        (AlgorithmDistillationConfig(num_layers=3, num_heads=2, hidden_size=16), gpt2s),
        (LLMGANConfig(num_layers=3, num_heads=2, hidden_size=16), gpt2s),
        (TextClassificationConfig(num_layers=3, num_heads=2, hidden_size=16), canine),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TrainConfig) else "",
)
def test_all_but_the_blocks_that_sharding_finds_is_gathered_with_the_root(config: Any, build: Any) -> None:
    outside, layer = recipe_of(config).num_gathered(config) or (0, 0)
    blocks = [block for model in build(config) for block in blocks_of(model)]
    sizes = [sum(weight.numel() for weight in block.parameters()) for block in blocks]
    assert {*sizes} == {layer}
    assert outside + sum(sizes) == num_trainable_parameters(config)
