"""The codec: what `to_text` writes in a language, `from_text` and the library of that language read."""

import csv
from contextlib import suppress
from types import NoneType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nbtools.recipes import MLMPretrainingConfig
from nbtools.script.compat.aliases import translated_value
from nbtools.script.field import Field
from nbtools.script.values import FLAGS, FORM, NONE_TEXTS, SHELL, from_text, join_names, split_names, to_text

names = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=6)
odd = st.sampled_from(["a, b", '"', 'x"y', " x ", '""', ",", "1", "1e3", "true", "None", "null", "[a]", "~", "'"])
LANGUAGES = [FLAGS, FORM, SHELL, "argparse", "HfArgumentParser", "tyro", "click", "typer", "hydra", "absl"]
LANGUAGES += ["jsonargparse", "LightningCLI", "fire", "constants", "config file"]
SCALARS: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**70), 2**70),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: names | odd,
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Field, Any, str]:
    """A field, a value of it, and a language that has a text for the value."""
    language, kind, form = draw(st.sampled_from(LANGUAGES)), draw(st.sampled_from([*SCALARS])), draw(st.integers(0, 3))
    value = draw(SCALARS[kind])
    if form == 1 and language in NONE_TEXTS:
        field, value = Field("x", (kind, NoneType)), draw(st.sampled_from([value, None]))
    elif form == 2:
        field, value = Field("x", (tuple[kind, ...],)), tuple(draw(st.lists(SCALARS[kind], max_size=3)))  # type: ignore[valid-type]
    elif form == 3:
        field = Field("x", (), choices=(value, None) if language in NONE_TEXTS else (value,))
    else:
        field = Field("x", (kind,))
    return field, value, language


def has_another_meaning(field: Field, value: Any, language: str) -> bool:
    """Whether a value cannot be told from another one in a language."""
    texts = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, str)]
    if language == FLAGS:  # as `--set name=None` is understood for every field
        return bool({"None", "none"} & {*texts})
    if language == "absl" and isinstance(value, tuple):
        return any("," in text for text in texts) or value == ("",)
    if language == "constants":  # a configurator splits at =
        return any("=" in text for text in texts)
    return isinstance(value, str) and NoneType in field.types and value == NONE_TEXTS.get(language)


@given(cases())
@example((Field("x", (tuple[str, ...],)), ("\\", "a\\'b", "'"), "hydra"))
def test_a_value_that_is_written_is_read_again(case: tuple[Field, Any, str]) -> None:
    field, value, language = case
    if has_another_meaning(field, value, language):
        return
    read = from_text(to_text(value, language), field, language)
    assert read == value and type(read) is type(value)


@given(names | odd, st.sampled_from([FORM, SHELL]), st.sampled_from([*SCALARS]), st.booleans())
def test_a_typed_text_is_a_value_of_its_type_or_an_error(text: str, language: str, kind: type, is_list: bool) -> None:
    field = Field("x", (tuple[kind, ...] if is_list else kind,))  # type: ignore[valid-type]
    with suppress(ValueError):
        read = from_text(text, field, language)
        assert all(type(item) is kind for item in (read if is_list else (read,)))


@given(st.lists(names | odd, max_size=4).map(tuple))
def test_names_that_are_joined_are_split_again(found: tuple[str, ...]) -> None:
    text = join_names(found)
    assert split_names(text) == found
    assert tuple(next(csv.reader([text], skipinitialspace=True, strict=True), [])) == found


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("1_000", (int,), 1000),
        ("1e3", (int,), 1000),
        ("none", (int, NoneType), None),
        (" ", (str, NoneType), " "),
        ("", (str, NoneType), None),
        ("none", (str, NoneType), "none"),
        ("4", (int, str), 4),
        ("a100:4", (int, str), "a100:4"),
        ('"a, b", "say ""hi""",c', (tuple[str, ...],), ("a, b", 'say "hi"', "c")),
        ("true, no", (tuple[bool, ...],), (True, False)),
    ],
)
def test_a_form_reads_texts_as_people_write_them(text: str, kinds: tuple[Any, ...], value: object) -> None:
    assert from_text(text, Field("x", kinds), FORM) == value


@pytest.mark.parametrize(
    ("text", "kinds", "message"),
    [
        ("open('x', 'w')", (int,), "is not a whole number such as 1_000"),
        ("1, 1.5", (tuple[int, ...],), r"'1\.5' is not a whole number"),
        ("", (float,), "is empty; give a number such as 5e-4"),
        ("x", (float, NoneType), "'x' is not a number such as 5e-4, or leave it empty"),
        ("maybe", (bool,), "'maybe' is not true or false"),
    ],
)
def test_an_error_says_what_is_allowed(text: str, kinds: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_text(text, Field("x", kinds), FORM)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("learning_rate", "０.００３", 0.003),
        ("learning_rate", "10²", "10²"),
        ("batch_size", "2.5", 2.5),
        ("max_steps", "None", None),
        ("report_to", "none", "none"),
        ("no_such_field", "[1]", "[1]"),
    ],
)
def test_a_flag_that_is_no_value_is_kept_for_the_validation(name: str, text: str, value: object) -> None:
    assert translated_value(MLMPretrainingConfig, name, text) == (name, value)


def test_names_without_quotes_are_as_before() -> None:
    assert split_names(' title,, my genre ,5" disk') == ("title", "my genre", '5" disk')
    assert join_names(("title", "my genre", '5" disk')) == 'title, my genre, 5" disk'
