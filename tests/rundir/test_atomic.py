"""Atomic writing: complete or absent, through no link, by any number of writers, and nothing left behind."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from file_size import file_size_limit
from fixture_types import MonkeyPatch

from nbtools.rundir import atomic
from nbtools.rundir.atomic import hidden_name, new_folder, put_folder, write_file

Writer = Callable[[Path, bytes], None]


def from_bytes(path: Path, data: bytes) -> None:
    write_file(path, data)


def from_a_function(path: Path, data: bytes) -> None:
    write_file(path, lambda file: file.write_bytes(data))


def as_folder(path: Path, data: bytes) -> None:
    with new_folder(path, is_stale=lambda: True) as folder:
        (folder / "file").write_bytes(data)


FILES = pytest.mark.parametrize("write", [from_bytes, from_a_function])
ALL = pytest.mark.parametrize("write", [from_bytes, from_a_function, as_folder])


def content(path: Path) -> bytes:
    return (path / "file" if path.is_dir() else path).read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@ALL
def test_a_second_write_replaces_the_first_and_leaves_nothing_else(tmp_path: Path, write: Writer) -> None:
    for data in (b"first", b"second"):
        write(tmp_path / "it", data)
        assert content(tmp_path / "it") == data
        assert names(tmp_path) == ["it"]


@ALL
def test_a_link_at_the_hidden_name_is_not_followed(tmp_path: Path, monkeypatch: MonkeyPatch, write: Writer) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: b"\0" * count)
    target = tmp_path / "precious"
    (tmp_path / "folder").mkdir()
    target.write_text("untouched")
    for planted in (target, tmp_path / "folder", tmp_path / "missing"):
        hidden_name(tmp_path / "it").symlink_to(planted)
        with pytest.raises(FileExistsError):
            write(tmp_path / "it", b"data")
        hidden_name(tmp_path / "it").unlink()
    assert target.read_text() == "untouched"
    assert names(tmp_path) == ["folder", "precious"]
    assert names(tmp_path / "folder") == []


@ALL
def test_a_link_at_the_name_itself_is_replaced_not_followed(tmp_path: Path, write: Writer) -> None:
    target = tmp_path / "precious"
    target.write_text("untouched")
    (tmp_path / "it").symlink_to(target)
    write(tmp_path / "it", b"data")
    assert target.read_text() == "untouched"
    assert not (tmp_path / "it").is_symlink() and content(tmp_path / "it") == b"data"


@ALL
def test_two_threads_that_write_at_once_leave_one_complete_result(tmp_path: Path, write: Writer) -> None:
    errors: list[OSError] = []
    start = threading.Barrier(2)

    def work(data: bytes) -> None:
        try:
            start.wait()
            for _ in range(30):
                write(tmp_path / "it", data)
        except OSError as error:
            errors.append(error)

    kinds = (b"a" * 100_000, b"b" * 100_000)
    threads = [threading.Thread(target=work, args=(data,)) for data in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for error in errors if write is not as_folder] == []  # replacing a folder takes two renames
    assert content(tmp_path / "it") in kinds
    assert names(tmp_path) == ["it"]


@ALL
def test_a_full_disk_leaves_the_earlier_content_and_nothing_else(tmp_path: Path, write: Writer) -> None:
    write(tmp_path / "it", b"earlier")
    with file_size_limit(1000), pytest.raises(OSError, match="too large"):
        write(tmp_path / "it", b"x" * 10_000)
    assert content(tmp_path / "it") == b"earlier"
    assert names(tmp_path) == ["it"]


@FILES
def test_permissions_follow_the_umask_unless_a_mode_is_given(tmp_path: Path, write: Writer) -> None:
    umask = os.umask(0o027)
    try:
        write(tmp_path / "it", b"")
        write_file(tmp_path / "program", b"", mode=0o755)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "it").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "program").stat().st_mode) == 0o755


def test_a_function_is_given_a_path_of_the_same_name(tmp_path: Path) -> None:
    seen: list[str] = []
    write_file(tmp_path / "picture.png", lambda file: (seen.append(file.name), file.touch()))
    assert seen == ["picture.png"]


@ALL
def test_an_error_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: MonkeyPatch, write: Writer) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", fail)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "it", b"data")
    assert names(tmp_path) == []


@pytest.mark.parametrize("sync", [False, True])
def test_content_reaches_the_disk_before_the_rename(tmp_path: Path, monkeypatch: MonkeyPatch, sync: bool) -> None:
    synced: list[str] = []
    monkeypatch.setattr(atomic, "sync_to_disk", lambda path: synced.append(path.name.partition(".new")[0]))
    write_file(tmp_path / "it", b"data", sync=sync)
    with new_folder(tmp_path / "made", sync=sync) as folder:
        (folder / "inner").mkdir()
    assert synced == ([".it", "inner", ".made", tmp_path.name] if sync else [])


# --- a folder that is already there ---------------------------------------------------------------


def built(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / text
    folder.mkdir()
    (folder / "file").write_text(text)
    return folder


def test_a_folder_that_is_not_stale_stays(tmp_path: Path) -> None:
    final = built(tmp_path, "theirs")
    with new_folder(final) as folder:
        (folder / "file").write_text("ours")
    assert content(final) == b"theirs"
    assert names(tmp_path) == ["theirs"]


def test_an_empty_folder_is_filled_and_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as folder:
        (folder / "file").write_text("ours")
    assert content(tmp_path / "empty") == b"ours"
    (tmp_path / "file").write_text("theirs")
    with pytest.raises(NotADirectoryError), new_folder(tmp_path / "file"):
        pass
    assert content(tmp_path / "file") == b"theirs"


def test_a_stale_folder_comes_back_when_the_rename_fails(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    final, ours = built(tmp_path, "theirs"), built(tmp_path, "ours")
    really = os.rename

    def rename(source: Path, target: Path) -> None:
        if Path(source) == ours:
            raise OSError(errno.ENOSPC, "full")
        really(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="full"):
        put_folder(ours, final, lambda: True)
    assert content(final) == b"theirs"
    assert names(tmp_path) == ["ours", "theirs"]


def test_a_folder_that_another_process_puts_there_meanwhile_stays(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    final, ours = built(tmp_path, "final"), built(tmp_path, "ours")
    really = os.rename

    def rename(source: Path, target: Path) -> None:
        really(source, target)
        if Path(source) == final:
            built(tmp_path, "final")

    monkeypatch.setattr(os, "rename", rename)
    stale = [True, False]
    put_folder(ours, final, lambda: stale.pop(0))
    assert content(final) == b"final" and stale == []
    assert names(tmp_path) == ["final", "ours"]
