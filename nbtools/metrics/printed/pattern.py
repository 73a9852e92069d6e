"""The pattern of a printed line: literal text with the names of its numbers, `iter {step}: loss {train/loss}`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nbtools.errors import ConfigError, shown
from nbtools.metrics.printed.shapes import NUMBER, number_of, varying_parts

ANY: Final = "_"
_MAX_CHARACTERS: Final = 2000
_MAX_NAMES: Final = 100
_NAME: Final = re.compile(r"[^\W\d][\w/.@%+-]{0,99}")
_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])|([^{}]+)")
_NUMBER_BEFORE_DOT: Final = NUMBER.replace(r"\.(?!\.)\d{0,40}+", r"\.\d{1,40}+")
_PADDING: Final = re.compile(r"(?<=[(\[]) $")  # ( 28%), which becomes (100%)
_EXAMPLE: Final = 'such as "iter {step}: loss {train/loss}, time {_}ms"'


@dataclass(frozen=True)
class Pattern:
    """Literal text, `{name}` for a number that is drawn or counts, and `{_}` for any text.

    A pattern matches a whole folded line; runs of white space are equal, and a number may be padded. `{{` and `}}` are
    braces. Matching is linear in the line.
    """

    text: str
    names: tuple[str, ...] = field(init=False)
    """The names of its numbers, in their order."""
    _expression: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the text.

        Raises:
            ConfigError: a brace without its partner, a bad name or one that is there twice, no name or no literal
                text, or two placeholders without text between them.
        """
        parts = _parts(self.text)
        names = tuple(text for is_name, text in parts if is_name and text != ANY)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_expression", _expression(parts))

    def values(self, line: str) -> dict[str, float] | None:
        """Return the numbers of a folded line by their names; None if the line is another one."""
        spans = self.spans(line)
        return None if spans is None else {name: number_of(line[slice(*span)]) for name, span in spans.items()}

    @property
    def has_digits(self) -> bool:
        """Whether its literal text has digits, so that lines of one shape may be others."""
        return any(not is_name and any(map(str.isdigit, text)) for is_name, text in _parts(self.text))

    def spans(self, line: str) -> dict[str, tuple[int, int]] | None:
        """Return where the numbers of a folded line stand; None if the line is another one."""
        found = self._expression.fullmatch(line)
        return None if found is None else {name: found.span(i) for i, name in enumerate(self.names, 1)}

    @classmethod
    def of(cls, line: str, names: Mapping[int, str]) -> "Pattern":
        """Return the pattern of a folded line in which some numbers have a name, by their index in `numbers_in`.

        Raises:
            ConfigError: no number is named, an index is none of the line's, a name is not allowed, or the text of the
                line does not tell its numbers apart.
        """
        parts, at, index, chosen = [""], 0, -1, dict[str, tuple[int, int]]()
        for start, end, is_number in varying_parts(line):
            index += is_number
            parts[-1] += line[at:start].replace("{", "{{").replace("}", "}}")
            at, name = end, names.get(index, ANY) if is_number else ANY
            if name == ANY:
                parts[-1] = _PADDING.sub("", parts[-1])
            if not parts[-1] and len(parts) > 1 and name == ANY == parts[-2]:
                continue
            parts += [name, ""]
            chosen |= {} if name == ANY else {name: (start, end)}
        parts[-1] += line[at:].replace("{", "{{").replace("}", "}}")
        if unknown := sorted(names.keys() - range(index + 1)):
            raise ConfigError(f"number {unknown[0]} of a line with {index + 1}: choose from 0 to {index}")
        pattern = cls("".join(f"{{{part}}}" if i % 2 else part for i, part in enumerate(parts)))
        if pattern.spans(line) != chosen:
            raise ConfigError(f"{shown(line, 200)}: the text between its numbers does not tell them apart")
        return pattern


def _parts(text: str) -> list[tuple[bool, str]]:
    """Return the literal texts and the names of a pattern, each with whether it is a name."""

    def error(reason: str) -> ConfigError:
        return ConfigError(f"pattern {shown(text, 200)}: {reason}; write text with names in braces, {_EXAMPLE}")

    if len(text) > _MAX_CHARACTERS:
        raise error(f"{len(text)} characters; at most {_MAX_CHARACTERS} are allowed")
    if "\n" in text or "\r" in text:
        raise error("a pattern is one line")
    parts: list[tuple[bool, str]] = []
    for found in _PART.finditer(" ".join(text.split())):
        if found[2]:
            raise error(f"a {found[2]} without its partner; a brace of the line itself is {found[2] * 2}")
        if found[1] is not None:
            if found[1] != ANY and not _NAME.fullmatch(found[1]):
                raise error(
                    f"{{{found[1]}}} is no name; allowed are letters, digits and / . _ - @ % + without a format or "
                    "blanks, and {_} for any text"
                )
            if parts and parts[-1][0]:
                raise error(f"{{{parts[-1][1]}}} and {{{found[1]}}} need text between them")
            parts.append((True, found[1]))
            continue
        literal = found[0][:1] if found[0] in ("{{", "}}") else found[0]
        if parts and not parts[-1][0]:
            literal = parts.pop()[1] + literal
        parts.append((False, literal))
    names = [part for is_name, part in parts if is_name and part != ANY]
    if not names:
        raise error("no number has a name")
    if len(names) > _MAX_NAMES:
        raise error(f"{len(names)} names; at most {_MAX_NAMES} are allowed")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise error(f"{{{twice}}} is there twice; give each number a name of its own")
    if not any(not is_name and literal.strip() for is_name, literal in parts):
        raise error("no text beside the numbers, so it would match too much")
    return parts


def _expression(parts: list[tuple[bool, str]]) -> re.Pattern[str]:
    """Return the regular expression of a pattern.

    Between two `{_}` stands a segment without any; each is searched once, from the left, and never given back
    (atomic groups), so a line that does not match costs no more than one that does.
    """
    segments = [""]
    for i, (is_name, text) in enumerate(parts):
        if is_name and text == ANY:
            segments.append("")
        elif is_name:
            is_before_dot = i + 1 < len(parts) and parts[i + 1][1].startswith(".")
            segments[-1] += f"({_NUMBER_BEFORE_DOT if is_before_dot else NUMBER})"
        else:
            is_after = i > 0 and parts[i - 1] != (True, ANY)
            is_before = i + 1 < len(parts) and parts[i + 1] != (True, ANY)
            segments[-1] += _literal(text, is_after_number=is_after, is_before_number=is_before)
    first, *rest = (f"(?:{segment})" for segment in segments)
    if not rest:
        return re.compile(first)
    *middle, last = rest
    ending = r".*+" if not segments[-1] else rf"(?>.*?{last}$)"
    return re.compile(f"(?>{first})" + "".join(rf"(?>.*?{segment})" for segment in middle) + ending)


def _literal(text: str, *, is_after_number: bool, is_before_number: bool) -> str:
    """Return the expression of a literal text; beside a number, a blank may be missing or be there (padding)."""
    words = [re.escape(word) for word in text.split(" ")]
    if len(words) > 1 and not "".join(words):
        return " "
    joined = " ".join(words)
    if is_before_number:
        joined = joined.removesuffix(" ") + " ?+"
    return " ?+" + joined if is_after_number and text[0] != " " else joined
