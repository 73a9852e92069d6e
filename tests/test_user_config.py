"""Tests of `user_config`."""

import os
import threading
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch

from nbtools.errors import ConfigError
from nbtools.user_config import config_folder, read_user_config, update_user_config


def test_the_folder_is_set_or_of_xdg_or_below_home(monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NBTOOLS_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert config_folder() == tmp_path / ".config/nbtools"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config_folder() == tmp_path / "xdg/nbtools"
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path / "own"))
    assert config_folder() == tmp_path / "own"


def test_changes_of_several_writers_are_kept_in_a_private_file() -> None:
    assert read_user_config("facts") == {}
    writers = [
        threading.Thread(target=update_user_config, args=("facts", lambda found, n=n: found.update({str(n): n})))
        for n in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert read_user_config("facts") == {str(n): n for n in range(8)}
    assert (config_folder() / "facts.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_a_file_of_another_user_says_nothing() -> None:
    update_user_config("facts", lambda found: found.update(a=1))
    os.chown(config_folder() / "facts.json", 12345, -1)
    assert read_user_config("facts") == {}


def test_a_folder_that_cannot_be_made_is_a_clear_error(monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path / "file/folder"))
    with pytest.raises(ConfigError, match=r"file/folder: cannot be written: .*; change .*NBTOOLS_CONFIG_DIR"):
        update_user_config("facts", lambda found: None)
