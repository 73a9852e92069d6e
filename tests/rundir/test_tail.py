"""Following a file that somebody else writes, and the end of a log as clean text."""

import errno
import os
import sys
import time
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

import nbtools.rundir.tail
from nbtools.rundir.tail import MAX_LINE_CHARACTERS, Tail, last_lines, one_line, terminal_text


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def read_all(tail: Tail) -> bytes:
    return b"".join(iter(tail.read, b""))


# --- Tail ---------------------------------------------------------------------------------------


def test_a_missing_file_is_empty_and_may_appear_later(tmp_path: Path) -> None:
    path = tmp_path / "later" / "f"
    tail = Tail(path)
    assert tail.read() == b""
    path.parent.mkdir()
    assert tail.read() == b""
    append(path, b"")
    assert tail.read() == b""
    append(path, b"one\n")
    assert tail.read() == b"one\n"
    assert tail.generation == 0


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def replace(path: Path) -> None:
    path.with_name("g").touch()
    path.with_name("g").replace(path)


@pytest.mark.parametrize("empty", [truncate, replace, Path.unlink])
@pytest.mark.parametrize("is_seen_empty", [True, False])
def test_an_emptied_file_starts_over(tmp_path: Path, empty: Callable[[Path], None], is_seen_empty: bool) -> None:
    path = tmp_path / "f"
    append(path, b"one\ntwo\nthr")
    tail = Tail(path)
    assert tail.read() == b"one\ntwo\n"
    empty(path)
    assert not is_seen_empty or tail.read() == b""
    append(path, b"new, with more bytes than before\n")  # the file system may give it the same inode
    assert tail.read() == b"new, with more bytes than before\n"
    assert tail.generation == 1


@pytest.mark.parametrize("content", [b"other\nlines, and more than before\n", b"two\n", None])
def test_a_file_written_anew_starts_over_and_a_touched_one_does_not(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "f"
    append(path, b"one\n")
    tail = Tail(path)
    tail.read()
    if content is not None:
        path.write_bytes(content)
    os.utime(path, ns=(0, 1))
    assert tail.read() == (content or b"")
    assert tail.generation == (content is not None)


def test_rotation_loses_no_line_and_repeats_none(tmp_path: Path) -> None:
    path = tmp_path / "f"
    (tmp_path / "loop").symlink_to("loop")
    append(path, b"one\n")
    tail = Tail(path)
    assert tail.read() == b"one\n"
    append(path, b"two\nthree\n")
    path.rename(tmp_path / "f.1")
    append(path, b"four\n")
    assert tail.read() == b"two\nthree\n"
    assert tail.generation == 0, "these lines still belong to the old file"
    assert tail.read() == b"four\n"
    assert tail.generation == 1
    assert tail.read() == b""


def test_a_stale_handle_is_tolerated_and_a_forbidden_file_is_an_error(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    path = tmp_path / "f"
    append(path, b"one\n")
    tail = Tail(path)

    def fail_with(number: int) -> None:
        def pread(*_: object) -> bytes:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(nbtools.rundir.tail.os, "pread", pread)

    fail_with(errno.ESTALE)
    assert tail.read() == b""
    fail_with(errno.EACCES)
    with pytest.raises(PermissionError):
        tail.read()
    monkeypatch.undo()
    assert tail.read() == b"one\n"


def test_what_is_not_a_regular_file_reads_as_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        assert Tail(path).read() == b""
        assert last_lines(path, 10) == []


def test_a_line_without_end_is_cut_and_carriage_returns_end_lines_if_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "f"
    tail = Tail(path, block_bytes=100, line_bytes=50)
    append(path, b"x" * 1000)
    assert tail.read() == b""
    append(path, b"x" * 1000 + b"\nnext\n10%\r20%\r30")
    assert read_all(tail) == b"x" * 50 + b"\nnext\n"
    assert Tail(path, carriage_returns=True).read().endswith(b"\nnext\n10%\r20%\r")


@pytest.mark.promise("fault-11")
@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"\n", b"a\n", b"\r\n"])), max_size=12),
    st.integers(1, 40),
)
@examples(200)
def test_however_the_bytes_arrive_they_are_read_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], block_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "f"
    tail = Tail(path, block_bytes=block_bytes)
    found = b""
    for part in parts:
        append(path, part)
        new = read_all(tail)
        assert not new or new.endswith(b"\n")
        found += new
    whole = b"".join(parts)
    assert found == whole[: whole.rfind(b"\n") + 1]
    assert tail.generation == 0


# --- clean --------------------------------------------------------------------------------------


@pytest.mark.promise("fault-29")
@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain\ttext", "plain\ttext"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b[38;2;1;2;3mcolour\x1b[K", "colour"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred".encode(), "red"),
        (b"\x1b(Bset\x1b=", "set"),
        (b"\x1bP1$r\x1b\\after", "after"),
        (b" 10%\r 50%\r100%", "100%"),
        (b" 10%\r100%\r", "100%"),
        (b"windows\r\n", "windows\n"),
        (b"bar 10%\r        \r{'loss': 1}", "{'loss': 1}"),
        (b"bar\r      \r", ""),
        (b"abc\b\bXY", "aXY"),
        (b"\b\b\bX", "X"),
        (b"\xff\xfeok\xc3", "��ok�"),
        (b"a\x00b\x07c\x7f", "a\\x00b\\x07c\\x7f"),
        ("user\u202etxt.exe".encode(), "user\\u202etxt.exe"),
        ("zero\u200bwidth\u2066\ufeff".encode(), "zero\\u200bwidth\\u2066\\ufeff"),
        ("line\u2028separator\x85".encode(), "line\\u2028separator\\x85"),
        ("naïve → 漢字 😀".encode(), "naïve → 漢字 😀"),
        (b"<b>&amp;", "<b>&amp;"),
        (b"", ""),
        (b"one\ntwo", "one\ntwo"),
        (b"a\x1b]0;never closed\nnext", "a\nnext"),
        (b"x" * 10_000_000, "x" * MAX_LINE_CHARACTERS + "… (10,000,000 characters)"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_log_reads_as_a_terminal_would_end_up_showing_it(raw: bytes, shown: str) -> None:
    assert terminal_text(raw) == shown


@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
)
@examples(500)
def test_no_bytes_break_cleaning_and_nothing_invisible_is_left(data: bytes) -> None:
    shown = terminal_text(data)
    assert shown.count("\n") == data.count(b"\n")
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert not set(shown) & set("\x7f\x85\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202d\u202e\u2066\u2069\ufeff\x9b")
    assert terminal_text(shown.encode()) == shown


@pytest.mark.parametrize(
    "unit", [b"\x1b", b"\x1b[", b"\x1b]", b"\x1b[0;", b"\x1b(", b"\r", b"\b", b"x\b", b"\xc3", b"\x1bP"]
)
def test_cleaning_costs_in_proportion_to_the_length(unit: bytes) -> None:
    def cost(num: int) -> float:
        best = float("inf")
        for _ in range(3):
            before = time.thread_time()
            terminal_text(unit * num)
            best = min(best, time.thread_time() - before)
        return best

    assert cost(64_000) < 40 * max(cost(8_000), 1e-4)  # 8 if linear, 64 if quadratic


# --- last_lines ---------------------------------------------------------------------------------


def test_the_last_lines_are_given_with_the_unfinished_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    append(path, b"".join(b"line %d\n" % i for i in range(1000)) + b"half")
    assert last_lines(path, 3) == ["line 998", "line 999", "half"]
    assert len(last_lines(path, 5000)) == 1001
    assert last_lines(path, 0) == last_lines(tmp_path / "none", 10) == []
    for content, lines in ((b"", []), (b"\n", [""])):
        path.write_bytes(content)
        assert last_lines(path, 10) == lines


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(300_000_000)  # sparse: reading it all would be slow and large all the same
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"line %d\n" % i for i in range(10_000)))
    tracemalloc.start()
    try:
        lines = last_lines(path, 200)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines == [f"line {i}" for i in range(9800, 10_000)]
    assert peak < 4_000_000


def test_more_is_read_where_lines_are_long(tmp_path: Path) -> None:
    path = tmp_path / "f"
    append(path, b"".join(b"%03d" % i + b"x" * 1500 + b"\n" for i in range(300)))
    lines = last_lines(path, 200)
    assert [line[:3] for line in lines] == [f"{i:03d}" for i in range(100, 300)]


def test_a_line_longer_than_all_that_is_read_shows_its_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    append(path, b"first\n" + "é".encode() * 5_000_000 + b"the end\n")
    (line,) = last_lines(path, 1)
    assert line.startswith("(more than 524,")
    assert line.endswith("ééthe end")
    assert "�" not in line
    assert len(line) < MAX_LINE_CHARACTERS + 100
    append(path, b"short\n")
    assert last_lines(path, 1) == ["short"]
    assert last_lines(path, 200)[-1] == "short"


def test_a_progress_bar_of_a_megabyte_shows_its_last_state(tmp_path: Path) -> None:
    path = tmp_path / "f"
    append(path, b"".join(b"\r%6d/100000 [loss=0.5]" % i for i in range(100_000)))
    assert last_lines(path, 5) == [" 99999/100000 [loss=0.5]"]


@given(st.binary(max_size=3000), st.integers(1, 6))
@examples(200)
def test_last_lines_never_fail_and_agree_with_cleaning_the_end(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, num_lines: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "f"
    path.write_bytes(data)
    whole = terminal_text(data.removesuffix(b"\n")).split("\n") if data else []
    assert last_lines(path, num_lines) == whole[-num_lines:]


def test_a_tail_that_skips_to_the_end_reads_complete_lines_of_the_end_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(10_000)))
    tail = Tail(path)
    tail.skip_to_end(1000)
    lines = tail.read().split(b"\n")
    assert lines[-2:] == [b"line 9999", b""]
    assert lines[0].startswith(b"line ")
    assert 80 < len(lines) < 110
    with path.open("ab") as file:
        file.write(b"more\n")
    assert tail.read() == b"more\n"
    assert tail.generation == 0
    path.write_bytes(b"new\n")
    assert tail.read() == b"new\n"
    short = Tail(path)
    short.skip_to_end(1000)
    assert short.read() == b"new\n"
    missing = Tail(tmp_path / "none")
    missing.skip_to_end(1000)
    assert missing.read() == b""


def test_every_character_that_controls_a_terminal_becomes_an_escape() -> None:
    signs = (*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD)  # visible
    for code in (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000 and code not in signs):
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp") and code != 0x09:
            text = one_line(f"a{chr(code)}b")
            assert all(unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp") for character in text), hex(code)
