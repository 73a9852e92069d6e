"""The judge that rates tokens: its loss, what it pays, and that it never pays for what it could not decide."""

import math

import pytest
import torch

from nbtools.recipes import LLMGANConfig
from nbtools.training.llm_gan.discriminator import Pairs, TokenDiscriminator, build_token_discriminator
from nbtools.training.text.vocabulary import Alphabet

PAD, EOS = 0, 2
ALPHABET = Alphabet(12, PAD, EOS, (PAD,))
CONFIG = LLMGANConfig(
    dataset="topics", num_layers=1, num_heads=2, hidden_size=8, sequence_length=5, prompt_length=3, vocab_size=16
)
PROMPTS = torch.tensor([[PAD, 5, 1], [6, 7, 1], [PAD, PAD, 1]])
REALS = torch.tensor([[3, 4, 5, 6, EOS], [7, EOS, PAD, PAD, PAD], [8, 9, EOS, PAD, PAD]])
FAKES = torch.tensor([[9, 9, EOS, PAD, PAD], [3, 3, 3, 3, 3], [EOS, PAD, PAD, PAD, PAD]])
NONE = torch.zeros(3, 0)
PAIRS = Pairs(PROMPTS, REALS, FAKES, NONE)


@pytest.fixture
def discriminator() -> TokenDiscriminator:
    torch.manual_seed(0)
    made = build_token_discriminator(CONFIG, ALPHABET)
    torch.nn.init.normal_(made.model.classifier.weight)
    return made.eval()


def lone_scores(discriminator: TokenDiscriminator, prompt_P: torch.Tensor, text_T: torch.Tensor) -> list[float]:
    """Ratings of one text's own tokens, without any padding."""
    prompt = [token for token in prompt_P.tolist() if token != PAD]
    text = text_T.tolist()
    text = text[: text.index(EOS) + 1] if EOS in text else text
    with torch.no_grad():
        logits = discriminator.model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) :, 0]
    return list(map(float, logits))


def test_the_loss_is_the_cross_entropy_of_human_so_far_token_by_token(discriminator: TokenDiscriminator) -> None:
    expected, right = 0.0, 0
    for prompt, real, fake in zip(PROMPTS, REALS, FAKES, strict=True):
        of_real, of_fake = lone_scores(discriminator, prompt, real), lone_scores(discriminator, prompt, fake)
        expected += sum(math.log1p(math.exp(-score)) for score in of_real) / 10
        expected += sum(math.log1p(math.exp(score)) for score in of_fake) / 10
        right += sum(of_real) / len(of_real) > sum(of_fake) / len(of_fake)
    told = discriminator(*discriminator.prepare(PAIRS, supervised=False))
    assert told.tolist() == [pytest.approx(expected, rel=1e-5), right]
    told[0].backward()
    assert all(weight.grad is not None for weight in discriminator.parameters()), "or DDP would wait for them"


def test_rewards_are_what_the_judge_thinks_of_each_token_and_nothing_behind_the_end(
    discriminator: TokenDiscriminator,
) -> None:
    outcomes_B, rewards_BT = discriminator.judge(PAIRS)
    assert outcomes_B.all()
    for prompt, fake, rewards_T in zip(PROMPTS, FAKES, rewards_BT.tolist(), strict=True):
        scores = lone_scores(discriminator, prompt, fake)
        expected = [2 / (1 + math.exp(-score)) - 1 for score in scores]
        assert rewards_T == pytest.approx(expected + [0.0] * (5 - len(scores)), abs=1e-5)


def test_it_prefers_the_higher_mean_rating(discriminator: TokenDiscriminator) -> None:
    outcomes_B, _ = discriminator.judge(PAIRS)
    for told, prompt, real, fake in zip(outcomes_B.tolist(), PROMPTS, REALS, FAKES, strict=True):
        means = [
            sum(scores) / len(scores) for text in (real, fake) for scores in [lone_scores(discriminator, prompt, text)]
        ]
        assert told == (1 if means[0] > means[1] else -1)
    assert discriminator.judge(Pairs(PROMPTS, FAKES, REALS, NONE))[0].equal(-outcomes_B)


def test_a_judge_without_an_opinion_decides_and_pays_nothing(discriminator: TokenDiscriminator) -> None:
    torch.nn.init.zeros_(discriminator.model.classifier.weight)
    torch.nn.init.constant_(discriminator.model.classifier.bias, 0.7)
    outcomes_B, rewards_BT = discriminator.judge(PAIRS)
    assert outcomes_B.tolist() == [0, 0, 0]
    assert rewards_BT.abs().sum() == 0, "though it takes everything for human"
    assert discriminator(PROMPTS, REALS, FAKES)[1] == 0, "a tie is not right"


def test_a_text_equal_to_the_human_one_is_a_tie(discriminator: TokenDiscriminator) -> None:
    fakes = torch.stack([REALS[0], FAKES[1], FAKES[2]])
    outcomes_B, rewards_BT = discriminator.judge(Pairs(PROMPTS, REALS, fakes, NONE))
    assert (outcomes_B != 0).tolist() == [False, True, True]
    assert rewards_BT[0].abs().sum() == 0


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_judgement_that_is_no_number_pays_nothing(discriminator: TokenDiscriminator, broken: float) -> None:
    with torch.no_grad():
        discriminator.model.classifier.bias.fill_(broken)
    outcomes_B, rewards_BT = discriminator.judge(PAIRS)
    assert outcomes_B.tolist() == [0, 0, 0]
    assert rewards_BT.abs().sum() == 0
