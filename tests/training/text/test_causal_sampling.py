"""Writing from given random numbers: with kept keys and values as without, and nothing that is impossible."""

import math
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from nbtools.training.text import causal_sampling
from nbtools.training.text.causal_sampling import at_rest, drawn, write
from nbtools.training.text.vocabulary import Alphabet

PAD, EOS, SIZE = 0, 1, 12
ALPHABET = Alphabet(SIZE, PAD, EOS, (PAD,))


SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"vocab_size": SIZE, "initializer_range": 0.5, "max_position_embeddings": 32}


def gpt2() -> transformers.PreTrainedModel:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None))


def llama() -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mistral() -> transformers.PreTrainedModel:
    """Each layer sees the last four tokens only."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, num_key_value_heads=1, sliding_window=4))


def slowly(
    model: transformers.PreTrainedModel, prompt: list[int], uniforms_T: torch.Tensor, temperature: float
) -> list[int]:
    """Read everything anew for each token, one text at a time, without any padding."""
    written: list[int] = []
    for uniform in uniforms_T.tolist():
        with torch.no_grad():
            logits_V = model(input_ids=torch.tensor([prompt + written])).logits[0, -1].double() / temperature
        logits_V[PAD] = -math.inf
        cumulative = 0.0
        token = SIZE - 1
        for candidate, probability in enumerate(torch.softmax(logits_V, 0).tolist()):
            cumulative += probability
            if cumulative > uniform:
                token = candidate
                break
        written.append(token)
        if token == EOS:
            break
    return written + [PAD] * (len(uniforms_T) - len(written))


@pytest.mark.promise("guide-G6")
@pytest.mark.parametrize("make", [gpt2, llama, mistral])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_texts_are_those_of_a_loop_that_keeps_nothing(make: type, temperature: float) -> None:
    torch.manual_seed(0)
    model = make().eval()
    prompts = [[3, 4, 5, 6], [7], [8, 9], [2, 2, 2]] * 5
    prompts_BP = torch.tensor([[PAD] * (4 - len(prompt)) + prompt for prompt in prompts])
    uniforms_BT = torch.rand(20, 14, dtype=torch.float64)
    texts_BT = write(model, prompts_BP, uniforms_BT, ALPHABET, temperature=temperature)
    pairs = zip(prompts, uniforms_BT, strict=True)
    assert texts_BT.tolist() == [slowly(model, prompt, uniforms_T, temperature) for prompt, uniforms_T in pairs]
    assert (texts_BT == EOS).any(), "one of them ends, or the test is not a whole one"
    assert not (texts_BT == EOS).any(1).all()
    # Who shares the batch changes nothing.
    assert write(model, prompts_BP[1:2], uniforms_BT[1:2], ALPHABET, temperature=temperature).equal(texts_BT[1:2])


@pytest.mark.promise("safety-own-numbers")
@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_text_depends_on_its_own_numbers_and_not_on_its_batch(make: type) -> None:
    """In double precision, so that the order of a sum cannot move a token."""
    torch.manual_seed(0)
    model = make().double().eval()
    prompts_BP = torch.randint(2, SIZE, (32, 6))
    for row, num_padding in enumerate([0, 1, 5, 3] * 8):
        prompts_BP[row, :num_padding] = PAD
    uniforms_BT = torch.rand(32, 20, dtype=torch.float64)
    together = write(model, prompts_BP, uniforms_BT, ALPHABET)
    for size in (1, 4, 7):
        parts = zip(prompts_BP.split(size), uniforms_BT.split(size), strict=True)
        assert torch.cat([write(model, *part, ALPHABET) for part in parts]).equal(together), size
    wider = torch.nn.functional.pad(prompts_BP, (3, 0), value=PAD)
    assert write(model, wider, uniforms_BT, ALPHABET).equal(together), "nor on the longest prompt"


@pytest.mark.parametrize("make", [gpt2, llama, mistral])
def test_the_likeliest_tokens_are_those_of_generate(make: type) -> None:
    torch.manual_seed(0)
    model = make().eval()
    prompts_BP = torch.randint(2, SIZE, (8, 5))
    prompts_BP[::2, :3] = PAD
    endless = Alphabet(SIZE, PAD, None, (PAD,))
    seen = (prompts_BP != PAD).long()
    options = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": PAD, "suppress_tokens": [PAD]}
    expected = model.generate(prompts_BP, attention_mask=seen, eos_token_id=None, **options)
    assert write(model, prompts_BP, torch.rand(8, 20), endless, temperature=1e-6).equal(expected[:, 5:])


class Waits(TorchDispatchMode):
    """Counts how often the host reads a value of a tensor, for which it waits if that is on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.num_waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_waits += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.promise("safety-own-numbers")
@pytest.mark.parametrize("num_padding", [0, 2])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_the_host_waits_for_a_gpu_once_in_sixteen_tokens(
    make: type, num_padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal_sampling, "_CHECK_EVERY", {"cpu": causal_sampling._CHECK_EVERY["cuda"]})
    torch.manual_seed(0)
    model, prompts_BP = make(), torch.full((4, 4), 5)
    prompts_BP[0, :num_padding] = PAD
    never_ends = Alphabet(SIZE, PAD, EOS, (PAD, EOS))
    waits = []
    for length in (1, 17, 28):
        with Waits() as counted:
            write(model, prompts_BP, torch.rand(4, length), never_ends)
        waits.append(counted.num_waits)
    assert [later - waits[0] for later in waits[1:]] == [1, 1]


def test_it_stops_when_all_texts_have_ended() -> None:
    torch.manual_seed(0)
    model = gpt2()
    read: list[int] = []
    model.register_forward_pre_hook(lambda _, __, options: read.append(options["input_ids"].shape[1]), with_kwargs=True)
    endings = Alphabet(SIZE, PAD, EOS, tuple(token for token in range(SIZE) if token != EOS))
    texts_BT = write(model, torch.full((3, 4), 5), torch.rand(3, 10), endings)
    assert texts_BT.tolist() == [[EOS] + [PAD] * 9] * 3
    assert read == [4]
    read.clear()
    write(model, torch.full((3, 4), 5), torch.rand(3, 10), Alphabet(SIZE, PAD, None, (PAD,)))
    assert read == [4, *[1] * 9], "the prompt once, then one token at a time"


def test_it_leaves_model_and_random_numbers_as_they_were() -> None:
    model = gpt2()
    model.train()
    state = torch.get_rng_state()
    texts = [write(model, torch.full((2, 3), 5), torch.full((2, 6), 0.4), ALPHABET) for _ in range(2)]
    assert texts[0].equal(texts[1]), "no dropout"
    assert model.training
    assert torch.get_rng_state().equal(state)
    model.eval()
    with at_rest(model):
        assert not torch.is_grad_enabled()
    assert not model.training


def test_a_token_is_drawn_as_often_as_it_is_probable() -> None:
    logits_V = torch.tensor([0.3, -1.0, 1.2, -1e9, 0.0])
    uniforms_B = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    counts_V = drawn(logits_V.expand(100_000, 5), uniforms_B).bincount(minlength=5)
    assert counts_V / 100_000 == pytest.approx(torch.softmax(logits_V, 0).numpy(), abs=2e-5)
    sharper_V = drawn(logits_V.expand(100_000, 5), uniforms_B, 0.5).bincount(minlength=5)
    assert sharper_V / 100_000 == pytest.approx(torch.softmax(logits_V * 2, 0).numpy(), abs=2e-5)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53, 1.0])
def test_what_has_no_probability_is_never_drawn(uniform: float) -> None:
    impossible = -1e9
    for possible in range(5):
        logits_1V = torch.full((1, 5), impossible)
        logits_1V[0, possible] = -3.0
        assert drawn(logits_1V, torch.tensor([uniform], dtype=torch.float64)).item() == possible


def test_a_model_that_diverged_still_writes_tokens() -> None:
    logits_BV = torch.tensor([[math.nan] * 4, [0.0, math.nan, 0.0, 0.0], [math.inf, 0.0, 0.0, 0.0]])
    assert set(drawn(logits_BV, torch.tensor([0.0, 0.5, 0.9])).tolist()) <= {0, 1, 2, 3}


def test_rows_of_a_model_beyond_the_vocabulary_are_never_written() -> None:
    torch.manual_seed(0)
    smaller = Alphabet(4, PAD, None, (PAD,))
    texts_BT = write(gpt2(), torch.full((50, 2), 3), torch.rand(50, 8), smaller)
    assert set(texts_BT.flatten().tolist()) <= {1, 2, 3}
