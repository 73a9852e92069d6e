"""Code systems: sets of codes as sequences of symbols, and back; nothing but codes gets in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.data.text_classification.coded_texts import split_cell
from nbtools.data.text_classification.codes import BOS, EOS, HISCO_SPECIAL, PAD, CodeSystem, generic_code, hisco_code
from nbtools.errors import DataError

HISCO = st.one_of(st.sampled_from(HISCO_SPECIAL), st.integers(0, 99999).map(lambda number: f"{number:05}"))
ANY = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="&"), min_size=1, max_size=12
)


def spelt(system: CodeSystem, number: int) -> str:
    """What the block of a code says: its symbols, without the padding; a special code fills its block."""
    symbols = [system.symbols[symbol - 5] for symbol in system.blocks_CS[number] if symbol != PAD]
    return symbols[0] if symbols[0] in HISCO_SPECIAL and system.formatter == "hisco" else "".join(symbols)


@given(st.sets(HISCO, min_size=1))
def test_the_block_of_a_hisco_code_spells_it(codes: set[str]) -> None:
    system = CodeSystem.of("hisco", codes, 5)
    assert system.sequence_length == 27
    assert system.blocks_CS.max() < system.num_symbols == 18
    assert [spelt(system, number) for number in range(len(codes))] == sorted(codes)
    assert not (system.blocks_CS[:-1] == PAD).any()


@given(st.sets(ANY, min_size=1))
def test_the_block_of_any_other_code_spells_it_too(codes: set[str]) -> None:
    system = CodeSystem.of("generic", codes, 3)
    assert system.block_size == max(map(len, codes))
    assert [spelt(system, number) for number in range(len(codes))] == sorted(codes)
    assert CodeSystem.from_json(system.to_json()) == system


def test_the_marks_and_symbols_are_those_of_occcanine() -> None:
    # The symbols -3 … 9 are 5 … 17, a special code fills its block.
    assert (PAD, BOS, EOS) == (1, 2, 3)
    system = CodeSystem.of("hisco", ["12345", "-1"], 5)
    assert system.blocks_CS.tolist() == [[7] * 5, [9, 10, 11, 12, 13], [1] * 5]


@pytest.mark.parametrize(
    ("cell", "code"),
    [("61110", "61110"), ("4217", "04217"), (" 61110.0", "61110"), ("4217.0", "04217"), ("-1", "-1"), ("-3.0", "-3")],
)
def test_what_spreadsheets_do_to_hisco_codes_is_put_right(cell: str, code: str) -> None:
    assert hisco_code(cell) == code


@pytest.mark.parametrize("cell", ["", "123", "123456", "-4", "6111O", "1e4", "٦١١١٠", "farmer"])
def test_what_is_no_hisco_code_is_refused(cell: str) -> None:
    with pytest.raises(ValueError, match="is not a HISCO code"):
        hisco_code(cell)


@pytest.mark.parametrize("cell", ["x" * 65, "a\x00b"])
def test_what_is_no_code_at_all_is_refused(cell: str) -> None:
    with pytest.raises(ValueError, match="is not a code"):
        generic_code(cell)


@pytest.mark.parametrize(
    ("cell", "separator", "parts"),
    [
        ("61110 & 83110", "&", ["61110", "83110"]),
        ("61110&", "&", ["61110"]),
        ("?", "&", []),
        (" ", "&", []),
        (" NA ", "", []),
        ("a&?", "&", ["a"]),
        ("a & b", "", ["a & b"]),
        ("a, b,c", ", ", ["a", "b,c"]),
        ("a||b", "|", ["a", "b"]),
        ("n/a", "/", []),
        ("a" + " " * 10**6 + "&b", "&", ["a", "b"]),
    ],
)
def test_a_cell_holds_codes_or_says_that_it_holds_none(cell: str, separator: str, parts: list[str]) -> None:
    assert split_cell(cell, separator, ("?", "NA", "n/a")) == parts


def test_data_without_a_code_is_refused() -> None:
    with pytest.raises(DataError, match="the data has no code"):
        CodeSystem.of("generic", [], 2)


@pytest.mark.parametrize(
    "change",
    [
        {"codes": ["a", "a"]},
        {"symbols": []},
        {"block_size": 1, "codes": ["ab"]},
        {"max_codes": "many"},
        {"codes": None},
    ],
)
def test_a_damaged_description_of_a_system_is_refused(change: dict[str, object]) -> None:
    content = CodeSystem.of("generic", ["a", "b"], 2).to_json()
    with pytest.raises(DataError, match="not a code system"):
        CodeSystem.from_json({**content, **change})


def test_two_systems_tell_what_sets_them_apart() -> None:
    one = CodeSystem.of("hisco", ["61110", "83110"], 2)
    assert one.difference(one) == ""
    assert "max_codes is 3, not 2" in one.difference(CodeSystem.of("hisco", ["61110", "83110"], 3))
    assert "they differ in 83110" in one.difference(CodeSystem.of("hisco", ["61110"], 2))
    assert "formatter is generic" in one.difference(CodeSystem.of("generic", ["61110", "83110"], 2))
