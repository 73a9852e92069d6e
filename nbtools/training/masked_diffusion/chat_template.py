"""Prompts and answers in a tokenizer's chat template, with its special tokens kept apart from those in texts."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from nbtools.data import corpus
from nbtools.data.masked_diffusion.pairs import Message, Pair
from nbtools.errors import DataError, shown
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.training.text.disk_buffer import Counts
from nbtools.training.text.pretrained_models import first_line
from nbtools.training.text.special_tokens import SpecialTokens, has_backend
from nbtools.training.text.tokenizers import separator_of

_PROBE = "0f3c"


def read_as(
    found: list[Pair], tokenizer: PreTrainedTokenizerBase, config: MaskedDiffusionConfig, counts: Counts
) -> tuple[SpecialTokens | None, corpus.SpecialTokens]:
    """Return the special tokens to sign in a template's output, or None, and the mode of `encode_all`."""
    if config.model_name is None:
        return None, "text"
    special = SpecialTokens(tokenizer)
    texts = ((pair, [turn["content"] for turn in pair.turns] or [pair.prompt]) for pair in found)
    written = ((pair, special.count(text)) for pair, asked in texts for text in (*asked, pair.answer))
    if config.special_tokens == "tokens":
        counts.special = sum(number for _, number in written)
        return None, "tokens"
    if tokenizer.chat_template is None or has_backend(tokenizer):
        return special, "text"
    if first := next((pair for pair, number in written if number), None):
        raise DataError(
            f"row {first.line}: holds a special token, which this slow tokenizer cannot read as text within its chat "
            "template; remove it, or set special_tokens='tokens'"
        )
    return None, "tokens"  # only the template has special tokens


def always_written(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the prompt for an answer that a chat template appends even with `add_generation_prompt=False`.

    The templates of LLaDA and of the first Llama 3 do so. The output for no message ends with that prompt; so do the
    text before an answer that is the only message, and the text after an answer. The end of a turn is not confused
    with it: the beginning of a text is a different token.

    Raises:
        DataError: it cannot be told from the end of a turn.
    """
    question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}

    def written(*messages: Message, **options: Any) -> str:
        return str(tokenizer.apply_chat_template([list(messages)], tokenize=False, **options)[0])

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    try:
        whole = written(question, answer)
        if whole != written(question, answer, add_generation_prompt=True):
            return ""
    except Exception:  # noqa: BLE001 - of the template; each row then says why
        return ""
    before, _, behind = whole.partition(_PROBE)
    for messages in ([], [answer]):
        try:
            start = written(*messages).partition(_PROBE)[0]
        except Exception:  # noqa: BLE001 - a template that wants a first message of the user
            continue
        ends = (behind[at:] for at in range(len(behind)) if start.endswith(behind[at:]))
        return next((end for end in ends if ids(behind.removesuffix(end)) + ids(end) == ids(behind)), "")
    if before.endswith(behind) and len(ids(behind)) > 1:
        raise DataError(
            f"the chat template of the tokenizer writes {shown(behind)} behind every message and may ask for an answer "
            "always; put what asks for one into {% if add_generation_prompt %}"
        )
    return ""


def render_pair(
    tokenizer: PreTrainedTokenizerBase, pair: Pair, always: str, special: SpecialTokens | None
) -> tuple[str, str]:
    """Return a prompt and its answer as the chat template writes them, without an end-of-text token at the end.

    `always` is what the template writes behind every conversation (see `always_written`), and is left out.
    With `special`, the template's special tokens are signed, so that those in the user's text are characters.
    """
    if tokenizer.chat_template is None:
        return pair.prompt, pair.answer
    hidden, signed = (str, str) if special is None else (special.hidden, special.signed)
    wanted = hidden(pair.answer)
    turns: Sequence[Message] = pair.turns or [{"role": "user", "content": pair.prompt}]
    turns = [{name: hidden(value) for name, value in turn.items()} for turn in turns]
    where = f"row {pair.line}: the chat template of the tokenizer"
    try:
        prompt = str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        if not pair.turns:
            return signed(prompt), pair.answer
        turns = [*turns, {"role": "assistant", "content": wanted}]
        whole = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except Exception as error:  # of the template, which refuses some roles or their order
        raise DataError(f"{where} refuses it: {first_line(error)}; change the messages or the template") from error
    answer = whole.removeprefix(prompt)
    if answer == whole or wanted.strip() not in answer:
        raise DataError(f"{where} does not write an answer directly after the generation prompt; change the template")
    answer = answer.removesuffix(always)
    end = str(tokenizer.convert_ids_to_tokens(separator_of(tokenizer)))
    answer = answer.rstrip().removesuffix(end) if answer.rstrip().endswith(end) else answer
    return signed(prompt), signed(answer)
