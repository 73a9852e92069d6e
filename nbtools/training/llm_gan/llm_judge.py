r"""The judge that writes: it reads a prompt and two texts in a random order and writes which one is human.

What it writes ends in \boxed{1} or \boxed{2}. Warm-up: the true verdict is what it has to write. In the game it writes
verdicts of its own, and REINFORCE (Williams 1992) on the very tokens it wrote makes those likelier that were right:
+1 for a right verdict, -1 for a wrong one or one that cannot be read, less a running mean of past rewards. The
generator is paid +1 where the judge took its text for the human one and -1 where not; a verdict that cannot be read,
or that names both texts, pays nobody (GAD, Ye et al. 2025, arXiv 2511.10643, has the same game with scores).

Shape suffixes: B pairs, P positions of a prompt, T positions of a text, S positions that a judge reads, V positions of
a verdict, U uniforms.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from nbtools.recipes import LLMGANConfig, gpt2
from nbtools.recipes.llm_gan import NUM_MARKS, judge_positions
from nbtools.training.llm_gan.batch import Passages
from nbtools.training.llm_gan.dataset import (
    ASKED,
    BEGIN,
    FIRST_TEXT,
    SECOND_TEXT,
    VERDICTS,
    Frame,
    Ids,
    frame_of,
    framed_pieces,
)
from nbtools.training.llm_gan.pretrained import load_judge
from nbtools.training.text.sampling import at_rest, write
from nbtools.training.text.vocabulary import Alphabet, padded_inputs

_BOXED = re.compile(r"\\\s*boxed\s*\{\s*([^{}]*?)\s*\}")
_MEMORY = 0.9
"""How much of the running mean of rewards stays at each step."""
_HOLES = ("<<REQUEST>>", "<<FIRST>>", "<<SECOND>>")
_REQUEST = (
    "Two texts were written to the same request, one by a human and one by a language model.\n\n"
    "Request:\n<<REQUEST>>\n\nText 1:\n<<FIRST>>\n\nText 2:\n<<SECOND>>\n\n"
    "Which of the two was written by the human? Think about it briefly, then end with \\boxed{1} if it is text 1, or "
    "\\boxed{2} if it is text 2.\n"
)


def parsed(verdict: str) -> int:
    r"""Return 1 or 2 for a verdict with \boxed{1} or \boxed{2}, and 0 for one with neither, both, or another box."""
    answers = set(_BOXED.findall(verdict))
    return int(answers.pop()) if answers in ({"1"}, {"2"}) else 0


@dataclass(frozen=True)
class Question:
    """What a judge reads around the prompt and the two texts, and what it should write."""

    pieces: tuple[Ids, ...]
    """Before the prompt, before the first and the second text, and behind it."""
    answers: tuple[Ids, Ids]
    """The verdict for the first and for the second text, with its end."""
    frame: Frame
    """Stands around the generator's prompts, and is taken off."""
    keeps_end: bool
    """Whether the judge sees where a text ends; within a chat it would end the question."""

    @classmethod
    def of(cls, config: LLMGANConfig, tokenizer: PreTrainedTokenizerBase, eos_id: int) -> "Question":
        """Ask in the words of a pretrained model, or with the marks of a vocabulary that is built here."""
        if config.model_name is None:
            ids = tokenizer.get_vocab()
            pieces: list[Ids] = [(ids[mark],) for mark in (BEGIN, FIRST_TEXT, SECOND_TEXT, ASKED)]
            first, second = ((ids[verdict], eos_id) for verdict in VERDICTS)
        else:
            pieces = framed_pieces(tokenizer, _REQUEST, _HOLES)
            encoded = [tokenizer(verdict, add_special_tokens=False)["input_ids"] for verdict in VERDICTS]
            first, second = ((*verdict, eos_id) for verdict in encoded)
        return cls(tuple(pieces), (first, second), frame_of(config, tokenizer), config.model_name is None)

    @property
    def num_tokens(self) -> int:
        """Tokens that it adds to a prompt without its frame and two texts."""
        return sum(map(len, self.pieces))


class WritingJudge(nn.Module):
    """A causal language model that writes which of two texts is human."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        alphabet: Alphabet,
        question: Question,
        max_judge_tokens: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.num_uniforms = 1 + max_judge_tokens
        self._tokenizer = tokenizer
        self._texts = alphabet
        answers = {token for answer in question.answers for token in answer}
        banned = tuple(token for token in alphabet.banned_ids if token not in answers)
        self._verdicts = Alphabet(alphabet.vocab_size, alphabet.pad_id, alphabet.eos_id, banned)
        self._question = question
        self._baseline = 0.0
        self._tally = [0.0, 0.0]
        """Rewards and their number since the last optimizer step, on this rank."""

    # --- what it reads and writes -----------------------------------------------------------------

    def questions(
        self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor, is_real_first_B: torch.Tensor
    ) -> torch.Tensor:
        """Return what the judge reads, padded on the left; texts are the tokens that were written. Shape (B, S)."""
        question, pad_id, num_pairs = self._question, self._texts.pad_id, len(prompts_BP)
        frame = question.frame
        prompts_BP = prompts_BP[:, : prompts_BP.shape[1] - len(frame.after)]
        is_prompt_BP = (prompts_BP != pad_id).cumsum(1) > len(frame.before)
        first_BT = torch.where(is_real_first_B[:, None], reals_BT, fakes_BT)
        second_BT = torch.where(is_real_first_B[:, None], fakes_BT, reals_BT)
        parts = [(prompts_BP, is_prompt_BP), *((text, self._is_read(text)) for text in (first_BT, second_BT))]
        tokens, is_read = [], []
        for place, piece in enumerate(question.pieces):
            tokens.append(torch.tensor(piece, dtype=torch.long, device=prompts_BP.device).expand(num_pairs, -1))
            is_read.append(torch.ones_like(tokens[-1], dtype=torch.bool))
            if place < len(parts):
                tokens.append(parts[place][0])
                is_read.append(parts[place][1])
        tokens_BS, is_read_BS = torch.cat(tokens, dim=1), torch.cat(is_read, dim=1)
        order_BS = is_read_BS.long().argsort(dim=1, stable=True)  # padding first, the rest in its order
        return torch.where(is_read_BS, tokens_BS, pad_id).gather(1, order_BS)[:, len(frame.before) :]

    def _is_read(self, texts_BT: torch.Tensor) -> torch.Tensor:
        is_token_BT = self._texts.mask(texts_BT)
        return is_token_BT if self._question.keeps_end else is_token_BT & (texts_BT != self._texts.eos_id)

    def _ask(
        self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor, uniforms_BU: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Write a verdict on each pair: what was read, what was written, and 1 for right, -1 for wrong, 0 for none."""
        is_real_first_B = uniforms_BU[:, 0] < 0.5
        questions_BS = self.questions(prompts_BP, reals_BT, fakes_BT, is_real_first_B)
        verdicts_BV = write(self.model, questions_BS, uniforms_BU[:, 1:], self._verdicts)
        said = [str(self._tokenizer.decode(row[row != self._verdicts.pad_id])) for row in verdicts_BV.cpu()]
        answers_B = torch.tensor([parsed(text) for text in said], device=prompts_BP.device)
        told_B = torch.where(answers_B == torch.where(is_real_first_B, 1, 2), 1, -1)
        told_B = torch.where((answers_B == 0) | _are_same(reals_BT, fakes_BT), 0, told_B)
        return questions_BS, verdicts_BV, told_B

    # --- learning ---------------------------------------------------------------------------------

    def study(
        self,
        prompts_BP: torch.Tensor,
        reals_BT: torch.Tensor,
        fakes_BT: torch.Tensor,
        uniforms_BU: torch.Tensor,
        *,
        supervised: bool,
    ) -> tuple[torch.Tensor, ...]:
        """Return what was read and written (B, S + V), each written token's weight (B, V), and who was right (B,).

        Supervised, it is the true verdict that was written, with weight 1, and who is right is yet unknown (-1).
        """
        with at_rest(self.model):
            if supervised:
                is_real_first_B = uniforms_BU[:, 0] < 0.5
                questions_BS = self.questions(prompts_BP, reals_BT, fakes_BT, is_real_first_B)
                verdicts_BV = self._true_verdicts(is_real_first_B)
                advantages_B = torch.ones(len(prompts_BP), device=prompts_BP.device)
                right_B = torch.full_like(is_real_first_B, -1, dtype=torch.long)
            else:
                questions_BS, verdicts_BV, told_B = self._ask(prompts_BP, reals_BT, fakes_BT, uniforms_BU)
                right_B = (told_B > 0).long()
                rewards_B = 2.0 * right_B - 1
                self._tally = [self._tally[0] + float(rewards_B.sum()), self._tally[1] + len(rewards_B)]
                advantages_B = rewards_B - self._baseline
            advantages_B = torch.where(_are_same(reals_BT, fakes_BT), 0.0, advantages_B)  # there is no true verdict
            weights_BV = self._verdicts.mask(verdicts_BV) * advantages_B[:, None]
        return torch.cat([questions_BS, verdicts_BV], dim=1), weights_BV, right_B

    def _true_verdicts(self, is_real_first_B: torch.Tensor) -> torch.Tensor:
        answers = self._question.answers
        rows = torch.full((2, max(map(len, answers))), self._verdicts.pad_id)
        for row, answer in zip(rows, answers, strict=True):
            row[: len(answer)] = torch.tensor(answer)
        return rows.to(is_real_first_B.device)[1 - is_real_first_B.long()]

    def forward(self, tokens_BS: torch.Tensor, weights_BV: torch.Tensor, right_B: torch.Tensor) -> torch.Tensor:
        """Return the sum of weight x negative log-likelihood of what was written, and how many pairs are right."""
        length = weights_BV.shape[1]
        inputs = padded_inputs(tokens_BS[:, :-1], self._verdicts.pad_id)
        output = self.model(**inputs, use_cache=False, logits_to_keep=length)
        logits_BVN = self._verdicts.without_banned(output.logits.float())
        verdicts_BV = tokens_BS[:, -length:]
        losses_BV = nn.functional.cross_entropy(logits_BVN.flatten(0, 1), verdicts_BV.flatten(), reduction="none")
        # A weight of 0 has to silence even the infinite loss of padding.
        weighted_BV = torch.where(weights_BV != 0, losses_BV.view_as(weights_BV) * weights_BV, 0.0)
        is_other_BV = (logits_BVN.detach().argmax(-1) != verdicts_BV) & (weights_BV != 0)
        is_likeliest_B = ~is_other_BV.any(1) & (weights_BV != 0).any(1)
        num_right = torch.where(right_B < 0, is_likeliest_B, right_B > 0).sum()
        return torch.stack([weighted_BV.sum(), num_right.to(weighted_BV.dtype)])

    def settle(self, total: Callable[[Sequence[float]], list[float]]) -> None:
        """Bring the running mean of rewards up to date after an optimizer step; every rank calls it.

        Args:
            total: adds up numbers over all ranks.
        """
        rewards, count = total(self._tally)
        if count:
            self._baseline = _MEMORY * self._baseline + (1 - _MEMORY) * rewards / count
        self._tally = [0.0, 0.0]

    def state(self) -> dict[str, Any]:
        """What has to be saved to go on, beside the model."""
        return {"baseline": self._baseline}

    def recall(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; an empty mapping changes nothing."""
        self._baseline = float(state.get("baseline", self._baseline))

    # --- judging ----------------------------------------------------------------------------------

    @torch.no_grad()
    def rewards(
        self, prompts_BP: torch.Tensor, fakes_BT: torch.Tensor, reals_BT: torch.Tensor, uniforms_BU: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return +1 on the last token of a text that was taken for human, -1 if not, and which pairs were decided."""
        _, _, told_B = self._ask(prompts_BP, reals_BT, fakes_BT, uniforms_BU)
        lasts_B = self._texts.mask(fakes_BT).sum(1) - 1
        rewards_BT = torch.zeros(fakes_BT.shape, device=fakes_BT.device)
        rewards_BT[torch.arange(len(lasts_B), device=lasts_B.device), lasts_B] = -told_B.float()
        return rewards_BT, told_B != 0

    @torch.no_grad()
    def prefers(
        self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor, uniforms_BU: torch.Tensor
    ) -> torch.Tensor:
        """Return 1 where its verdict is right, -1 where it is wrong, 0 where there is none. Shape (B,)."""
        return self._ask(prompts_BP, reals_BT, fakes_BT, uniforms_BU)[2]


def _are_same(reals_BT: torch.Tensor, fakes_BT: torch.Tensor) -> torch.Tensor:
    """Where the generator wrote the very text of the human, so that no verdict could be right. Shape (B,)."""
    return (reals_BT == fakes_BT).all(1)


def build_writing_judge(config: LLMGANConfig, passages: Passages) -> WritingJudge:
    """Load the pretrained judge, or build a GPT-2 of the config's size.

    Raises:
        ConfigError: it cannot be loaded, is too short, or does not fit the generator.
    """
    alphabet, tokenizer = passages.alphabet, passages.tokenizer
    assert tokenizer is not None and alphabet.eos_id is not None, "a Markov chain has no words for verdicts"
    question = Question.of(config, tokenizer, alphabet.eos_id)
    if config.model_name is not None:
        longest_input = judge_positions(config) - NUM_MARKS + question.num_tokens
        model = load_judge(config, longest_input)
    else:
        settings = gpt2.gpt2_settings(config, alphabet.vocab_size, judge_positions(config))
        model = GPT2LMHeadModel(GPT2Config(**settings))
    return WritingJudge(model, tokenizer, alphabet, question, config.max_judge_tokens)
