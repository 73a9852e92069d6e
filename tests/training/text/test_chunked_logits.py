"""Losses over a large vocabulary: in chunks as at once, and never more logits than a chunk has."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nbtools.training.engine import optimizer
from nbtools.training.llm_gan.generator import Generator
from nbtools.training.masked_diffusion.llada import LLaDAConfig, LLaDAModelLM
from nbtools.training.masked_diffusion.model import Denoiser
from nbtools.training.mlm_pretraining.masking import IGNORED
from nbtools.training.mlm_pretraining.train import MaskedLM
from nbtools.training.text import chunked_logits
from nbtools.training.text.chunked_logits import PLAIN_CAUSAL_MODELS, head_of
from nbtools.training.text.vocabulary import Alphabet

V, B, T, K = 50, 4, 16, 6
SHAPE: dict[str, Any] = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPE |= {"intermediate_size": 32, "max_position_embeddings": 64, "num_key_value_heads": 2, "head_dim": 8}
NO_SPECIAL: dict[str, Any] = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))


class LargestOfVocabulary(TorchDispatchMode):
    """The largest number of values in a tensor whose last axis is the vocabulary, weights aside."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.ndim > 1 and out.shape[-1] == V and out.shape[0] != 16:
            self.largest = max(self.largest, out.numel())
        return out


def modernbert() -> transformers.PreTrainedModel:
    config = transformers.ModernBertConfig(**SHAPE, **NO_SPECIAL, cls_token_id=None, sep_token_id=None)
    return transformers.ModernBertForMaskedLM(config)


def bert() -> transformers.PreTrainedModel:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SHAPE))


def distilbert() -> transformers.PreTrainedModel:
    """A model whose head is not known: its logits are computed at all positions."""
    shape = {"vocab_size": V, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2}
    return transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**shape))


def llada(**changes: Any) -> transformers.PreTrainedModel:
    shape = {"d_model": 16, "n_heads": 2, "n_layers": 2, "mlp_hidden_size": 32, "vocab_size": V, "embedding_size": V}
    return LLaDAModelLM(LLaDAConfig(**shape, max_sequence_length=64, weight_tying=False, **changes))


def causal(model_type: str) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.for_model(model_type, **SHAPE, **NO_SPECIAL)
    return transformers.AutoModelForCausalLM.from_config(config)


def mlm_loss(model: transformers.PreTrainedModel) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    inputs_BT, labels_BK = torch.randint(3, V, (B, T)), torch.randint(3, V, (B, K))
    labels_BK[0, 0] = IGNORED
    positions_BK = torch.rand(B, T).argsort(1)[:, :K]
    return MaskedLM(model), lambda module: module(inputs_BT, positions_BK, labels_BK)


def diffusion_loss(model: transformers.PreTrainedModel) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    inputs_BT, positions_N = torch.randint(3, V, (B, T)), torch.randperm(B * T)[:25]
    labels_N, weights_N = torch.randint(3, V, (25,)), torch.rand(25) + 0.5
    lengths_B = torch.tensor([16, 9, 12, 16])
    return Denoiser(model, mask_id=2), lambda module: module(inputs_BT, positions_N, labels_N, weights_N, lengths_B)


def gan_loss(model: transformers.PreTrainedModel) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    prompts_BP, texts_BT = torch.randint(3, V, (B, 3)), torch.randint(3, V, (B, T))
    prompts_BP[1, 0] = 0
    weights_BT, bonus_BT = torch.rand(B, T) - 0.5, torch.rand(B, T)
    module = Generator(model, Alphabet(V, 0, 1, (0,)))
    return module, lambda module: module(prompts_BP, texts_BT, weights_BT, bonus_BT, 0.7).sum()


def gan_reference(model: transformers.PreTrainedModel) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    prompts_BP, texts_BT = torch.randint(3, V, (B, 3)), torch.randint(3, V, (B, T))
    return Generator(model, Alphabet(V, 0, 1, (0,))), lambda module: module.losses(prompts_BP, texts_BT).sum()


CASES = {
    "mlm modernbert": (mlm_loss, modernbert),
    "mlm bert": (mlm_loss, bert),
    "mlm unknown head": (mlm_loss, distilbert),
    "diffusion modernbert": (diffusion_loss, modernbert),
    "diffusion bert": (diffusion_loss, bert),
    "diffusion llada": (diffusion_loss, llada),
    "diffusion unknown head": (diffusion_loss, distilbert),
    "gan gpt2": (gan_loss, lambda: causal("gpt2")),
    "gan qwen3": (gan_loss, lambda: causal("qwen3")),
    "gan granite, whose logits are scaled": (gan_loss, lambda: causal("granite")),
    "gan reference loss": (gan_reference, lambda: causal("gpt2")),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_in_chunks_are_those_at_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, build = CASES[case]
    torch.manual_seed(0)
    module, loss_of = make(build().double())
    module.eval()  # without dropout
    found = []
    for largest in (2**25, 4 * V):  # at once, and four positions at a time
        monkeypatch.setattr(chunked_logits, "LARGEST_CHUNK", largest)
        module.zero_grad()
        with LargestOfVocabulary() as watched:
            loss = loss_of(module)
            loss.backward()
        gradients = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
        found.append((loss.detach(), gradients))
    (loss_at_once, at_once), (loss_in_chunks, in_chunks) = found
    assert torch.allclose(loss_in_chunks, loss_at_once, rtol=1e-6, atol=0)
    assert in_chunks.keys() == at_once.keys()
    for name, gradient in at_once.items():
        assert torch.allclose(in_chunks[name], gradient, rtol=1e-6, atol=1e-8), name
    if "head" not in case and "scaled" not in case:
        assert watched.largest <= 4 * V


def test_compiled_model_computes_its_loss_in_chunks_outside_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    module, loss_of = diffusion_loss(llada())
    at_once = loss_of(module).detach()
    monkeypatch.setattr(optimizer, "COMPILER", "eager")
    monkeypatch.setattr(chunked_logits, "LARGEST_CHUNK", 4 * V)
    optimizer.compile_forward(module)
    with LargestOfVocabulary() as watched:
        assert torch.allclose(loss_of(module), at_once, rtol=1e-6, atol=0)
    assert watched.largest <= 4 * V


@pytest.mark.parametrize("model_type", sorted(PLAIN_CAUSAL_MODELS))
def test_head_of_a_plain_causal_model_gives_its_logits(model_type: str) -> None:
    model = causal(model_type).eval()
    tokens_BT = torch.randint(3, V, (2, 7))
    head = head_of(model)
    assert head is not None
    with torch.no_grad():
        assert torch.equal(head(model.base_model(tokens_BT, use_cache=False)[0]), model(tokens_BT).logits)


def test_head_of_a_causal_model_that_changes_its_logits_is_unknown() -> None:
    assert [head_of(causal(each)) for each in ("gemma2", "granite", "cohere")] == [None] * 3
