"""Names in one text: what `join_names` writes, `split_names` and the csv module read."""

import csv

from hypothesis import given
from hypothesis import strategies as st

from nbtools.script.field_text import join_names, split_names

names = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=6)


@given(st.lists(names | st.sampled_from(["a, b", '"', 'x"y', " x ", '""', ","]), max_size=4).map(tuple))
def test_names_that_are_joined_are_split_again(found: tuple[str, ...]) -> None:
    text = join_names(found)
    assert split_names(text) == found
    assert tuple(next(csv.reader([text], skipinitialspace=True, strict=True), [])) == found


def test_names_without_quotes_are_as_before() -> None:
    assert split_names(' title,, my genre ,5" disk') == ("title", "my genre", '5" disk')
    assert join_names(("title", "my genre", '5" disk')) == 'title, my genre, 5" disk'
