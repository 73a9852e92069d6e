r"""The judge that writes: what it reads, whom a verdict pays, what it learns from, and that it learns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax

from nbtools.data.llm_gan.stories import Story
from nbtools.recipes import LLMGANConfig
from nbtools.recipes.llm_gan import load_stories
from nbtools.training.llm_gan import llm_judge
from nbtools.training.llm_gan.dataset import tokenize_stories
from nbtools.training.llm_gan.discriminator import Pairs
from nbtools.training.llm_gan.gan_data import GANData
from nbtools.training.llm_gan.llm_judge import LLMJudge, build_llm_judge, parse_verdict
from nbtools.training.llm_gan.pretrained import pretrained_tokenizer
from nbtools.training.text.vocabulary import padded_inputs

from trainings import save_pair

STORIES = [
    Story("title: the dog", "the dog runs far"),
    Story("", "the cat sleeps"),
    Story("title: both", "the cat and the dog sleep and sleep and sleep"),
]


def tiny(**changes: Any) -> LLMGANConfig:
    values = {"dataset": "data.csv", "judging": "verdicts", "sequence_length": 6, "prompt_length": 5}
    values |= {"max_judge_tokens": 5, "num_layers": 1, "num_heads": 2, "hidden_size": 16}
    return LLMGANConfig(**{**values, **changes})


@pytest.fixture
def data() -> GANData:
    return tokenize_stories(tiny(), STORIES, STORIES[:1])


@pytest.fixture
def discriminator(data: GANData) -> LLMJudge:
    torch.manual_seed(0)
    return build_llm_judge(tiny(), data)


@pytest.fixture
def pairs(data: GANData) -> dict[str, torch.Tensor]:
    """The three stories, and fakes that are other stories' words."""
    prompts, reals = (torch.from_numpy(rows.astype(np.int64)) for rows in vars(data.train).values())
    return {"prompts_BP": prompts, "reals_BT": reals, "fakes_BT": reals.roll(1, 0)}


FIRST, SECOND = 0.2, 0.7
"""Numbers that put the human text first, or second."""


def drawn(pairs: dict[str, torch.Tensor], *firsts: float) -> Pairs:
    """Return pairs with the numbers that order their texts, by default another order for the second pair."""
    numbers = [[first, *[0.5] * 5] for first in firsts or (FIRST, SECOND, FIRST)]
    return Pairs(**pairs, uniforms_BU=torch.tensor(numbers, dtype=torch.float64))


def says(monkeypatch: pytest.MonkeyPatch, data: GANData, *texts: str, num_tokens: int = 5) -> list[torch.Tensor]:
    """Let the judge write given verdicts; what it was asked is appended to the list that comes back."""
    tokenizer, asked = data.tokenizer, []
    assert tokenizer is not None
    ids = tokenizer.get_vocab()
    rows = torch.zeros((len(texts), num_tokens), dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        tokens = [ids[word] for word in text.split()]
        row[: len(tokens)] = torch.tensor(tokens)

    def write(model: torch.nn.Module, questions: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        asked.append(questions)
        return rows

    monkeypatch.setattr(llm_judge, "write", write)
    return asked


def words(data: GANData, tokens: torch.Tensor) -> str:
    assert data.tokenizer is not None
    return " ".join(data.tokenizer.convert_ids_to_tokens(tokens[tokens != data.alphabet.pad_id].tolist()))


@pytest.mark.parametrize(
    ("verdict", "answer"),
    [
        (r"the first is livelier \boxed{1}", 1),
        (r"\boxed{2}", 2),
        (r"so \boxed{2} , yes \boxed{ 2 }", 2),
        (r"\ boxed { 1 }", 1),
        (r"\boxed{1} or \boxed{2}", 0),
        (r"\boxed{3}", 0),
        (r"\boxed{1} \boxed{0}", 0),
        (r"\boxed{}", 0),
        (r"\boxed{1", 0),
        ("1", 0),
        ("", 0),
    ],
)
def test_a_verdict_is_read_only_where_it_names_one_text(verdict: str, answer: int) -> None:
    assert parse_verdict(verdict) == answer


def test_the_judge_reads_the_prompt_and_both_texts_in_the_order_that_was_drawn(
    discriminator: LLMJudge, data: GANData, pairs: dict[str, torch.Tensor]
) -> None:
    asked = discriminator.questions(**pairs, is_human_first_B=torch.tensor([True, False, True]))
    assert [words(data, row) for row in asked] == [
        "[BOS] title : the dog [1] the dog runs far [EOS] [2] the cat and the dog sleep [?]",
        "[BOS] [1] the dog runs far [EOS] [2] the cat sleeps [EOS] [?]",
        "[BOS] title : both [1] the cat and the dog sleep [2] the cat sleeps [EOS] [?]",
    ]
    for row in asked:
        is_token = row != data.alphabet.pad_id
        assert is_token.tolist() == sorted(is_token.tolist()), "padding is on the left"


def test_what_the_generator_really_wrote_is_read_not_what_its_text_would_become(
    discriminator: LLMJudge, data: GANData, pairs: dict[str, torch.Tensor]
) -> None:
    ids = data.tokenizer.get_vocab()  # type: ignore[union-attr]
    odd = [ids["[UNK]"], ids["dog"], ids["[EOS]"], ids["cat"], ids["[UNK]"], ids["the"]]
    pairs["fakes_BT"] = torch.tensor([odd] * 3)
    asked = discriminator.questions(**pairs, is_human_first_B=torch.tensor([False, False, False]))
    assert words(data, asked[1]) == "[BOS] [1] [UNK] dog [EOS] [2] the cat sleeps [EOS] [?]"


def test_the_true_verdict_names_the_place_of_the_human_text(
    discriminator: LLMJudge, data: GANData, pairs: dict[str, torch.Tensor]
) -> None:
    tokens, weights, right = discriminator.prepare(drawn(pairs), supervised=True)
    told = [words(data, row).split(" [?] ") for row in tokens]
    assert [verdict for _, verdict in told] == [r"\boxed{1} [EOS]", r"\boxed{2} [EOS]", r"\boxed{1} [EOS]"]
    assert [question.index(" [1] the dog") < question.index(" [2] ") for question, _ in told[:2]] == [True, True]
    assert "[2] the cat sleeps" in told[1][0], "its human text is the second one"
    assert weights.tolist() == [[1, 1]] * 3
    assert right.tolist() == [-1] * 3


def test_the_generator_is_paid_for_being_taken_for_human_and_on_the_last_token_of_its_text(
    discriminator: LLMJudge, data: GANData, pairs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, data, r"\boxed{2} [EOS]", r"\boxed{2} [EOS]", r"the \boxed{1} [EOS]")
    outcomes, rewards = discriminator.judge(drawn(pairs))
    assert rewards.tolist() == [[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, -1, 0], [0, 0, 0, -1, 0, 0]]
    assert outcomes.tolist() == [-1, 1, 1]


@pytest.mark.parametrize("verdict", ["the dog [EOS]", r"\boxed{1} \boxed{2} [EOS]", "the the the the the", "[EOS]"])
def test_a_verdict_that_cannot_be_read_or_names_both_pays_nobody(
    discriminator: LLMJudge,
    data: GANData,
    pairs: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    verdict: str,
) -> None:
    says(monkeypatch, data, verdict, verdict, verdict)
    for asked in (drawn(pairs, FIRST, FIRST, FIRST), drawn(pairs, SECOND, SECOND, SECOND)):
        assert not any(map(torch.any, discriminator.judge(asked)))
    _, weights, right = discriminator.prepare(drawn(pairs, FIRST, FIRST, FIRST), supervised=False)
    assert (weights[:, 0] == -1).all(), "the judge itself learns that it has to say something"
    assert not right.any()


def test_a_fake_that_is_the_human_text_is_a_tie_and_teaches_nothing(
    discriminator: LLMJudge, data: GANData, pairs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs["fakes_BT"] = pairs["reals_BT"]
    says(monkeypatch, data, *[r"\boxed{1} [EOS]"] * 3)
    assert not any(map(torch.any, discriminator.judge(drawn(pairs))))
    for supervised in (True, False):
        inputs = discriminator.prepare(drawn(pairs), supervised=supervised)
        assert not inputs[1].any()
        assert discriminator(*inputs).tolist() == [0, 0]


def test_the_judge_learns_from_the_tokens_it_wrote_against_a_running_mean(
    discriminator: LLMJudge, data: GANData, pairs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, data, r"the dog \boxed{1} [EOS]", r"\boxed{1} [EOS]", "the dog runs far far")
    tokens, weights, right = discriminator.prepare(drawn(pairs), supervised=False)
    assert right.tolist() == [1, 0, 0]
    assert weights.tolist() == [[1, 1, 1, 1, 0], [-1, -1, 0, 0, 0], [-1] * 5]
    assert words(data, tokens[0]).endswith(r"[?] the dog \boxed{1} [EOS]")
    loss, num_right = discriminator(tokens, weights, right).tolist()
    assert num_right == 1
    inputs = padded_inputs(tokens, data.alphabet.pad_id)
    logits = discriminator.model(**inputs).logits.masked_fill(
        torch.isin(torch.arange(data.alphabet.vocab_size), torch.tensor([0, 1, 3, 4, 5, 6])), -torch.inf
    )
    likelihoods = log_softmax(logits[:, -6:-1], dim=-1).gather(2, tokens[:, -5:, None])[..., 0]
    expected = -(torch.where(weights == 0, 0, likelihoods) * weights).sum()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    # Two ranks with the same rewards: one mean of -1/3, a tenth of which is remembered.
    discriminator.update_baseline(lambda values: [2 * value for value in values])
    assert discriminator.running_state() == {"baseline": pytest.approx(-1 / 30)}
    _, weights, _ = discriminator.prepare(drawn(pairs), supervised=False)
    assert weights[:, 0].tolist() == pytest.approx([1 + 1 / 30, -1 + 1 / 30, -1 + 1 / 30])
    other = build_llm_judge(tiny(), data)
    other.load_running_state(discriminator.running_state())
    other.load_running_state({})
    assert other.running_state() == discriminator.running_state()


@pytest.mark.promise("guide-G6")
def test_what_it_writes_depends_on_the_pair_and_its_numbers_not_on_the_batch(
    discriminator: LLMJudge, pairs: dict[str, torch.Tensor]
) -> None:
    torch.nn.init.normal_(discriminator.model.transformer.wte.weight, std=0.5)  # so that it says different things
    numbers = torch.from_numpy(np.random.default_rng(0).random((3, discriminator.num_uniforms)))
    whole = Pairs(**pairs, uniforms_BU=numbers)
    together = discriminator.prepare(whole, supervised=False)
    for row in range(3):
        alone = discriminator.prepare(Pairs(*(part[row : row + 1] for part in whole)), supervised=False)
        assert torch.equal(alone[0][0], together[0][row])
    assert discriminator.training, "as it was before"


# --- pretrained -----------------------------------------------------------------------------------


def test_a_pretrained_judge_is_asked_in_words_which_text_is_human(
    tmp_path: Path, pairs: dict[str, torch.Tensor]
) -> None:
    save_pair(tmp_path)
    config = tiny(
        model_name=str(tmp_path / "writer"), judge_name=str(tmp_path / "judge"), prompt_length=24, sequence_length=8
    )
    data = tokenize_stories(config, STORIES, STORIES[:1], pretrained_tokenizer(config))
    discriminator = build_llm_judge(config, data)
    prompts, reals = (torch.from_numpy(rows.astype(np.int64)) for rows in vars(data.train).values())
    (asked, *_) = discriminator.questions(prompts, reals, reals.roll(1, 0), torch.tensor([True, False, True]))
    text = words(data, asked)
    assert text.startswith("[BOS] <|user|> ")
    assert text.endswith(" <|writer|>")
    assert "[UNK] : title : the dog text 1 : the dog runs far text 2 : " in text, "its frame and ends are taken off"
    assert " was [UNK] by the human" in text
    parts = {"prompts_BP": prompts, "reals_BT": reals, "fakes_BT": reals.roll(1, 0)}
    tokens, weights, _ = discriminator.prepare(drawn(parts), supervised=True)
    assert words(data, tokens[1]).endswith(r"<|writer|> \ boxed { 2 } [EOS]")
    loss, _ = discriminator(tokens, weights, torch.full((3,), -1))
    loss.backward()
    assert all(weight.grad is not None for weight in discriminator.parameters())


# --- learning -------------------------------------------------------------------------------------

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def easily_told(data: GANData, discriminator: LLMJudge, seed: int) -> Callable[[Any, int], Batch]:
    """Return what draws pairs: the fakes are any words at all."""
    generator = np.random.default_rng(seed)
    alphabet = data.alphabet
    usable = np.setdiff1d(np.arange(alphabet.vocab_size), [*alphabet.banned_ids, alphabet.eos_id])

    def draw(texts: Any, count: int) -> Batch:
        rows = generator.integers(0, len(texts), count)
        reals = torch.from_numpy(texts.texts_NT[rows].astype(np.int64))
        other = torch.from_numpy(generator.choice(usable, reals.shape))
        is_word = (reals != alphabet.pad_id) & (reals != alphabet.eos_id)
        prompts = torch.from_numpy(texts.prompts_NP[rows].astype(np.int64))
        numbers = torch.from_numpy(generator.random((count, discriminator.num_uniforms)))
        return prompts, reals, torch.where(is_word, other, reals), numbers

    return draw


@pytest.fixture(scope="module")
def python_text() -> tuple[LLMGANConfig, GANData]:
    changes = {"dataset": "topics", "min_chars": 40, "max_chars": 200, "vocab_size": 500, "max_judge_tokens": 4}
    config = tiny(
        **changes, sequence_length=16, prompt_length=8, num_layers=2, num_heads=4, hidden_size=64, test_fraction=0.0
    )
    train, evaluation, _ = load_stories(config)
    return config, tokenize_stories(config, train, evaluation)


def learn(discriminator: LLMJudge, batch: Batch, optimizer: torch.optim.Optimizer, *, supervised: bool) -> None:
    loss, _ = discriminator(*discriminator.prepare(Pairs(*batch), supervised=supervised))
    (loss / len(batch[0])).backward()
    torch.nn.utils.clip_grad_norm_(discriminator.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    discriminator.update_baseline(list)


def accuracy(discriminator: LLMJudge, batch: Batch) -> float:
    return float((discriminator.judge(Pairs(*batch))[0] > 0).double().mean())


def warmed_up(
    config: LLMGANConfig, data: GANData, seed: int, num_steps: int
) -> tuple[LLMJudge, Callable[[Any, int], Batch], Batch]:
    """A judge after its warm-up, what draws its batches, and a held-out one."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    discriminator = build_llm_judge(config, data)
    draw = easily_told(data, discriminator, seed)
    held_out = draw(data.evaluation, 256)
    optimizer = torch.optim.AdamW(discriminator.parameters(), lr=3e-3)
    assert accuracy(discriminator, held_out) < 0.2, "at first it says nothing that could be read"
    for _ in range(num_steps):
        learn(discriminator, draw(data.train, 32), optimizer, supervised=True)
    return discriminator, draw, held_out


SEEDS = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.seeds)])


@pytest.mark.slow
@SEEDS
def test_in_the_game_it_gets_better_by_its_own_verdicts_alone(
    python_text: tuple[LLMGANConfig, GANData], seed: int
) -> None:
    discriminator, draw, held_out = warmed_up(*python_text, seed, 40)
    before = accuracy(discriminator, held_out)
    optimizer = torch.optim.AdamW(discriminator.parameters(), lr=3e-4)
    for _ in range(110):
        learn(discriminator, draw(python_text[1].train, 32), optimizer, supervised=False)
    assert accuracy(discriminator, held_out) > max(before + 0.02, 0.7)
