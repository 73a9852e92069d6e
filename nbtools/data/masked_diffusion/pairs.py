"""Prompts and their answers, and conversations, from rows of a table or of the hub. No torch.

A row has a prompt and its answer under one of the names of `NAMES`, or a list of messages with roles and contents.
Every message of the assistant is the answer to all before it, in a pair of its own: so LLaDA reads several turns (Nie
et al. 2025, arXiv 2502.09992).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbtools.data import split, tables
from nbtools.data.hub import HubDataset
from nbtools.errors import DataError, plural, shown

NAMES = (
    *(("prompt", "answer"), ("prompt", "completion"), ("prompt", "response")),
    *(("instruction", "output"), ("instruction", "response"), ("question", "answer")),
)
"""Columns of a prompt and its answer."""
MESSAGES = "messages"
_SHARE_GPT = "conversations"
_BEHIND_PROMPT = {"instruction": ("input", "context"), "question": ("context",)}
"""Columns that follow a prompt after a blank line, if they are there."""
_LOST = ("system", "system_prompt", "history", "tools", "functions", "tool_calls", "function_call", "reasoning_content")
"""Columns and parts of a message that are not read although they change the meaning of an answer."""
_WANTED = 'write {"prompt": "...", "answer": "..."}'
_CONVERSATION = 'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'

Message = dict[str, str]


@dataclass(frozen=True)
class Pair:
    """A prompt and its answer."""

    prompt: str
    """The prompt; of a conversation the text up to its first answer, since all its turns are held out together."""
    answer: str
    line: int
    """Row of the table, counted from 1."""
    turns: tuple[Message, ...] = ()
    """The messages of a conversation before the answer, for the tokenizer's chat template; empty for a plain prompt."""


@dataclass
class LeftOutPairs:
    """Counts of what was left out when pairs were read."""

    malformed: list[str] = field(default_factory=list)
    """Error messages of malformed rows of a hub dataset."""
    num_weightless: int = 0
    """Messages of the assistant with `"weight": 0`, which are read and not trained on."""
    num_behind: int = 0
    """Messages behind the last one of the assistant."""

    def notes(self) -> list[str]:
        """Return a sentence for each kind of omission."""
        notes = []
        if self.malformed:
            notes.append(f"{plural(len(self.malformed), 'malformed row')} left out, the first: {self.malformed[0]}")
        if self.num_weightless:
            notes.append(f"{plural(self.num_weightless, 'answer')} with a weight of 0 not trained on")
        if self.num_behind:
            notes.append(f"{plural(self.num_behind, 'message')} behind the last answer of a conversation left out")
        return notes


def has_pairs(sources: Sequence[tables.Source], column: str | None) -> bool:
    """Whether the first row has prompts and answers or messages, rather than a text.

    A column that the user names is a text, and so is `text` beside anything but a whole pair.
    """
    if column is not None:
        return False
    return are_pairs(next(tables.rows_of_tables(sources, _WANTED), ("", {"prompt": ""}))[1])


def are_pairs(row: Mapping[str, Any]) -> bool:
    """Whether a row has a prompt and an answer or messages, rather than a text."""
    has_whole = any(prompt in row and answer in row for prompt, answer in NAMES)
    has_part = any(name in row for pair in NAMES for name in pair)
    return MESSAGES in row or _is_list(row.get(_SHARE_GPT)) or has_whole or ("text" not in row and has_part)


def read_pairs(*sources: tables.Source, left_out: LeftOutPairs | None = None) -> Iterator[Pair]:
    """Yield the pairs of tables in their order; blank lines are left out.

    Args:
        left_out: counts what is left out; with it, a malformed row of the hub is left out. Those of a file are raised.

    Raises:
        DataError: a row is not such an object, one of its texts is missing or empty, or a part of it would be lost;
            file and line are named.
    """
    for number, (where, row) in enumerate(tables.rows_of_tables(sources, _WANTED), start=1):
        try:
            found = list(_pairs_in(where, row, number, left_out or LeftOutPairs()))
        except DataError as error:
            if left_out is None or not isinstance(sources[0], HubDataset):
                raise
            left_out.malformed.append(str(error))
        else:
            yield from found


def _pairs_in(where: str, row: Mapping[str, Any], number: int, left_out: LeftOutPairs) -> Iterator[Pair]:
    _check_lost(where, row)
    messages: Any = row.get(MESSAGES)
    names = next((names for names in NAMES if names[0] in row and names[1] in row), None)
    if _is_list(messages) and (messages or names is None):
        yield from _conversation(where, messages, number, left_out)
        return
    if names is None and MESSAGES in row:
        raise DataError(f"{where}: {MESSAGES!r} is {shown(messages, 40)}, not a list of objects; {_CONVERSATION}")
    if names is None and _SHARE_GPT in row:
        raise DataError(f"{where}: {_SHARE_GPT!r} is not read; {_CONVERSATION} (human and gpt: user and assistant)")
    if names is None:
        missing = next((answer for prompt, answer in NAMES if prompt in row), "prompt")
        raise DataError(f"{where}: has no {missing!r}; {_WANTED}")
    if all(_is_list(row[name]) for name in names):  # a conversation in two parts
        yield from _conversation(where, [*row[names[0]], *row[names[1]]], number, left_out, len(row[names[0]]))
        return
    behind = [name for name in _BEHIND_PROMPT.get(names[0], ()) if row.get(name)]
    prompt = "\n\n".join(_checked(where, name, row[name], _WANTED) for name in (names[0], *behind))
    yield Pair(prompt, _checked(where, names[1], row[names[1]], _WANTED), number)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, dict) for item in value)


def _conversation(
    where: str, messages: Sequence[Mapping[str, Any]], number: int, left_out: LeftOutPairs, first: int = 0
) -> Iterator[Pair]:
    """Yield a pair for each answer of the assistant from message `first` on, unless its weight is 0.

    An empty system text is none.
    """
    turns: list[Message] = []
    answers: list[int] = []
    num_weightless = num_behind = 0
    for place, message in enumerate(messages, start=1):
        role, content, here = message.get("role"), message.get("content"), f"{where}, message {place}"
        if not isinstance(role, str):
            raise DataError(f"{here}: has no 'role', only {shown(list(message))}; {_CONVERSATION}")
        _check_lost(here, message)
        tables.check_characters(f"{here}: 'role'", role)
        if role == "system" and isinstance(content, str | None) and not (content or "").strip():
            continue
        weight = 1 if message.get("weight") is None else message["weight"]
        if weight not in (0, 1):
            raise DataError(f"{here}: weight={shown(weight)}; 0 (not trained on) and 1 are allowed")
        if role == "assistant" and turns and place > first:
            num_weightless += not weight
            answers += [len(turns)] if weight else []
        num_behind = 0 if role == "assistant" else num_behind + 1
        turns.append({"role": role, "content": _checked(here, "content", content, _CONVERSATION)})
    if not answers and not num_weightless:
        raise DataError(f"{where}: no message of the role 'assistant' follows another; {_CONVERSATION}")
    left_out.num_weightless += num_weightless
    left_out.num_behind += num_behind
    if not answers:
        return
    beginning = json.dumps(turns[: answers[0]], ensure_ascii=False)
    for place in answers:
        yield Pair(beginning, turns[place]["content"], number, tuple(turns[:place]))


def _check_lost(where: str, row: Mapping[str, Any]) -> None:
    if lost := next((name for name in _LOST if row.get(name)), None):
        raise DataError(f"{where}: {lost!r} would be lost; write it into the content of a message, or remove it")


def _checked(where: str, name: str, value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: {name!r} is {shown(value, 40)}, not text; {wanted}")
    if not value.strip():
        raise DataError(f"{where}: {name!r} is empty; {wanted}")
    tables.check_characters(f"{where}: {name!r}", value)
    return value


def repeated_prompts(pairs: Iterable[Pair]) -> str:
    """Return a sentence on the prompts of several rows; the answers of one conversation share theirs."""
    prompts = {pair.line: pair.prompt for pair in pairs}
    return split.repeated_note(split.keys_of(prompts.values()), "prompt")


def no_template(origin: str) -> DataError:
    """Return the error that states what to do about conversations without a chat template."""
    return DataError(
        f"{origin}: messages need a tokenizer with a chat template; give the model_name of one, such as an Instruct "
        "model (a template is in its chat_template.jinja or tokenizer_config.json), or write pairs of prompt and answer"
    )


def split_pairs(
    pairs: list[Pair], length: int, num_tokens: Callable[[Pair], int], test_fraction: float = 0.0
) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Divide the pairs that leave room for an end-of-text token in `length` for training, evaluation and test.

    They are divided by their prompts, as in `split.divide`: a prompt is in one part with all its answers.

    Raises:
        DataError: no pair fits, or all have the same prompt, so that none could be held out.
    """
    fitting = [pair for pair in pairs if num_tokens(pair) < length]
    if not fitting:
        raise DataError(f"none of {len(pairs)} pairs fits into {length} tokens (sequence_length); raise it")
    lengths = [len(pair.prompt) + len(pair.answer) for pair in fitting]
    keys_N = split.keys_of(pair.prompt for pair in fitting)
    parts_N = split.divide(keys_N, lengths, test_fraction, "", "different prompt", "give more pairs")
    train, evaluation, test = ([fitting[row] for row in np.flatnonzero(parts_N == part)] for part in range(3))
    return train, evaluation, test
