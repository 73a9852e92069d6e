"""Prompts and human texts for the LLM GAN: from a CSV file, or the English text that ships with Python. No torch.

Everybody who needs a number of texts (the form, the schedule, the training) reads with `read_stories`, so the numbers
agree. Texts are held in memory.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbtools.data import corpus, tables
from nbtools.errors import DataError, shown

if TYPE_CHECKING:
    from nbtools.recipes import LLMGANConfig

TOPICS = "topics"
"""The dataset made of the English text that ships with Python."""
TEXT_COLUMNS = ("human_story", "human_solution", "text")
"""Where a human text is looked for."""
PROMPT_COLUMNS = (("title", "genre"), ("problem",))
"""What the generator is told, as far as it is there: the first of these groups that has a column."""

_EVALUATION_SHARE = 0.1
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n\n+")


@dataclass(frozen=True)
class Story:
    """A human text, and what a generator is told to write one like it."""

    prompt: str
    """`column: value`, one a line; empty where nothing is told."""
    text: str


def read_stories(
    config: "LLMGANConfig", root: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> tuple[list[Story], list[Story]]:
    """Read what `config.dataset` names, and divide it for training and evaluation.

    Args:
        config: of the training.
        root: what a relative path starts from.
        say: is told how many texts were left out.

    Raises:
        DataError: the file is missing or malformed (file, line and column are named), a text is too short, or too few
            texts are left.
    """
    if config.dataset == TOPICS:
        return divided(list(passages(config.min_chars, config.max_chars)), TOPICS)
    assert config.dataset is not None, "a Markov chain has no texts"
    path = corpus.resolve(config.dataset, root)
    return divided(_read(path, config, say), str(path))


def divided(stories: list[Story], origin: str) -> tuple[list[Story], list[Story]]:
    """Divide stories for training and evaluation so that no text is on both sides.

    Which side a text is on follows from the text alone; where chance would hold out none, the one with the least hash
    is held out.

    Raises:
        DataError: there are fewer than two different texts.
    """
    hashes = {story.text: hashlib.blake2b(story.text.encode(), digest_size=8).digest() for story in stories}
    if len(hashes) < 2:
        raise DataError(
            f"{origin}: {len(hashes)} different text{'' if len(hashes) == 1 else 's'}; at least two are needed, one of "
            "them to evaluate on: give more texts, or lower min_chars"
        )
    limit = int(_EVALUATION_SHARE * 2**64)
    least = min(hashes.values())
    held_out = {text for text, key in hashes.items() if int.from_bytes(key, "big") < limit or key == least}
    if len(held_out) == len(hashes):
        held_out.remove(max(hashes, key=lambda text: hashes[text]))
    return (
        [story for story in stories if story.text not in held_out],
        [story for story in stories if story.text in held_out],
    )


# --- CSV files ------------------------------------------------------------------------------------


def _read(path: Path, config: "LLMGANConfig", say: Callable[[str], None]) -> list[Story]:
    stories: list[Story] = []
    num_short, first_short = 0, ""
    with tables.opened(path) as (header, rows):
        tables.check_names(path, header)
        text_at, prompt_ats = _places(path, header, config)
        for line, cells in rows:
            text = cells[text_at].strip()
            if len(text) < config.min_chars:
                num_short += 1
                first_short = first_short or (
                    f"{path}, line {line}, column {header[text_at]!r}: {shown(text, 40)} has {len(text)} characters, "
                    f"and min_chars={config.min_chars}"
                )
                continue
            told = ((header[at], " ".join(cells[at].split())) for at in prompt_ats)
            prompt = "\n".join(f"{name}: {value}" for name, value in told if value)
            stories.append(Story(prompt, shortened(text, config.max_chars)))
    if not stories and not num_short:
        raise DataError(f"{path}: no row below the column names; give a file with data")
    if num_short and config.short_texts == "refuse":
        raise DataError(
            f"{first_short}; {num_short:,} of {num_short + len(stories):,} texts are that short: lower min_chars, or "
            "train without them (short_texts='leave_out', --short-texts leave_out)"
        )
    if num_short:
        say(
            f"note: {num_short:,} of {num_short + len(stories):,} texts of {config.dataset} are shorter than "
            f"{config.min_chars} characters and left out"
        )
    return stories


def _places(path: Path, header: list[str], config: "LLMGANConfig") -> tuple[int, list[int]]:
    """Return where the text and the parts of the prompt are."""
    named = config.text_col
    text = named if named is not None else next((name for name in TEXT_COLUMNS if name in header), TEXT_COLUMNS[0])
    if text not in header:
        raise tables.missing(path, text, header, "text_col")
    prompt = config.prompt_cols
    if prompt is None:
        groups = ([name for name in group if name in header and name != text] for group in PROMPT_COLUMNS)
        prompt = tuple(next((group for group in groups if group), ()))
    for name in prompt:
        if name not in header:
            raise tables.missing(path, name, header, "prompt_cols")
    return header.index(text), [header.index(name) for name in prompt]


def shortened(text: str, max_chars: int) -> str:
    """Cut a text that is longer than `max_chars`, between two words if there is a space in its second half."""
    if len(text) <= max_chars:
        return text
    at = max(text.rfind(space, max_chars // 2, max_chars + 1) for space in " \n")
    return text[: at if at > 0 else max_chars].rstrip()


# --- the text that ships with Python --------------------------------------------------------------


def passages(min_chars: int, max_chars: int) -> Iterator[Story]:
    """Cut Python's language reference into passages of whole sentences, as short as `min_chars` allows.

    A sentence that does not fit into `max_chars` is cut between words; what is too short at the end of a topic is left
    out. Of every passage the name of its topic is told.
    """
    for topic, document in corpus.python_topics():
        passage = ""
        for sentence in _SENTENCE_END.split(document):
            passage = f"{passage} {' '.join(sentence.split())}".strip()
            while len(passage) >= min_chars:
                cut = shortened(passage, max_chars)
                if len(cut) < min_chars:  # no space between the two lengths
                    cut = passage[:max_chars]
                yield Story(f"topic: {topic}", cut)
                passage = passage[len(cut) :].strip()
