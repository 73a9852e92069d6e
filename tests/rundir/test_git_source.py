"""The commit and the uncommitted changes that a run keeps."""

import hashlib
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch

from nbtools.run import facts
from nbtools.rundir import git_source
from nbtools.rundir.git_source import record_source
from nbtools.rundir.rundir import RunDir

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("a = 1\nb = 2\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "runs", "toy")


@pytest.mark.promise("source")
def test_a_run_keeps_commit_and_tracked_changes_for_its_user(repository: Path, run: RunDir) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    clean = record_source(run, repository)
    assert clean == {"commit": commit, "lines": 0, "sha256": None, "cut": False}
    assert not run.source.exists()
    assert facts.commit({"code": clean}) == commit[:10]
    (repository / "sub").mkdir()
    (repository / "untracked.py").write_text("token = 'x'\n")
    (repository / "train.py").write_text("a = 1\nb = 3\n-- c\n")
    dirty = record_source(run, repository / "sub")
    diff = run.source.read_bytes()
    assert dirty == {"commit": commit, "lines": 3, "sha256": hashlib.sha256(diff).hexdigest(), "cut": False}
    assert b"-b = 2\n+b = 3\n" in diff and b"untracked" not in diff
    assert stat.S_IMODE(run.source.stat().st_mode) == 0o600
    assert facts.commit({"code": dirty}) == f"{commit[:10]} + uncommitted changes (3 lines)"
    (repository / "train.py").write_text("a = 1\nb = 2\n")
    run.source.rename(run.path / "source.patch")
    git(repository, "apply", str(run.path / "source.patch"))
    assert (repository / "train.py").read_text() == "a = 1\nb = 3\n-- c\n"


@pytest.mark.promise("source")
def test_git_starts_no_program_that_a_repository_names(repository: Path, run: RunDir) -> None:
    (marker := repository / "ran").unlink(missing_ok=True)
    (program := repository / "program.sh").write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "diff.mine.command", "diff.mine.textconv", "core.pager"):
        git(repository, "config", name, str(program))
    hook = repository / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    shutil.copy(program, hook)
    (repository / ".gitattributes").write_text("*.py diff=mine\n")
    (repository / "train.py").write_text("a = 4\n")
    index = (repository / ".git" / "index").read_bytes()
    found = record_source(run, repository)
    assert found is not None and found["lines"] == 3
    assert not marker.exists()
    assert (repository / ".git" / "index").read_bytes() == index


@pytest.mark.promise("source")
def test_git_downloads_nothing_for_a_partial_clone(repository: Path, run: RunDir, tmp_path: Path) -> None:
    git(repository, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{repository}", str(clone))
    git(clone, "reset", "-q")
    (clone / "train.py").write_text("a = 4\n")
    (program := tmp_path / "program.sh").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\nexec git-upload-pack $@\n")
    program.chmod(0o755)
    git(clone, "config", "remote.origin.uploadpack", str(program))
    git(clone, "config", "protocol.file.allow", "always")
    packs = sorted(clone.glob(".git/objects/**/*"))
    assert record_source(run, clone) is None
    assert not (tmp_path / "ran").exists()
    assert sorted(clone.glob(".git/objects/**/*")) == packs


def test_a_large_diff_is_cut_and_no_commit_has_none(repository: Path, run: RunDir, tmp_path: Path) -> None:
    (repository / "train.py").write_text("".join(f"line {number}\n" for number in range(200_000)))
    found = record_source(run, repository)
    assert found is not None and found["cut"]
    assert run.source.stat().st_size <= git_source.LARGEST_DIFF_BYTES
    assert facts.commit({"code": found}).endswith(f" + uncommitted changes (more than {found['lines']:,} lines)")
    assert record_source(run, tmp_path) is None
    git(tmp_path, "init", "-q", "empty")
    assert record_source(run, tmp_path / "empty") is None


def test_a_hanging_git_gives_none(repository: Path, run: RunDir, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (slow := tmp_path / "bin" / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(git_source, "_PATIENCE_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    began = time.monotonic()
    assert record_source(run, repository) is None
    assert time.monotonic() - began < 30, "the process was not killed"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record_source(run, repository) is None


@pytest.mark.parametrize("code", [None, 3, {}, {"commit": "x"}, {"commit": "\x1b" * 40}, {"commit": ["a"]}])
def test_a_forged_record_has_no_words(code: object) -> None:
    assert facts.commit({"code": code}) == ""
