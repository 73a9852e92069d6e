"""Reading files while other processes write them: new complete lines, and the last lines as printable text."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from nbtools.rundir.atomic import open_descriptor

_NO_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.EISDIR, errno.EINVAL, errno.ENXIO)
_NUM_FINGERPRINT_BYTES: Final = 64
_LARGE_BYTES: Final = 64 << 20
_END_BYTES: Final = 1 << 20


@contextlib.contextmanager
def open_regular(path: str | Path) -> Iterator[BufferedReader]:
    """Open a regular file to read its bytes; OSError if it is missing or not a regular file, as a pipe (ENXIO)."""
    with open(path, "rb", opener=open_descriptor) as file:
        yield file


def end_of(path: str | Path, num_bytes: int, since: int = 0) -> bytes:
    """Return at most the last `num_bytes` of a regular file, from byte `since` on; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - num_bytes, 0))
            return file.read(num_bytes)
    except OSError:
        return b""


def objects_in(block: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines of a block; torn and other lines are left out."""
    for line in block.split(b"\n"):  # a string may hold other ends of lines
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(row := json.loads(line), dict):
                yield row


class Tail:
    """Returns the complete lines that were appended to a file since the last read.

    The file is closed between reads, so it may be missing, appear later, be renamed or deleted. `Tail` recognises the
    content that it has read by inode, size and the bytes before its offset (file systems reuse inodes, and a file may
    be truncated and refilled between two reads). When that content was removed, reading starts over and `generation`
    increases by one; lines that a rename (logrotate) left unread are first read from the file's new name.

    Not thread-safe: use one object per thread, or a lock as `History.follow` does.
    """

    def __init__(
        self, path: str | Path, *, carriage_returns: bool = False, block_bytes: int = 4 << 20, line_bytes: int = 1 << 20
    ) -> None:
        r"""Store the path; nothing is opened.

        Args:
            path: The file, which need not exist yet.
            carriage_returns: Treat `\r` as the end of a line too, as progress bars use it.
            block_bytes: Most bytes of one read.
            line_bytes: Most bytes kept of an incomplete line; the rest is dropped.
        """
        self.path = Path(path)
        self.generation = 0
        self._ends = (b"\n", b"\r") if carriage_returns else (b"\n",)
        self._block_bytes = block_bytes
        self._max_line_bytes = line_bytes
        self._identity: tuple[int, int] | None = None
        self._mtime_ns = 0
        self._offset = 0
        self._before = b""
        self.partial = b""
        """The incomplete last line, kept until its newline is written."""

    @property
    def position(self) -> int:
        """Offset in the file of the first byte that `read` has not returned."""
        return self._offset - len(self.partial)

    def skip_to_end(self, num_bytes: int) -> None:
        """Continue with the lines that begin in the last `num_bytes` of the file; earlier ones are not read."""
        with contextlib.suppress(FileNotFoundError), open_regular(self.path) as file:
            start = max(0, os.fstat(file.fileno()).st_size - num_bytes)
            data = os.pread(file.fileno(), num_bytes, start)
            self._skip_to(file.fileno(), start + (data.find(b"\n") + 1 if start else 0))

    def skip_to(self, offset: int) -> None:
        """Continue at an offset of the file; what is before it is not read."""
        with contextlib.suppress(FileNotFoundError), open_regular(self.path) as file:
            self._skip_to(file.fileno(), offset)

    def _skip_to(self, descriptor: int, offset: int) -> None:
        status = os.fstat(descriptor)
        self._identity, self._offset = (status.st_dev, status.st_ino), offset
        before = min(_NUM_FINGERPRINT_BYTES, offset)
        self._before = os.pread(descriptor, before, offset - before)

    def read(self) -> bytes:
        """Return new complete lines, about one block at most; b"" if there are none.

        Raises:
            OSError: the file exists but cannot be read (permissions, input/output errors).
        """
        try:
            with open_regular(self.path) as file:
                return self._read(file.fileno())
        except OSError as error:
            if error.errno in _NO_FILE:
                return b""
            raise

    def _read(self, descriptor: int) -> bytes:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity:
            if self._identity is not None and (left := self._read_renamed()):
                return left
            self._start_over()
            self._identity = identity
        elif status.st_size == self._offset and status.st_mtime_ns == self._mtime_ns:
            return b""
        elif status.st_size < self._offset or not self._is_known(descriptor):
            self._start_over()
        block = self._new_lines(descriptor)
        self._mtime_ns = status.st_mtime_ns
        return block

    def _start_over(self) -> None:
        if self._offset:
            self.generation += 1
        self._offset, self._before, self.partial = 0, b"", b""

    def _is_known(self, descriptor: int) -> bool:
        """Whether the bytes before the offset are unchanged since they were read."""
        return os.pread(descriptor, len(self._before), self._offset - len(self._before)) == self._before

    def _read_renamed(self) -> bytes:
        """Continue in the file that had this path before, if it is in the same folder under another name."""
        inode = self._identity and self._identity[1]
        with os.scandir(self.path.parent) as entries:
            paths = [entry.path for entry in entries if entry.inode() == inode and entry.is_file(follow_symlinks=False)]
        for path in paths:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                same = (status.st_dev, status.st_ino) == self._identity and status.st_size >= self._offset
                if same and self._is_known(file.fileno()):
                    return self._new_lines(file.fileno())
        return b""

    def _new_lines(self, descriptor: int) -> bytes:
        while data := os.pread(descriptor, self._num_next(descriptor), self._offset):
            self._offset += len(data)
            self._before = (self._before + data[-_NUM_FINGERPRINT_BYTES:])[-_NUM_FINGERPRINT_BYTES:]
            end = max(data.rfind(mark) for mark in self._ends) + 1
            if not end:
                if len(self.partial) < self._max_line_bytes:
                    self.partial = (self.partial + data)[: self._max_line_bytes]
                continue
            start = 0
            if len(self.partial) >= self._max_line_bytes:  # the rest of a line that is too long
                start = min(at for mark in self._ends if (at := data.find(mark)) >= 0)
            block = b"".join((self.partial, memoryview(data)[start:end]))
            self.partial = data[end:][: self._max_line_bytes]
            return block
        return b""

    def _num_next(self, descriptor: int) -> int:
        """Return the most bytes to read next; of a file with large holes, move to its next data and stop before a hole.

        A hole may be larger than the disk, and counts as one zero byte. Bytes may still be written into the last one.
        """
        status = os.fstat(descriptor)
        if status.st_size - self._offset < _LARGE_BYTES or status.st_blocks * 512 > status.st_size // 8:
            return self._block_bytes
        try:
            if (start := os.lseek(descriptor, self._offset, os.SEEK_DATA)) > self._offset:
                self._offset, self._before, self.partial = start, b"", self.partial[: self._max_line_bytes - 1] + b"\0"
            return min(self._block_bytes, os.lseek(descriptor, start, os.SEEK_HOLE) - start)
        except OSError as error:  # only a hole follows, or the file system does not know its holes
            return 0 if error.errno == errno.ENXIO else self._block_bytes


MAX_LINE_CHARACTERS: Final = 2000

_ANSI: Final = re.compile(
    r"""
      \x1b\[ [0-?]*+ [\ -/]*+ [@-~]                           # CSI: colours, cursor
    | \x9b   [0-?]*+ [\ -/]*+ [@-~]                           # the same in its 8-bit form
    | \x1b[\]PX^_] [^\x07\x1b\n]{0,4096}+ (?:\x07|\x1b\\)?    # OSC and the other strings: titles, links
    | \x1b [\ -/]*+ [0-~]                                     # two-character sequences
    """,
    re.VERBOSE,
)
_INVISIBLE: Final = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65_536 else f"\\U{code:08x}"
    for code in (
        *(code for code in range(0x20) if code != 0x09),
        *range(0x7F, 0xA0),
        *(0x00AD, 0x180E, *range(0xE0000, 0xE0080)),  # without a width: they hide text
        *(*range(0x13430, 0x13440), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)),
        *(0x061C, 0xFEFF, *range(0x200B, 0x2010), *range(0x2028, 0x202F)),  # marks that reorder or hide text
        *(*range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC)),
    )
}


def terminal_text(data: bytes, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    r"""Return raw log bytes as the plain text that a terminal finally shows.

    ANSI sequences are removed; of a line rewritten by `\r` the last state remains; text after backspaces replaces
    what it is written over; invalid UTF-8 becomes U+FFFD; other control characters, and those that reorder text,
    become escapes. A line longer than `max_characters` is cut and states its length. The result is text, not HTML.
    """
    return "\n".join(_clean_line(line, max_characters) for line in data.split(b"\n"))


def printable(text: str) -> str:
    """Return text as `terminal_text` does: it cannot move the cursor or change colours."""
    return terminal_text(text.encode(errors="backslashreplace"))


def one_line(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """Return text of another program or user for one line of a terminal; control characters become escapes."""
    cleaned = _clean_text(text[: 4 * max_characters].encode(errors="backslashreplace").decode())
    return cleaned if len(cleaned) <= max_characters else f"{cleaned[:max_characters]}…"


def last_lines(path: str | Path, num_lines: int) -> list[str]:
    """Return the last lines of a file as `terminal_text`, an incomplete one included; [] if there is no file.

    Reads the last MiB at most.
    """
    if num_lines <= 0:
        return []
    try:
        with open_regular(path) as file:
            start = max(os.fstat(file.fileno()).st_size - _END_BYTES, 0)
            data = os.pread(file.fileno(), _END_BYTES, start)
    except OSError as error:
        if error.errno in _NO_FILE:
            return []
        raise
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    cut = start > 0 and len(lines) <= num_lines
    if cut and len(lines) > 1:
        lines, cut = lines[1:], False
    cleaned = [_clean_line(line) for line in lines[-num_lines:]]
    if cut and lines and b"\r" not in lines[0].rstrip(b"\r"):  # one line fills the whole block
        text = lines[0].lstrip(bytes(range(0x80, 0xC0))).decode(errors="replace")
        cleaned[0] = f"(more than {len(text):,} characters) … {_clean_text(text[-MAX_LINE_CHARACTERS:])}"
    return cleaned


def _clean_line(line: bytes, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    if b"\r" in line:
        line = next((part for part in reversed(line.split(b"\r")) if part), b"")
    text = _clean_text(line.decode(errors="replace"))
    if len(text) > max_characters:
        return f"{text[:max_characters]}… ({len(text):,} characters)"
    return text


def _clean_text(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text.rstrip()
    text = _ANSI.sub("", text)
    if "\b" in text:
        kept: list[str] = []
        place = 0
        for character in text:
            if character == "\b":
                place = max(0, place - 1)
            else:
                kept[place : place + 1] = character
                place += 1
        text = "".join(kept)
    return text.translate(_INVISIBLE).rstrip()
