"""The generator's loss: a likelihood, and REINFORCE's gradient when tokens weigh what they earned."""

import pytest
import torch

from nbtools.recipes import LLMGANConfig
from nbtools.training.llm_gan.generator import Generator, build_generator
from nbtools.training.text.causal_sampling import write
from nbtools.training.text.vocabulary import Alphabet

PAD, EOS = 0, 2
ALPHABET = Alphabet(12, PAD, EOS, (PAD, 1))
CONFIG = LLMGANConfig(
    dataset="topics", num_layers=1, num_heads=2, hidden_size=8, sequence_length=5, prompt_length=3, vocab_size=16
)
PROMPTS = torch.tensor([[PAD, 5, 1], [6, 7, 1], [PAD, PAD, 1]])
TEXTS = torch.tensor([[3, 4, 5, 6, EOS], [7, EOS, PAD, PAD, PAD], [8, 9, 9, EOS, PAD]])


@pytest.fixture
def generator() -> Generator:
    torch.manual_seed(0)
    return Generator(build_generator(CONFIG, ALPHABET), ALPHABET).eval()


def lone_logits(generator: Generator, prompt_P: torch.Tensor, text_T: torch.Tensor) -> torch.Tensor:
    """What predicts one text's own tokens, without any padding, over the tokens that may be written."""
    prompt = [token for token in prompt_P.tolist() if token != PAD]
    text = text_T[text_T != PAD].tolist()
    with torch.no_grad():
        logits_TV = generator.model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    return logits_TV.index_fill(1, torch.tensor([PAD, 1]), -torch.inf)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_loss_is_weight_by_likelihood_token_by_token(generator: Generator, temperature: float) -> None:
    mask_BT = ALPHABET.mask(TEXTS)
    weights_BT = torch.randn(3, 5) * mask_BT
    bonus_BT = 0.3 * mask_BT
    expected = expected_bonus = 0.0
    losses: list[float] = []
    for prompt_P, text_T, weights_T in zip(PROMPTS, TEXTS, weights_BT, strict=True):
        logs_TV = (lone_logits(generator, prompt_P, text_T) / temperature).log_softmax(-1)
        for place, log_V in enumerate(logs_TV):
            expected -= float(weights_T[place] * log_V[text_T[place]])
            losses.append(-float(log_V[text_T[place]]))
            expected_bonus -= 0.3 * float(sum(log.exp() * log for log in log_V if log > -torch.inf))
    found = generator(PROMPTS, TEXTS, weights_BT, bonus_BT, temperature)
    assert found.tolist() == pytest.approx([expected, expected_bonus], rel=1e-4)
    assert generator.losses(PROMPTS, TEXTS, temperature)[mask_BT].tolist() == pytest.approx(losses, rel=1e-4)
    assert generator(PROMPTS, TEXTS, weights_BT, None, temperature).tolist() == [pytest.approx(expected, rel=1e-4), 0]


def test_what_is_padding_has_no_loss_and_what_weighs_nothing_no_gradient(generator: Generator) -> None:
    losses_BT = generator.losses(PROMPTS, TEXTS)
    assert (losses_BT > 0).equal(ALPHABET.mask(TEXTS))
    generator(PROMPTS, TEXTS, torch.zeros(3, 5), None, 1.0)[0].backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in generator.parameters())


def test_the_gradient_of_what_it_wrote_is_that_of_the_expected_reward(generator: Generator) -> None:
    """One token long, the expectation can be summed: REINFORCE's mean over many texts has to meet it."""
    torch.manual_seed(1)
    reward_V, bias = torch.randn(12), generator.model.transformer.ln_f.bias
    prompts_BP = PROMPTS[:1].expand(20_000, 3)
    uniforms_B1 = (torch.arange(20_000, dtype=torch.float64)[:, None] + 0.5) / 20_000
    texts_B1 = write(generator.model, prompts_BP, uniforms_B1, ALPHABET)
    generator(prompts_BP, texts_B1, reward_V[texts_B1] / 20_000, None, 1.0)[0].backward()
    found = bias.grad.clone()
    bias.grad = None
    probability_V = (-generator.losses(PROMPTS[:1].expand(12, 3), torch.arange(12)[:, None])[:, 0]).exp()
    (-(probability_V * reward_V).sum()).backward()
    assert bias.grad.abs().max() > 0.01
    assert found.numpy() == pytest.approx(bias.grad.numpy(), abs=1e-3)
