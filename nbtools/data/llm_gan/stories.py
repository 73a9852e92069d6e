"""Prompts and human texts of the LLM GAN: from a table, or the English text that ships with Python. No torch.

The form, the schedule and the training count texts with `read_stories`, so the numbers agree. Texts are held in memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbtools.data import corpus, split, tables
from nbtools.errors import DataError, Say, shown

TOPICS = "topics"
"""Name of the dataset made of the English text that ships with Python."""
TEXT_COLUMNS = ("human_story", "human_solution", "text")
"""Default text columns; the first one in the file is used."""
PROMPT_COLUMNS = (("title", "genre"), ("problem",))
"""Default prompt columns: the columns that exist of the first group that has any."""

_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n\n+")


@dataclass(frozen=True)
class Story:
    """A human text and the prompt of the generator."""

    prompt: str
    """One `column: value` per line; may be empty."""
    text: str


def read_stories(paths: Sequence[tables.Source], config: Any, say: Say) -> tuple[list[Story], list[Story], list[Story]]:
    """Read a table, and split it for training, evaluation and test.

    Args:
        paths: of the files, with the same columns, or a dataset of the hub.
        config: an `LLMGANConfig`, whose data fields say which columns and texts are read, and how.
        say: receives notes with the numbers of texts that are left out, cut or cleaned.

    Raises:
        DataError: the file is missing or malformed (the message names file, line and column), a text is too short, or
            fewer than two texts are left.
    """
    stories: list[Story] = []
    num_short, first_short = 0, ""
    num_cut = num_cleaned = 0
    path, min_chars, max_chars, is_light = paths[0], config.min_chars, config.max_chars, config.clean == "light"
    with tables.opened(*paths) as (header, rows):
        text_at, prompt_ats = _places(path, header, config.text_col, config.prompt_cols)
        for where, cells in rows:
            text = cells[text_at].strip() if is_light else cells[text_at]
            if len(text.strip()) < min_chars:
                num_short += 1
                first_short = first_short or (
                    f"{where}, column {header[text_at]!r}: {shown(text, 40)} has {len(text.strip())} "
                    f"characters, and min_chars={min_chars}"
                )
                continue
            values = [" ".join(cells[at].split()) if is_light else cells[at] for at in prompt_ats]
            parts = zip((header[at] for at in prompt_ats), values, strict=True)
            prompt = "\n".join(f"{name}: {value}" for name, value in parts if value.strip())
            num_cleaned += text != cells[text_at] or values != [cells[at] for at in prompt_ats]
            num_cut += len(text) > max_chars
            stories.append(Story(prompt, truncated(text, max_chars)))
    if not stories and not num_short:
        raise DataError(f"{path}: no row below the column names; give a file with data")
    short = f"{num_short:,} of {num_short + len(stories):,} texts"
    if num_short and config.short_texts == "refuse":
        raise DataError(
            f"{first_short}; {short} are that short: lower min_chars, or train without them (short_texts='leave_out', "
            "--short-texts leave_out)"
        )
    texts = f"of {len(stories):,} texts"
    for count, sentence in (
        (num_short, f"{short} of {path.name} are shorter than {min_chars} characters and left out"),
        (num_cut, f"{num_cut:,} {texts} are longer than max_chars={max_chars}; their end is cut"),
        (num_cleaned, f"clean='light' changed the spaces of {num_cleaned:,} {texts} or their prompts"),
    ):
        if count:
            say(f"note: {sentence}")
    return split_stories(stories, str(path), config.test_fraction, say)


def split_stories(
    stories: list[Story], origin: str, test_fraction: float = 0.0, say: Say = lambda text: None
) -> tuple[list[Story], list[Story], list[Story]]:
    """Split stories for training, evaluation and test by their texts, as in `split.divide`.

    Raises:
        DataError: there are fewer than two different texts.
    """
    keys_N = split.keys_of(story.text for story in stories)
    lengths, what = [len(story.text) for story in stories], "different text"
    step = "give more texts, or lower min_chars"
    parts_N = split.divide(keys_N, lengths, test_fraction, f"{origin}: ", what, step)
    if note := split.repeated_note(keys_N, "text"):
        say(f"note: {note}")
    train, evaluation, test = ([stories[row] for row in np.flatnonzero(parts_N == part)] for part in range(3))
    return train, evaluation, test


def _places(
    path: tables.Source, header: list[str], text_col: str | None, prompt_cols: Sequence[str] | None
) -> tuple[int, list[int]]:
    """Return the positions of the text column and of the prompt columns."""
    text = text_col or usual_text(header) or TEXT_COLUMNS[0]
    text_at = tables.column_index(path, text, header, "text_col")
    prompt_cols = usual_prompt(header, text) if prompt_cols is None else prompt_cols
    return text_at, [tables.column_index(path, name, header, "prompt_cols") for name in prompt_cols]


def usual_text(header: Sequence[str]) -> str | None:
    """Return the column of the text that is read if none is named; None if there is none."""
    return next((name for name in TEXT_COLUMNS if name in header), None)


def usual_prompt(header: Sequence[str], text: str | None) -> tuple[str, ...]:
    """Return the columns of the prompt that are read beside the text's if none is named."""
    groups = (tuple(name for name in group if name in header and name != text) for group in PROMPT_COLUMNS)
    return next(filter(None, groups), ())


def truncated(text: str, max_chars: int) -> str:
    """Cut a text to at most `max_chars` characters, between two words if its second half has a space."""
    if len(text) <= max_chars:
        return text
    at = max(text.rfind(space, max_chars // 2, max_chars + 1) for space in " \n")
    return text[: at if at > 0 else max_chars].rstrip()


def python_stories(min_chars: int, max_chars: int) -> Iterator[Story]:
    """Cut Python's language reference into texts of whole sentences, each as short as `min_chars` allows.

    A sentence longer than `max_chars` is cut between words; a shorter rest of a topic is left out. The prompt is the
    name of the topic.
    """
    for topic, document in corpus.python_topics():
        text = ""
        for sentence in _SENTENCE_END.split(document):
            text = f"{text} {' '.join(sentence.split())}".strip()
            while len(text) >= min_chars:
                cut = truncated(text, max_chars)
                if len(cut) < min_chars:  # no space between the two lengths
                    cut = text[:max_chars]
                yield Story(f"topic: {topic}", cut)
                text = text[len(cut) :].strip()
