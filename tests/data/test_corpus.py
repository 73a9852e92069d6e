"""The text: what is read, how it is cleaned, split and counted."""

import string
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_corpus import read_documents, split_documents

from nbtools.data import corpus, split
from nbtools.errors import DataError

PARAGRAPH = "The quick brown fox jumps over the lazy dog, and nobody knows why it does so.\n\n"


def paragraphs(num: int, start: int = 0) -> str:
    return "".join(PARAGRAPH.replace("fox", f"fox{number}") for number in range(start, start + num))


# --- the text that ships with Python ---


def test_the_built_in_text_has_no_table_rules_left() -> None:
    words = [word for document in read_documents(None) for word in corpus.words(document)]
    assert len(words) > 50_000
    assert words.count("-") < 0.03 * len(words)  # a third of the raw text
    assert not any(set(line) <= set("-=+*| ") for line in "\n".join(read_documents(None)).splitlines() if line)


def test_no_paragraph_of_the_built_in_text_is_trained_on_and_held_out_at_once() -> None:
    train, evaluation = split_documents(read_documents(None))
    trained = {" ".join(paragraph.split()) for document in train for paragraph in document.split("\n\n")}
    held_out = {" ".join(paragraph.split()) for document in evaluation for paragraph in document.split("\n\n")}
    assert held_out
    assert not trained & held_out


def test_about_a_tenth_of_the_built_in_text_is_held_out_by_whole_topics() -> None:
    documents = read_documents(None)
    train, evaluation = split_documents(documents)
    assert sorted(train + evaluation) == sorted(documents)
    share = sum(map(len, evaluation)) / sum(map(len, documents))
    assert 0.08 < share <= 0.1
    assert len(evaluation) >= 5


# --- files and folders ---


def test_one_file_is_cut_into_documents_at_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(paragraphs(100))
    documents = read_documents(str(file))
    assert 10 <= len(documents) <= 60
    assert all(document.endswith("does so.\n\n") for document in documents)
    assert "".join(documents) == paragraphs(100)


@pytest.mark.parametrize("separator", ["\n", " "])
def test_one_file_without_blank_lines_is_cut_at_lines_or_spaces(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "text.txt"
    file.write_text(separator.join(f"word{number}" for number in range(5000)))
    documents = read_documents(str(file))
    assert len(documents) > 10
    assert [word for document in documents for word in corpus.words(document)] == [f"word{n}" for n in range(5000)]


def test_a_folder_of_many_files_gives_one_document_each_in_order_of_their_paths(tmp_path: Path) -> None:
    for number in range(30):
        folder = tmp_path / ("b" if number % 2 else "a")
        folder.mkdir(exist_ok=True)
        (folder / f"{number:02}.txt").write_text(f"text number {number}\n\nwith a second paragraph")
    (tmp_path / "notes.md").write_text("not read")
    documents = read_documents(str(tmp_path))
    assert len(documents) == 30
    assert [documents[number].split("\n")[0] for number in (0, 15)] == ["text number 0", "text number 1"]


def test_a_folder_with_one_file_is_like_the_file(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(paragraphs(100))
    assert read_documents(str(tmp_path)) == read_documents(str(tmp_path / "one.txt"))


def test_a_folder_with_few_files_is_cut_so_that_a_tenth_can_be_held_out(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(paragraphs(100, 100 * number))
    documents = read_documents(str(tmp_path))
    train, evaluation = split_documents(documents)
    assert 0.05 < sum(map(len, evaluation)) / sum(map(len, documents)) <= 0.1
    assert train


def test_a_huge_file_among_many_is_cut(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text(f"small text {number}")
    (tmp_path / "huge.txt").write_text(paragraphs(20_000))
    assert max(map(len, read_documents(str(tmp_path)))) < 100_000


def test_line_ends_and_a_byte_order_mark_make_no_difference_to_a_cleaned_text(tmp_path: Path) -> None:
    text = paragraphs(40)
    for name, data in {
        "unix": text.encode(),
        "windows": text.replace("\n", "\r\n").encode("utf-8-sig"),
        "mac": text.replace("\n", "\r").encode(),
    }.items():
        (tmp_path / f"{name}.text").write_bytes(data)
    names = ("unix", "windows", "mac")
    documents = [read_documents(str(tmp_path / f"{name}.text"), clean="light") for name in names]
    assert documents[0] == documents[1] == documents[2]


@pytest.mark.parametrize("read_characters", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("separator", ["\n\n", "\r\n \r\n", "\r", " ", ""])
def test_reading_in_pieces_cuts_where_reading_the_whole_file_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, read_characters: int
) -> None:
    monkeypatch.setattr(corpus, "_LONGEST_DOCUMENT", 2000)
    monkeypatch.setattr(corpus, "_LONGEST_SECTION", 40)
    file = tmp_path / "text.txt"
    words = ["ein", "café", "東京", "\U0001d518", "x" * 50, "- - -", "end."]
    # A section of digits alone would be left out.
    text = separator.join(words[number * number % 7] + str(number) for number in range(500)) + "end"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    monkeypatch.setattr(corpus, "_READ_CHARACTERS", 10**6)
    whole = read_documents(str(file))
    monkeypatch.setattr(corpus, "_READ_CHARACTERS", read_characters)
    assert read_documents(str(file)) == whole
    assert len(whole) > 20
    assert "".join("".join(whole).split()) == "".join(text.replace("- - -", "-").split())


@pytest.mark.slow
def test_documents_come_one_at_a_time_in_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(paragraphs(150_000))
    size = file.stat().st_size
    tracemalloc.start()
    try:
        counted = corpus.count_tokens(corpus.documents(str(file), 5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(counted[:3]) > 2_000_000
    assert size > 12_000_000
    assert peak < size / 2


def test_the_first_document_does_not_wait_for_the_last_one(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(paragraphs(40_000).encode() + b"\xe9")
    found = corpus.documents(str(file))
    assert "quick brown" in next(found)
    with pytest.raises(DataError, match=rf"byte {file.stat().st_size - 1} \(0xe9\) is not UTF-8"):
        list(found)


def test_counting_in_one_pass_gives_what_counting_the_split_gives() -> None:
    documents = read_documents(None)
    parts_N = split.divide(split.keys_of(documents), [len(document) for document in documents], 0.4).tolist()
    for count in (corpus.num_words, len):
        sums = [0, 0, 0]
        for document, part in zip(documents, parts_N, strict=True):
            sums[part] += count(document) + 1
        assert corpus.count_tokens(iter(documents), count, 0.4) == (*sums, "")
        assert corpus.count_tokens(iter(documents), count) == (sums[0], sums[1] + sums[2], 0, "")


def test_documents_with_too_few_words_are_left_out_and_counted(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text("word " * number + "end")
    left_out = corpus.LeftOut()
    assert len(list(corpus.documents(str(tmp_path), 11, left_out=left_out))) == 20
    assert left_out.notes(11) == ["10 of 30 documents left out: fewer than 11 words (min_words)"]


def test_a_short_section_of_a_long_file_is_kept(tmp_path: Path) -> None:
    text = paragraphs(40) + "}\n\n\n"
    (tmp_path / "text.txt").write_text(text)
    assert "".join(read_documents(str(tmp_path / "text.txt"), min_words=5)) == text


@given(st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), min_size=1), st.integers(1, 400))
def test_the_sections_of_any_text_are_the_text(text: str, repeats: int) -> None:
    text = f"{text} x" * repeats
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_bytes(text.encode())
        assert "".join(read_documents(str(file))) == text


# --- bad input ---


@pytest.mark.parametrize(
    ("content", "clean"),
    [("", "none"), ("\n\n \t\n", "none"), ("", "light"), ("\n\n \t\n", "light"), ("-----\n=====\n12345\n", "light")],
)
def test_a_file_without_text_is_empty(tmp_path: Path, content: str, clean: corpus.Clean) -> None:
    (tmp_path / "text.txt").write_text(content)
    with pytest.raises(DataError, match=r"text\.txt': empty"):
        read_documents(str(tmp_path / "text.txt"), clean=clean)


@pytest.mark.promise("guide-A20")
def test_bad_utf8_names_the_file_and_the_byte(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbfabc\xe9def")
    with pytest.raises(DataError, match=r"text\.txt: byte 6 \(0xe9\) is not UTF-8; convert the file"):
        read_documents(str(tmp_path / "text.txt"))


def test_nothing_left_after_min_words_says_so(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("too short")
    with pytest.raises(DataError, match=r"none of its 1 document has 5 words \(min_words\)"):
        read_documents(str(tmp_path / "text.txt"), min_words=5)


# --- words ---


def test_words_are_lower_cased_and_punctuation_stands_alone() -> None:
    assert corpus.words('He said: "Don\'t!" (x_1 += 2.5)') == [
        *("he", "said", ":", '"', "don", "'", "t", "!", '"', "(", "x_1", "+", "=", "2", ".", "5", ")")
    ]


def test_marks_stay_with_their_letters_and_ideographs_stand_alone() -> None:
    assert corpus.words("cafe\u0301 東京 हिन्दी") == ["cafe\u0301", "東", "京", "हिन्दी"]


def tokenizer_words(text: str) -> list[str]:
    from tokenizers import Regex, normalizers, pre_tokenizers

    lower = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace("ς", "σ")])
    cut = pre_tokenizers.Split(Regex(corpus.WORD_PATTERN), behavior="removed", invert=True)
    return [word for word, _ in cut.pre_tokenize_str(lower.normalize_str(text))]


@given(st.text(st.characters(codec="utf-8", max_codepoint=0x323AF), max_size=40))
def test_the_tokenizer_finds_the_same_words_in_any_text(text: str) -> None:
    # Letters whose lower case a newer Unicode added are the one thing that the two may see differently.
    if all(character.lower() == tokenizer_lower(character) or character == "ς" for character in text):
        assert tokenizer_words(text) == corpus.words(text)


def tokenizer_lower(character: str) -> str:
    from tokenizers import normalizers

    return str(normalizers.Lowercase().normalize_str(character))


def unchanged(character: str) -> bool:
    return character.lower() == character == tokenizer_lower(character)


def test_python_and_the_tokenizer_split_at_the_same_characters() -> None:
    """Every character of the first two planes, between two letters."""
    characters = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    text = "\n".join(f"a{character}b" for character in characters if unchanged(character))
    assert tokenizer_words(text) == corpus.words(text)


@given(st.text(string.ascii_letters + string.punctuation + " \n-=", max_size=200))
def test_cleaning_keeps_every_letter_and_needs_no_second_time(text: str) -> None:
    once = corpus.clean_document(text)
    assert corpus.clean_document(once) == once
    assert [c for c in once if c.isalpha()] == [c for c in text if c.isalpha()]


def test_cleaning_removes_table_rules_and_keeps_paragraphs_apart() -> None:
    table = "+-----+=====+\n| Name | Value ....... |\n+-----+-----+\n\n\n\nText  --  more__less"
    assert corpus.clean_document(table) == "| Name | Value . |\n\nText - more__less"
