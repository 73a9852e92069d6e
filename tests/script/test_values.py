"""Names in one text: what `join_names` writes, `split_names` and the csv module read."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.recipes import MLMPretrainingConfig
from nbtools.script.values import join_names, parse_field, split_names

names = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=6)


@given(st.lists(names | st.sampled_from(["a, b", '"', 'x"y', " x ", '""', ","]), max_size=4).map(tuple))
def test_names_that_are_joined_are_split_again(found: tuple[str, ...]) -> None:
    text = join_names(found)
    assert split_names(text) == found
    assert tuple(next(csv.reader([text], skipinitialspace=True, strict=True), [])) == found


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("learning_rate", "０.００３", 0.003), ("batch_size", "１６", 16), ("learning_rate", "10²", "10²")],
)
def test_digits_of_any_script_are_read_as_float_reads_them(name: str, text: str, value: object) -> None:
    assert parse_field(text, MLMPretrainingConfig.model_fields[name]) == value


def test_names_without_quotes_are_as_before() -> None:
    assert split_names(' title,, my genre ,5" disk') == ("title", "my genre", '5" disk')
    assert join_names(("title", "my genre", '5" disk')) == 'title, my genre, 5" disk'
