"""The memory of activations that the form shows, against the tensors that autograd really keeps in a training."""

import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from nbtools.config import TrainConfig
from nbtools.launcher.checks.sizes import activation_bytes, check_size
from nbtools.machine.devices import Device
from nbtools.project import Project
from nbtools.recipes import RECIPES, MaskedDiffusionConfig, MLMPretrainingConfig, activations
from nbtools.recipes.built_models import gpt2_settings, modernbert_settings
from nbtools.training.engine.optimizer import enable_gradient_checkpointing
from nbtools.training.masked_diffusion.llada import LLaDAConfig, LLaDAModelLM

from trainings import TINY, train_here, write_base, write_inputs


class Kept:
    """A tensor that a graph keeps for its backward pass; the bytes of all of them, and the most at once."""

    bytes_now = most_bytes = 0
    num_tensors: Counter[int] = Counter()
    """By the address of their memory, which views share."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.memory = tensor, tensor.untyped_storage()
        address = self.memory.data_ptr()
        Kept.bytes_now += self.memory.nbytes() if not Kept.num_tensors[address] else 0
        Kept.num_tensors[address] += 1
        Kept.most_bytes = max(Kept.most_bytes, Kept.bytes_now)

    def __del__(self) -> None:
        address = self.memory.data_ptr()
        Kept.num_tensors[address] -= 1
        Kept.bytes_now -= self.memory.nbytes() if not Kept.num_tensors[address] else 0


def keep(tensor: torch.Tensor) -> Any:
    is_weight = isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)
    return tensor if is_weight else Kept(tensor)


WIDE = {"num_layers": 2, "hidden_size": 64}
DEEP = {"num_layers": 4, "hidden_size": 32, "batch_size": 16}
OWN: dict[str, dict[str, Any]] = {
    "mlm_pretraining": {"vocab_size": 45},
    "masked_diffusion": {"vocab_size": 16},
    "text_classification": {"sequence_length": 16, "augmentation": 0.0, "unknown_lang": 0.0},
    "algorithm_distillation": {},
    "llm_gan": {"generator_warmup_steps": 0, "judge_warmup_steps": 1},
}
"""Vocabularies as small as those of the data, and texts that are as long as they may be."""


@pytest.mark.parametrize("size", [WIDE, {**DEEP, "precision": "bf16"}], ids=["wide", "deep"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_activations_are_within_a_quarter_of_what_autograd_keeps(
    recipe: str, size: dict[str, Any], cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(recipe, cpu_project)
    values = {**TINY[recipe], **OWN[recipe], **size, "max_steps": 3, "eval_every": 1000, "checkpoint_every": 1000}
    config = RECIPES[recipe].config_class(**values)
    most_bytes = most_kept(cpu_project, config, monkeypatch)
    precision = "bf16" if config.precision == "bf16" else "fp32"
    assert RECIPES[recipe].activation_bytes(config, precision) == pytest.approx(most_bytes, rel=0.25)


def most_kept(project: Project, config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes that a training keeps for its backward passes at most."""
    Kept.bytes_now = Kept.most_bytes = 0
    Kept.num_tensors.clear()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: getattr(kept, "tensor", kept)):
        train_here(project, config, monkeypatch=monkeypatch)
    return Kept.most_bytes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["bert", "llada"])
def test_those_of_a_named_model_follow_from_its_shape(
    kind: str, precision: str, cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BERT's plain layers and LLaDA's gated ones; autocast's copies of weights are kept, too."""
    recipe = "masked_diffusion" if kind == "llada" else "mlm_pretraining"
    write_inputs(recipe, cpu_project)
    write_base(recipe, cpu_project)
    monkeypatch.chdir(cpu_project.root)
    if kind == "llada":
        wide = LLaDAConfig.from_pretrained("base", d_model=64, n_layers=4, mlp_hidden_size=192)
        LLaDAModelLM(wide).save_pretrained("base")
    else:
        size = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
        transformers.BertForMaskedLM(
            transformers.BertConfig(vocab_size=45, max_position_embeddings=32, **size)
        ).save_pretrained("base")
    values = {**TINY[recipe], "model_name": "base", "precision": precision, "batch_size": 16, "max_steps": 2}
    for strategy in ("ddp", "fsdp"):
        values |= {"strategy": strategy, "eval_every": 1000, "checkpoint_every": 1000}
        config = RECIPES[recipe].config_class(**values)
        kept = most_kept(cpu_project, config, monkeypatch)
        assert activation_bytes(config, precision) == pytest.approx(kept, rel=0.1)


class Live(TorchDispatchMode):
    """Counts the memory of all tensors that are made within, and the most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_now = self.most_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return tree_map_only(torch.Tensor, self._count, function(*args, **(kwargs or {})))

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if (address := memory.data_ptr()) not in self._known:
            self._known.add(address)
            self.bytes_now += memory.nbytes()
            self.most_bytes = max(self.most_bytes, self.bytes_now)
            weakref.finalize(memory, self._forget, address, memory.nbytes())
        return tensor

    def _forget(self, address: int, num_bytes: int) -> None:
        self._known.discard(address)
        self.bytes_now -= num_bytes


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["ModernBERT", "GPT-2"])
def test_activations_are_those_of_a_whole_pass_with_checkpointing_or_without(kind: str, checkpointing: bool) -> None:
    size = {"num_layers": 6, "num_heads": 4, "hidden_size": 128, "sequence_length": 128, "vocab_size": 50}
    config = MaskedDiffusionConfig(**size, gradient_checkpointing=checkpointing)
    inputs_BT = torch.randint(6, 50, (8, 128))
    settings = modernbert_settings(config, 50) if kind == "ModernBERT" else gpt2_settings(config, 50, 128)
    model: Any = (
        transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings))
        if kind == "ModernBERT"
        else transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, use_cache=False))
    )
    if checkpointing:
        enable_gradient_checkpointing(model)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)  # counted with the weights
    with Live() as live:
        model.train()(input_ids=inputs_BT).logits.log_softmax(-1)[..., 0].mean().backward()
    estimate = activations.transformer_bytes(config, config, "fp32", inputs_BT.numel(), inputs_BT.numel() * 50)
    assert estimate == pytest.approx(live.most_bytes, rel=0.25)


def test_the_check_says_the_memory_of_a_batch_and_warns_of_a_gpu_that_is_too_small() -> None:
    config = MLMPretrainingConfig(batch_size=512, sequence_length=512, num_layers=12, num_heads=12, hidden_size=768)
    small, large = (Device(n, f"GPU-{n}", "a GPU", gib * 2**30, 0, (), "0") for n, gib in ((0, 16), (1, 400)))
    for gpus, level in (([large], "ok"), ([large, small], "warn")):
        (memory,) = [found for found in check_size(config, 1, gpus) if found.subject == "memory"]
        assert memory.level == level
        assert memory.text.startswith("about ")
    assert "GPU 0 (a GPU) has 16.0 GiB" in memory.text and "gradient_checkpointing" in memory.next_step
    saving = config.replace(gradient_checkpointing=True, precision="bf16")
    wide, narrow = activation_bytes(config, "fp32"), activation_bytes(saving, "bf16")
    assert wide is not None and narrow is not None and narrow < wide / 3
