r"""The LLM judge: it reads a prompt and two texts in random order, and writes which one is human.

A verdict ends in \boxed{1} or \boxed{2}. In the warm-up, the targets are the true verdicts. In adversarial training the
judge samples verdicts, and REINFORCE (Williams 1992) on the sampled tokens rewards a correct verdict with +1, and a
wrong or unparseable one with -1, minus a running mean of past rewards. The generator's reward is +1 if the judge takes
its text for human and -1 otherwise; an unparseable verdict, or one that names both texts, gives zero reward (GAD, Ye et
al. 2025, arXiv 2511.10643, has the same setting with scores).

Shape suffixes: B pairs, P positions of a prompt, T positions of a text, S positions that a judge reads, V positions of
a verdict, U uniforms.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from nbtools.recipes import LLMGANConfig, built_models
from nbtools.recipes.llm_gan import NUM_MARKS, discriminator_positions
from nbtools.training.llm_gan import dataset
from nbtools.training.llm_gan.dataset import Ids, PromptTemplate
from nbtools.training.llm_gan.discriminator import Discriminator, Pairs
from nbtools.training.llm_gan.gan_data import GANData
from nbtools.training.llm_gan.pretrained import load_discriminator
from nbtools.training.llm_gan.rewards import verdict_rewards
from nbtools.training.text.causal_sampling import at_rest, write
from nbtools.training.text.vocabulary import Alphabet, padded_inputs

_BOXED = re.compile(r"\\\s*boxed\s*\{\s*([^{}]*?)\s*\}")
_DECAY = 0.9
"""Decay of the running mean of rewards per step."""
_HOLES = ("<<REQUEST>>", "<<FIRST>>", "<<SECOND>>")
_REQUEST = (
    "Two texts were written to the same request, one by a human and one by a language model.\n\n"
    "Request:\n<<REQUEST>>\n\nText 1:\n<<FIRST>>\n\nText 2:\n<<SECOND>>\n\n"
    "Which of the two was written by the human? Think about it briefly, then end with \\boxed{1} if it is text 1, or "
    "\\boxed{2} if it is text 2.\n"
)


def parse_verdict(verdict: str) -> int:
    r"""Return 1 or 2 for a verdict with \boxed{1} or \boxed{2}, and 0 for one with neither, both, or another box."""
    answers = set(_BOXED.findall(verdict))
    return int(answers.pop()) if answers in ({"1"}, {"2"}) else 0


@dataclass(frozen=True)
class Question:
    """The judge's input around the prompt and the two texts, and its target verdicts."""

    pieces: tuple[Ids, ...]
    """Before the prompt, before the first and the second text, and after it."""
    answers: tuple[Ids, Ids]
    """The verdicts for the first and for the second text, with their end of text."""
    template: PromptTemplate
    """The generator's template, which is removed from its prompts."""
    keeps_end: bool
    """Whether the judge reads the end-of-text tokens; in a chat one would end the message."""

    @classmethod
    def of(cls, config: LLMGANConfig, tokenizer: PreTrainedTokenizerBase, eos_id: int) -> "Question":
        """Build the request for a pretrained model, or from the marks of a vocabulary built here."""
        if config.model_name is None:
            ids = tokenizer.get_vocab()
            marks = dataset.BEGIN, dataset.FIRST_TEXT, dataset.SECOND_TEXT, dataset.ASKED
            pieces: list[Ids] = [(ids[mark],) for mark in marks]
            first, second = ((ids[verdict], eos_id) for verdict in dataset.VERDICTS)
        else:
            pieces = dataset.template_pieces(tokenizer, _REQUEST, _HOLES)
            encoded = [tokenizer(verdict, add_special_tokens=False)["input_ids"] for verdict in dataset.VERDICTS]
            first, second = ((*verdict, eos_id) for verdict in encoded)
        template = dataset.prompt_template(config, tokenizer)
        return cls(tuple(pieces), (first, second), template, keeps_end=config.model_name is None)

    @property
    def num_tokens(self) -> int:
        """Tokens beside the prompt (without its template) and the two texts."""
        return sum(map(len, self.pieces))


class LLMJudge(Discriminator):
    """A causal language model that writes which of two texts is human."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        alphabet: Alphabet,
        question: Question,
        max_judge_tokens: int,
    ) -> None:
        super().__init__(model, alphabet)
        self.num_uniforms = 1 + max_judge_tokens
        self._tokenizer = tokenizer
        answers = {token for answer in question.answers for token in answer}
        banned = tuple(token for token in alphabet.banned_ids if token not in answers)
        self._verdicts = replace(alphabet, banned_ids=banned)
        self._question = question
        self._baseline = 0.0
        self._tally = [0.0, 0.0]
        """Rewards and their number since the last optimizer step, on this rank."""

    def questions(self, prompts_BP: Tensor, reals_BT: Tensor, fakes_BT: Tensor, is_human_first_B: Tensor) -> Tensor:
        """Return the judge's inputs, padded on the left; texts are copied token by token. Shape (B, S)."""
        question, pad_id, num_pairs = self._question, self.alphabet.pad_id, len(prompts_BP)
        template = question.template
        prompts_BP = prompts_BP[:, : prompts_BP.shape[1] - len(template.after)]
        is_prompt_BP = (prompts_BP != pad_id).cumsum(1) > len(template.before)
        first_BT = torch.where(is_human_first_B[:, None], reals_BT, fakes_BT)
        second_BT = torch.where(is_human_first_B[:, None], fakes_BT, reals_BT)
        parts = [(prompts_BP, is_prompt_BP), *((text, self._is_read(text)) for text in (first_BT, second_BT))]
        pieces = [prompts_BP.new_tensor(piece).expand(num_pairs, -1) for piece in question.pieces]
        first, *behind = [(piece, torch.ones_like(piece, dtype=torch.bool)) for piece in pieces]
        asked = (first, *chain.from_iterable(zip(parts, behind, strict=True)))
        tokens_BS, is_read_BS = (torch.cat(each, dim=1) for each in zip(*asked, strict=True))
        order_BS = is_read_BS.long().argsort(dim=1, stable=True)  # padding first, the rest in its order
        return torch.where(is_read_BS, tokens_BS, pad_id).gather(1, order_BS)[:, len(template.before) :]

    def _is_read(self, texts_BT: Tensor) -> Tensor:
        is_token_BT = self.alphabet.mask(texts_BT)
        return is_token_BT if self._question.keeps_end else is_token_BT & (texts_BT != self.alphabet.eos_id)

    def _ask(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Sample a verdict per pair: inputs, verdicts, and 1 for correct, -1 for wrong, 0 for undecided."""
        prompts_BP, reals_BT, fakes_BT, uniforms_BU = pairs
        is_human_first_B = uniforms_BU[:, 0] < 0.5
        questions_BS = self.questions(prompts_BP, reals_BT, fakes_BT, is_human_first_B)
        verdicts_BV = write(self.model, questions_BS, uniforms_BU[:, 1:], self._verdicts)
        said = [str(self._tokenizer.decode(row[row != self._verdicts.pad_id])) for row in verdicts_BV.cpu()]
        answers_B = torch.tensor([parse_verdict(text) for text in said], device=prompts_BP.device)
        outcomes_B = torch.where(answers_B == torch.where(is_human_first_B, 1, 2), 1, -1)
        outcomes_B = torch.where((answers_B == 0) | _are_same(reals_BT, fakes_BT), 0, outcomes_B)
        return questions_BS, verdicts_BV, outcomes_B

    def prepare(self, pairs: Pairs, *, supervised: bool) -> tuple[Tensor, ...]:
        """Return inputs and verdicts (B, S + V), the weight of each verdict token (B, V), and correctness (B,).

        Supervised, the verdicts are the true ones with weight 1, and correctness is unknown (-1).
        """
        prompts_BP, reals_BT, fakes_BT, uniforms_BU = pairs
        with at_rest(self.model):
            if supervised:
                is_human_first_B = uniforms_BU[:, 0] < 0.5
                questions_BS = self.questions(prompts_BP, reals_BT, fakes_BT, is_human_first_B)
                verdicts_BV = self._true_verdicts(is_human_first_B)
                advantages_B = torch.ones(len(prompts_BP), device=prompts_BP.device)
                right_B = torch.full_like(is_human_first_B, -1, dtype=torch.long)
            else:
                questions_BS, verdicts_BV, outcomes_B = self._ask(pairs)
                right_B = (outcomes_B > 0).long()
                rewards_B = 2.0 * right_B - 1
                self._tally = [self._tally[0] + float(rewards_B.sum()), self._tally[1] + len(rewards_B)]
                advantages_B = rewards_B - self._baseline
            advantages_B = torch.where(_are_same(reals_BT, fakes_BT), 0.0, advantages_B)  # no verdict is true
            weights_BV = self._verdicts.mask(verdicts_BV) * advantages_B[:, None]
        return torch.cat([questions_BS, verdicts_BV], dim=1), weights_BV, right_B

    def _true_verdicts(self, is_human_first_B: Tensor) -> Tensor:
        answers = [torch.tensor(answer) for answer in self._question.answers]
        rows = pad_sequence(answers, batch_first=True, padding_value=self._verdicts.pad_id)
        return rows.to(is_human_first_B.device)[1 - is_human_first_B.long()]

    def forward(self, tokens_BS: Tensor, weights_BV: Tensor, right_B: Tensor) -> Tensor:
        """Return the sum of weight x negative log-likelihood of the verdicts, and the number of correct pairs."""
        length = weights_BV.shape[1]
        inputs = padded_inputs(tokens_BS[:, :-1], self._verdicts.pad_id)
        output = self.model(**inputs, use_cache=False, logits_to_keep=length)
        logits_BVN = self._verdicts.without_banned(output.logits.float())
        verdicts_BV = tokens_BS[:, -length:]
        losses_BV = nn.functional.cross_entropy(logits_BVN.flatten(0, 1), verdicts_BV.flatten(), reduction="none")
        # Where the weight is 0, even the infinite loss of padding must not count.
        weighted_BV = torch.where(weights_BV != 0, losses_BV.view_as(weights_BV) * weights_BV, 0.0)
        is_other_BV = (logits_BVN.detach().argmax(-1) != verdicts_BV) & (weights_BV != 0)
        is_likeliest_B = ~is_other_BV.any(1) & (weights_BV != 0).any(1)
        num_right = torch.where(right_B < 0, is_likeliest_B, right_B > 0).sum()
        return torch.stack([weighted_BV.sum(), num_right.to(weighted_BV.dtype)])

    def update_baseline(self, total: Callable[[Sequence[float]], list[float]]) -> None:
        """Update the running mean of rewards after an optimizer step; every rank calls it, `total` sums over all."""
        rewards, count = total(self._tally)
        if count:
            self._baseline = _DECAY * self._baseline + (1 - _DECAY) * rewards / count
        self._tally = [0.0, 0.0]

    def running_state(self) -> dict[str, Any]:
        """Return the running mean of rewards, for a checkpoint."""
        return {"baseline": self._baseline}

    def load_running_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `running_state` returned; an empty mapping changes nothing."""
        self._baseline = float(state.get("baseline", self._baseline))

    @torch.no_grad()
    def judge(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the outcomes of sampled verdicts; the reward of a text is on its last token."""
        _, _, outcomes_B = self._ask(pairs)
        return outcomes_B, verdict_rewards(outcomes_B, self.alphabet.mask(pairs.fakes_BT))


def _are_same(reals_BT: Tensor, fakes_BT: Tensor) -> Tensor:
    """Return which generated texts equal the human text, so that no verdict is correct. Shape (B,)."""
    return (reals_BT == fakes_BT).all(1)


def build_llm_judge(config: LLMGANConfig, data: GANData) -> LLMJudge:
    """Load the pretrained judge, or build a GPT-2 of the config's size; ConfigError if it cannot be loaded or used."""
    alphabet, tokenizer = data.alphabet, data.tokenizer
    assert tokenizer is not None and alphabet.eos_id is not None, "the Markov chain has no vocabulary for verdicts"
    question = Question.of(config, tokenizer, alphabet.eos_id)
    if config.model_name is not None:
        longest_input = discriminator_positions(config) - NUM_MARKS + question.num_tokens
        model = load_discriminator(config, longest_input)
    else:
        settings = built_models.gpt2_settings(config, alphabet.vocab_size, discriminator_positions(config))
        model = GPT2LMHeadModel(GPT2Config(**settings))
    return LLMJudge(model, tokenizer, alphabet, question, config.max_judge_tokens)
