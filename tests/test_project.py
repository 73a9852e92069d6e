"""Where the project is, and which names it allows."""

import re
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

from nbtools.errors import InvalidNameError, ProjectError
from nbtools.project import Project, check_name, expanded, find_project, located, project_of_program

hostile_names = st.one_of(
    st.text(max_size=70).filter(lambda name: not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,63}", name)),
    st.sampled_from(["", "..", "../../x", "$(touch p)", "a\n", "a\0b", "--force", "_x", "x" * 10_000, "a\u202eb", "é"]),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "notebooks").mkdir()
    monkeypatch.chdir(root / "notebooks")
    return root


@given(hostile_names)
@examples(300)
def test_a_hostile_name_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_name(name)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Räuber texte", "Rauber_texte"),
        ("Größe 5", "Grosse_5"),
        ("1st-try", "st_try"),
        ("日本", ""),
        ("a" * 65, "a" * 64),
    ],
)
def test_a_refused_name_comes_with_one_that_is_allowed(name: str, plain: str) -> None:
    with pytest.raises(InvalidNameError, match="letters A to Z, digits and '_'") as caught:
        check_name(name)
    assert str(caught.value).endswith(f"(at most 64), such as {plain}" if plain else "(at most 64)")


@pytest.mark.parametrize("name", ["datasets", "json", "nbtools", "test", "antigravity", "sys", "deepspeed"])
def test_a_name_that_would_shadow_a_module_is_refused(name: str) -> None:
    """Well-known ones also where they are not installed."""
    with pytest.raises(InvalidNameError, match=f"shadow the module '{name}'"):
        check_name(name)


@pytest.mark.parametrize("name", ["x", "mlm_tiny", "MLM2", "x" * 64, "mlm_pretraining"])
def test_a_plain_name_is_allowed(name: str) -> None:
    assert check_name(name) == name


def test_a_script_does_not_shadow_itself_on_the_path(project: Path, monkeypatch: MonkeyPatch) -> None:
    (project / "scripts" / "my_training.py").touch()
    monkeypatch.syspath_prepend(project / "scripts")
    assert check_name("my_training") == "my_training"


def test_the_project_is_named_or_found_above(project: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    assert find_project() == Project(project)
    other = tmp_path / "other"
    for name in ("scripts", "runs"):
        (other / name).mkdir(parents=True)
    assert find_project(other / "scripts" / "x.py").root == other
    monkeypatch.setenv("NBTOOLS_ROOT", str(tmp_path))
    assert find_project().root == tmp_path
    monkeypatch.setenv("NBTOOLS_ROOT", "/no/such/folder")
    with pytest.raises(ProjectError, match="NBTOOLS_ROOT='/no/such/folder': no such folder"):
        find_project()


def test_no_project_says_what_one_looks_like(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()  # alone, it makes no project
    with pytest.raises(
        ProjectError,
        match=r"no project found .*repository, or has scripts/ and pyproject.toml \(or runs/\).*NBTOOLS_ROOT",
    ):
        find_project()


def test_runs_beside_a_script_are_found_outside_a_project(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    (tmp_path / "runs" / "2026-01-01_000000_x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProjectError):  # other tools have a runs/, too
        find_project()
    (tmp_path / "runs" / "2026-01-01_000000_x" / "launch.json").touch()
    assert find_project().root == tmp_path.resolve()
    with pytest.raises(ProjectError):
        find_project(tmp_path)


@pytest.mark.parametrize(
    ("cwd", "program", "root"),
    [
        ("plain", "plain/trainer/train.py", "plain"),
        ("plain", "repo/pkg/train.py", "repo"),
        ("plain", "other/train.py", "other"),
        ("repo/notebooks", "repo/pkg/train.py", "repo"),
        ("project/notebooks", "project/mine/train.py", "project"),
        ("project", "project/clone/train.py", "project"),
        ("project", "repo/pkg/train.py", "repo"),
        ("", "repo/pkg/train.py", "repo"),
        ("", "other/train.py", "other"),
    ],
)
def test_the_project_of_a_program_is_the_calls_or_its_own(
    tmp_path: Path, monkeypatch: MonkeyPatch, cwd: str, program: str, root: str
) -> None:
    for name in ("plain/trainer", "repo/.git", "repo/pkg", "repo/notebooks", "project/scripts", "project/runs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("project/notebooks", "project/mine", "project/clone/.git", "other", ".git"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / cwd)
    assert project_of_program(tmp_path / program) == Project(tmp_path / root)
    monkeypatch.setenv("NBTOOLS_ROOT", str(tmp_path / "plain"))
    assert project_of_program(tmp_path / program) == Project(tmp_path / "plain")


def test_a_working_directory_that_is_gone_is_said_so(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ProjectError, match="was deleted"):
        find_project()


def test_a_relative_path_starts_from_here_or_the_project(project: Path, monkeypatch: MonkeyPatch) -> None:
    (project / "scripts" / "x.py").touch()
    monkeypatch.chdir(project / "notebooks")
    assert located("scripts/x.py") == project.resolve() / "scripts" / "x.py"
    assert located("../scripts/x.py") == project.resolve() / "scripts" / "x.py"
    (project / "notebooks" / "scripts").mkdir()
    (project / "notebooks" / "scripts" / "x.py").touch()
    assert located("scripts/x.py") == project.resolve() / "notebooks" / "scripts" / "x.py"
    assert located("absent.py") == project.resolve() / "notebooks" / "absent.py"


def test_the_home_of_nobody_is_a_name_like_any_other() -> None:
    assert expanded("~no-such-user/x") == Path("~no-such-user/x")
