"""Data of the LLM GAN: prompts and human texts as token ids, and a reference model that neither network is trained on.

Shape suffixes: N samples, B batch, P positions of a prompt, T positions of a text, K draws of a step, U uniforms of a
draw, V vocabulary.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from nbtools.data.llm_gan import markov
from nbtools.data.split import DataDigest, digest_of
from nbtools.recipes.llm_gan import NUM_SPECIAL_TOKENS, LLMGANConfig
from nbtools.training.engine.sampler import Samples, randoms, uniforms
from nbtools.training.llm_gan.ngrams import Copies
from nbtools.training.text.vocabulary import Alphabet, Floats, Tokens


@dataclass(frozen=True)
class Texts:
    """Prompts and their human texts; a text has at most `sequence_length` positions."""

    prompts_NP: Tokens
    """Padded on the left; the text follows the last token of the prompt."""
    texts_NT: Tokens
    """Padded on the right; a text that was not cut ends with the end-of-text token."""

    def __len__(self) -> int:
        return len(self.texts_NT)


@dataclass(frozen=True)
class GANData:
    """Training, evaluation and test texts, their alphabet, and the reference model."""

    train: Texts
    evaluation: Texts
    """Evaluation texts, disjoint from `train`."""
    test: Texts
    """Test texts, disjoint from `train` and `evaluation`."""
    alphabet: Alphabet
    reference: Callable[[Tokens], Floats]
    """The negative log-likelihood of texts in nats per token, independent of both networks: the true one, or that of
    n-grams of held-out texts. Shape (N,)."""
    reference_name: str
    """Name of the reference model, such as `oracle`; its metric is eval/NAME_loss."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """Tokenizer of the generator; None for the Markov chain."""
    data: DataDigest | None = None

    @functools.cached_property
    def copies(self) -> Copies:
        """The n-grams of the training texts."""
        return Copies(self.train.texts_NT, self.alphabet)


@dataclass(frozen=True, eq=False)
class TextDataset(Dataset[tuple[Tensor, ...]]):
    """Batches of texts with the random numbers for generation.

    Every update of a step needs new generated texts. So each sample comes with `num_draws - 1` others, drawn from all
    training texts, and every draw has its own random numbers.
    """

    texts: Texts
    num_draws: int
    num_uniforms: int
    seed: int

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, place: tuple[int, Samples]) -> tuple[Tensor, ...]:
        """Return prompts (B, K, P), texts (B, K, T) and numbers in [0, 1) (B, K, U) of `(epoch, samples_B)`."""
        epoch, samples_B = place
        others_BK = randoms(self.seed, "draws", epoch, samples_B, self.num_draws - 1) % np.uint64(len(self))
        rows_BK = np.concatenate([samples_B[:, None], others_BK.astype(np.int64)], axis=1)
        size = (self.num_draws, self.num_uniforms)
        uniforms_BKU = uniforms(self.seed, "writing", epoch, samples_B, size[0] * size[1]).reshape(-1, *size)
        tokens = (part[rows_BK].astype(np.int64) for part in (self.texts.prompts_NP, self.texts.texts_NT))
        return (*(torch.from_numpy(part) for part in tokens), torch.from_numpy(uniforms_BKU))


_PAD, _BEGINNING = 0, 1


def markov_alphabet(config: LLMGANConfig) -> Alphabet:
    """Return the vocabulary of the Markov chain: its symbols behind the special tokens."""
    return Alphabet(config.num_symbols + NUM_SPECIAL_TOKENS, _PAD, None, tuple(range(NUM_SPECIAL_TOKENS)))


def markov_prompts(num_texts: int) -> Tokens:
    """Return the prompts of the Markov chain, one begin token each. Shape (N, 1)."""
    return np.full((num_texts, 1), _BEGINNING, np.int32)


def as_text(tokens: list[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Return tokens as text; without a tokenizer, those of the Markov chain as the numbers of its symbols."""
    if tokenizer is not None:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))
    return " ".join(str(token - NUM_SPECIAL_TOKENS) for token in tokens)


def markov_data(config: LLMGANConfig) -> GANData:
    """Sample training, evaluation and test sequences of the Markov chain; the prompt is one begin token."""
    chain = markov.random_chain(config.num_symbols)
    sizes = (config.num_sequences, config.eval_samples, config.eval_samples if config.test_fraction else 0)
    drawn = [chain.sample(size, config.sequence_length, seed) for seed, size in enumerate(sizes)]
    train, evaluation, test = (
        Texts(markov_prompts(len(symbols_NT)), symbols_NT + np.int32(NUM_SPECIAL_TOKENS)) for symbols_NT in drawn
    )

    def reference(texts_NT: Tokens) -> Floats:
        return chain.losses(texts_NT - NUM_SPECIAL_TOKENS)

    data = DataDigest(digest_of(symbols_NT.tobytes() for symbols_NT in drawn), f"{sum(sizes):,} sequences", rule="")
    return GANData(train, evaluation, test, markov_alphabet(config), reference, "oracle", data=data)
