"""Patterns of curves: kept in the launcher script or for the user, and recorded by each launch."""

from pathlib import Path

import pytest
from fixture_types import Cli, MonkeyPatch

from nbtools.config import Launch
from nbtools.errors import ConfigError
from nbtools.launcher.launch import launch, launch_request
from nbtools.launcher.programs.program_resume import remember
from nbtools.launcher.request import LaunchRequest
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json
from nbtools.script.program import Program
from nbtools.script.script import read_script, write_script
from nbtools.user_config import read_user_config

PATTERN = "turn {step} of the wheel: {train/loss} in {_}"
LINE = '" ".join(["turn", str(5 * turn), "of the wheel:", format(1 / (1 + turn), ".4f"), "in", str(turn % 3)])'


@pytest.fixture
def program(cpu_project: Project) -> Path:
    path = cpu_project.root / "turning.py"
    path.write_text(f"loss = 0.5\nprint(f'<> loss {{loss:.3f}} zzz')\nfor turn in range(9):\n    print({LINE})\n")
    return path


def ended(run: Run) -> Run:
    run.wait(timeout_s=300)
    return run


def launched(script: Path) -> Run:
    return ended(launch(script, torchrun=False, gpus=()))


@pytest.mark.promise("any-script")
def test_a_pattern_without_a_launcher_script_is_kept_for_the_user(program: Path) -> None:
    run = launched(program)
    assert (read_json(run.files.templates) or {})["templates"], "the texts of the source"
    with pytest.raises(ConfigError, match="no number has a name; write text with names in braces"):
        remember(run, "curves", curves=("turn of the wheel",))
    assert read_user_config("curves") == {}, "a text that is no pattern changes nothing"
    assert remember(run, "curves", curves=(PATTERN,)) == "remembered for turning.py"
    again = Run(run.dir)
    assert again.history["train/loss"].steps.tolist() == [*range(0, 45, 5)]
    assert "train/loss: by your pattern, counted by step" in "\n".join(again.rows.notes)
    assert next(kind for kind in again.rows.kinds if kind.source == "pattern").count == 9
    later = launched(program)
    assert later.info["curves"] == [PATTERN]
    assert "train/loss" in later.history


@pytest.mark.promise("any-script")
def test_a_pattern_is_written_into_the_launcher_script(program: Path) -> None:
    path = write_script(Program(script="turning.py", args=("--x",)), "my_turns", Launch(torchrun=False, gpus=()))
    run = ended(launch(path))
    assert remember(run, "curves", curves=(PATTERN,)) == f"written into {path}"
    script = read_script(path)
    assert script.program == Program(script="turning.py", args=("--x",), curves=(PATTERN,))
    assert not script.hand_edited
    assert "train/loss" in Run(run.dir).history
    write_script(script.program.replace(curves=()), "my_turns", script.launch)
    assert ended(launch(path)).info["curves"] == [], "the script decides"


def test_a_launcher_script_that_was_edited_by_hand_is_left_alone(program: Path) -> None:
    path = write_script(Program(script="turning.py"), "my_turns", Launch(torchrun=False, gpus=()))
    path.write_text(edited := path.read_text() + "# mine\n")
    run = ended(launch(path))
    said = remember(run, "curves", curves=(PATTERN,))
    assert said.startswith(f"remembered; {path}: was edited by hand, so it is not changed; write curves=(")
    assert path.read_text() == edited
    assert "train/loss" in Run(run.dir).history
    assert ended(launch(path)).info["curves"] == [PATTERN], "kept for later launches, too"


def test_a_source_that_does_not_parse_stops_no_launch(program: Path, monkeypatch: MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("nbtools.launcher.program_checks.templates_of", broken)
    assert not launched(program).files.templates.exists()


@pytest.mark.promise("any-script")
def test_a_pattern_of_the_command_line_is_kept_for_later_launches(program: Path, cli: Cli) -> None:
    def drawn(*words: str) -> Run:
        return ended(Run(cli("launch", program, "--no-torchrun", "--gpus", "none", *words).stdout.strip()))

    run = drawn("--curve", PATTERN, "--curve", "{_} done after {turns} turns")
    assert run.info["curves"] == [PATTERN, "{_} done after {turns} turns"] == run.info["program"]["curves"]
    assert run.history["train/loss"].steps.tolist() == [*range(0, 45, 5)]
    assert drawn().info["curves"] == run.info["curves"]
    other = drawn("--curve", PATTERN.replace("train/loss", "error"))
    assert "error" in other.history
    assert "train/loss" not in other.history, "the newest patterns replace earlier ones"


def test_a_pattern_of_a_call_changes_no_launcher_script(program: Path) -> None:
    path = write_script(Program(script="turning.py", curves=("x {y}",)), "my_turns", Launch(torchrun=False, gpus=()))
    before = path.read_text()
    run = ended(launch_request(LaunchRequest.of(path, {"curves": [PATTERN]})))
    assert "train/loss" in run.history
    assert path.read_text() == before
    assert ended(launch(path)).info["curves"] == ["x {y}"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("turn of the wheel", "no number has a name"), ("{step}", "no text beside the numbers"), ("a {b", "without its")],
)
def test_a_bad_pattern_of_the_command_line_starts_nothing(program: Path, cli: Cli, pattern: str, reason: str) -> None:
    said = cli("launch", program, "--curve", pattern, code=2).stderr
    assert reason in said
    assert 'such as "iter {step}: loss {train/loss}' in said.replace("\n", " ")
    assert list((program.parent / "runs").iterdir()) == []
