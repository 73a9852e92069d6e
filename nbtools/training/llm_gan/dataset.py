"""Tokenization of the LLM GAN's stories: tokenizers, prompt templates, padding, and banned tokens.

Vocabularies built here start with [PAD] [BOS] [EOS] [UNK]. A prompt is padded on the left and ends with [BOS]; a text
is padded on the right and ends with [EOS] unless it is cut. For a pretrained model, its chat template (if any) encloses
the prompt.

Shape suffixes: N samples, P positions of a prompt, T positions of a text.
"""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nbtools.data import hub
from nbtools.data.llm_gan.stories import TOPICS, Story
from nbtools.data.split import DataDigest, digest_of
from nbtools.errors import ConfigError, Say, plural, shown
from nbtools.recipes.llm_gan import LLMGANConfig, load_stories
from nbtools.training.engine.worker import Worker
from nbtools.training.llm_gan.gan_data import GANData, Texts
from nbtools.training.llm_gan.ngrams import NGrams
from nbtools.training.llm_gan.pretrained import num_rows, pretrained_tokenizer
from nbtools.training.text import pretrained_models, tokenizers
from nbtools.training.text.disk_buffer import Counts, unknown_note
from nbtools.training.text.tokenizers import encode_all, separator_of
from nbtools.training.text.vocabulary import Alphabet, Tokens

PAD, BEGIN, END, UNKNOWN = "[PAD]", "[BOS]", "[EOS]", "[UNK]"
SPECIAL_TOKENS = (PAD, BEGIN, END, UNKNOWN)
"""The first tokens of every vocabulary built here."""
FIRST_TEXT, SECOND_TEXT, ASKED = "[1]", "[2]", "[?]"
"""Marks before each of the two texts that a judge reads, and before its verdict, in a vocabulary built here."""
VERDICTS = (r"\boxed{1}", r"\boxed{2}")
"""End of a verdict: the first or the second text is the human one."""
_MARKS = (FIRST_TEXT, SECOND_TEXT, ASKED, *VERDICTS)
INSTRUCTION = "Write a text of the kind that is asked for, and nothing else.\n"
"""Instruction of a pretrained generator, before each prompt."""
_PROMPT = "<<THE-PROMPT-STANDS-HERE>>"

Ids = tuple[int, ...]


def text_data(worker: Worker, config: LLMGANConfig) -> GANData:
    """Read and tokenize the texts that `config.dataset` names; every rank calls it.

    Raises:
        DataError: the data is missing or malformed, or too little of it is left.
        ConfigError: a pretrained model cannot be loaded or is too short, or the two models do not fit each other.
    """
    tokenizer: PreTrainedTokenizerBase | None = None
    if config.model_name is not None:  # before a long reading
        tokenizer = worker.ranks.in_turn(lambda: pretrained_tokenizer(config))
    share = worker.ranks.from_main if hub.named(config.dataset) else worker.ranks.in_turn  # one rank downloads
    train, evaluation, test = share(lambda: load_stories(config, worker.project.root, worker.say))
    made = tokenize_stories(config, train, evaluation, tokenizer, worker.say, test)
    parts = [[text for story in part for text in (story.prompt, story.text)] for part in (train, evaluation, test)]
    size = plural(sum(map(len, parts)) // 2, "text")
    return replace(made, data=DataDigest(digest_of(json.dumps(part).encode() for part in parts), size))


def tokenize_stories(
    config: LLMGANConfig,
    train: Sequence[Story],
    evaluation: Sequence[Story],
    tokenizer: PreTrainedTokenizerBase | None = None,
    say: Say = lambda text: None,
    test: Sequence[Story] = (),
) -> GANData:
    """Tokenize stories.

    Args:
        train: training stories; without a tokenizer, the vocabulary is built on them.
        evaluation: held-out stories; the n-grams of the reference model are counted on them.
        say: receives notes on tokens that are cut or unknown.
        test: stories for the test.

    Raises:
        ConfigError: prompt_length leaves no room for a prompt.
    """
    if tokenizer is None:
        # Every character of a file is known; words only those of the training, whose frequencies rank them.
        is_lossless = config.tokenizer == "chars" and config.clean == "none" and config.dataset != TOPICS
        known = chain(train, evaluation, test) if is_lossless else train
        texts = chain.from_iterable((story.prompt, story.text) for story in known)
        marks = _MARKS if config.judging == "verdicts" else ()
        tokenizer = build_tokenizer(config.tokenizer, texts, config.vocab_size, marks)
    # A special token in a row is text: as an id, it could end the prompt and begin a message of another role.
    level = config.tokenizer if config.model_name is None else "model"
    template = prompt_template(config, tokenizer)
    ids = partial(encode_all, tokenizer=tokenizer, level=level)
    encoded = [
        ([*ids(story.prompt for story in part)], [*ids(story.text for story in part)])
        for part in (train, evaluation, test)
    ]
    _say_lost(encoded, config, template, tokenizer.unk_token_id if config.model_name is None else None, say)
    parts = [
        ([template.around(prompt, config.prompt_length) for prompt in prompts], texts) for prompts, texts in encoded
    ]
    widest = max(len(prompt) for prompts, _ in parts for prompt in prompts)
    prompted = {int(token) for prompts, _ in parts for tokens in prompts for token in tokens}
    written = {int(token) for _, texts in parts for tokens in texts for token in tokens}
    vocab_size = len(tokenizer) if config.model_name is None else num_rows("model_name", config.model_name)
    alphabet = alphabet_of(config, tokenizer, vocab_size, prompted, written)
    rows = [
        Texts(prompt_rows(prompts, widest, alphabet.pad_id), _text_rows(texts, config.sequence_length, alphabet))
        for prompts, texts in parts
    ]
    reference = NGrams(rows[1].texts_NT, alphabet).losses
    return GANData(rows[0], rows[1], rows[2], alphabet, reference, "ngram", tokenizer)


def _say_lost(
    parts: Sequence[tuple[Sequence[Any], Sequence[Any]]],
    config: LLMGANConfig,
    template: "PromptTemplate",
    unknown_id: int | None,
    say: Say,
) -> None:
    """Say how many prompts and texts are cut, and how many tokens are unknown."""
    prompts, texts = ([tokens for part in parts for tokens in part[kind]] for kind in (0, 1))
    room = config.prompt_length - len(template.before) - len(template.after)
    for rows, length, what in (
        (prompts, room, "prompts are longer than prompt_length allows; their beginning is cut"),
        (texts, config.sequence_length, "texts are longer than sequence_length; their end is cut"),
    ):
        if num_cut := sum(len(tokens) > length for tokens in rows):
            say(f"note: {num_cut:,} of {len(rows):,} {what}")
    if unknown_id is not None:
        counts = Counts(unknown_id)
        deque(counts.of(np.asarray(tokens) for tokens in (*prompts, *texts)), maxlen=0)
        for remark in unknown_note(counts.unknown, counts.tokens):
            say(f"note: {remark}")


def prompt_rows(prompts: Sequence[Sequence[int]], width: int, pad_id: int) -> Tokens:
    """Return prompts in rows of `width` tokens, padded on the left. Shape (N, P)."""
    rows_NP = np.full((len(prompts), width), pad_id, dtype=np.int32)
    for row, prompt in enumerate(prompts):
        rows_NP[row, width - len(prompt) :] = prompt
    return rows_NP


def _text_rows(texts: Sequence[Any], length: int, alphabet: Alphabet) -> Tokens:
    rows_NT = np.full((len(texts), length), alphabet.pad_id, dtype=np.int32)
    for row, tokens in enumerate(texts):
        kept = [*tokens[:length], alphabet.eos_id][:length]
        rows_NT[row, : len(kept)] = kept
    return rows_NT


def build_tokenizer(
    level: str, texts: Iterable[str], vocab_size: int, marks: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Build a tokenizer of the most frequent characters or words of `texts`; `marks` are more special tokens."""
    names = {"pad_token": PAD, "bos_token": BEGIN, "eos_token": END, "unk_token": UNKNOWN}
    return tokenizers.train_tokenizer(level, texts, vocab_size, first=(*SPECIAL_TOKENS, *marks), last=(), names=names)


def alphabet_of(
    config: LLMGANConfig, tokenizer: PreTrainedTokenizerBase, vocab_size: int, prompted: set[int], written: set[int]
) -> Alphabet:
    """Choose the padding, end-of-text and banned tokens, given the tokens that prompts and texts use.

    The padding token must not occur in the data. Many pretrained tokenizers have none, or pad with their end of text:
    then the last unused token pads. Attention masks hide it from the models.
    """
    eos_id, num_tokens = separator_of(tokenizer), len(tokenizer)
    used = prompted | written | {eos_id}
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    if config.model_name is None:
        special |= {number for token, number in tokenizer.get_vocab().items() if token in _MARKS}
    elif (largest := max(used)) >= vocab_size:
        raise ConfigError(
            f"model_name={config.model_name!r}: its tokenizer gives {shown(tokenizer.decode([largest]))} the "
            f"number {largest:,}, but the model has {vocab_size:,} tokens; choose one with a tokenizer of its own, or "
            f"{pretrained_models.ADD_ROWS}"
        )
    pad_id: int | None = tokenizer.pad_token_id
    if pad_id is None or pad_id in used or pad_id >= vocab_size:
        pad_id = next((number for number in reversed(range(vocab_size)) if number not in used), None)
    if pad_id is None:
        raise ConfigError(
            f"model_name={config.model_name!r}: every token of its vocabulary occurs in the data, so none can pad; "
            "choose a model with a padding token"
        )
    never = (special | {pad_id} | set(range(num_tokens, vocab_size))) - written - {eos_id}
    return Alphabet(vocab_size, pad_id, eos_id, tuple(sorted(number for number in never if number < vocab_size)))


@dataclass(frozen=True)
class PromptTemplate:
    """The tokens before and after every prompt."""

    before: Ids
    after: Ids

    def around(self, prompt: Sequence[int] | Any, longest: int) -> list[int]:
        """Return the prompt within the template, at most `longest` tokens; a longer prompt loses its beginning."""
        room = longest - len(self.before) - len(self.after)
        kept = [int(token) for token in prompt][max(len(prompt) - room, 0) :]
        return [*self.before, *kept, *self.after]


def prompt_template(config: LLMGANConfig, tokenizer: PreTrainedTokenizerBase) -> PromptTemplate:
    """Return a begin token, or the chat template of a pretrained model; ConfigError if prompt_length leaves no room."""
    if config.model_name is None:
        return PromptTemplate((), (tokenizer.get_vocab()[BEGIN],))
    before, after = template_pieces(tokenizer, INSTRUCTION + _PROMPT + "\n", (_PROMPT,))
    if len(before) + len(after) >= config.prompt_length:
        raise ConfigError(
            f"prompt_length={config.prompt_length}: {len(before) + len(after)} tokens of it are the instruction "
            f"and chat template of {config.model_name}; raise it"
        )
    return PromptTemplate(before, after)


def template_pieces(tokenizer: PreTrainedTokenizerBase, request: str, holes: Sequence[str]) -> list[Ids]:
    """Split a request, in the chat template if there is one, at its placeholders `holes`, and tokenize the pieces."""
    text = request
    if tokenizer.chat_template is not None:
        messages = [{"role": "user", "content": request}]
        text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    pieces = []
    for hole in holes:
        piece, found, text = text.partition(hole)
        if not found:
            raise ConfigError(
                f"the chat template of {tokenizer.name_or_path!r} omits parts of the message; choose a model "
                "with another template"
            )
        pieces.append(piece)
    pieces.append(text)
    encoded = [tuple(tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]) for piece in pieces]
    if tokenizer.chat_template is None and tokenizer.bos_token_id is not None:
        encoded[0] = (int(tokenizer.bos_token_id), *encoded[0])
    return encoded
