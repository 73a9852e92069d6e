"""Launcher scripts: written, read back without being run, edited, and started by hand."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from launched import python

import nbtools as nt
from nbtools.config import Launch
from nbtools.errors import ConfigError, LaunchError, NotPlainError, ScriptError
from nbtools.project import Project
from nbtools.script.program import Program
from nbtools.script.script import differences, parse_script, read_script, render, write_script

RECORDS = """
import json, os, sys
rank = os.environ.get("RANK", "none")
content = {"args": sys.argv[1:], "world": os.environ.get("WORLD_SIZE"), "cwd": os.getcwd(), "name": __name__}
content |= {"threads": os.environ.get("OMP_NUM_THREADS"), "pid": os.getpid()}
content |= {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "LOGLEVEL")}
with open(os.path.join(os.environ["RECORDS"], f"rank{rank}.json"), "w") as file:
    json.dump(content, file)
"""
"""A program that writes down how each of its ranks was started."""

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
names = st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z][a-z0-9]{0,8}){0,2}", fullmatch=True)


@pytest.fixture
def records(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which each rank of train.py in the project writes how it was started."""
    folder = tmp_path / "records"
    folder.mkdir()
    monkeypatch.setenv("RECORDS", str(folder))
    monkeypatch.chdir(project.root)
    (project.root / "train.py").write_text(RECORDS)
    return folder


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def started(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NBTOOLS_ROOT"}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


# --- values ------------------------------------------------------------------------------------------


@given(
    args=st.lists(words, max_size=6),
    resume=st.lists(words, max_size=3),
    path=st.one_of(st.none(), st.text("abé '\"\\\n{}$();/.-", min_size=1, max_size=30).filter(str.strip)),
    module=names,
    count=st.integers(1, 64),
)
@examples(60)
def test_every_program_comes_back_as_it_was_written(
    args: list[str], resume: list[str], path: str | None, module: str, count: int
) -> None:
    target: dict[str, Any] = {"module": module} if path is None else {"script": path}
    program = Program(**target, args=args, resume=resume, cwd=path)
    launch = Launch(nproc_per_node=count, python=path)
    source = render(program, "mine", launch)
    script = parse_script(Path("mine.py"), source.encode())
    assert (script.program, script.launch, script.hand_edited) == (program, launch, False)
    assert {type(node) for node in ast.walk(ast.parse(source))}.isdisjoint({ast.Lambda, ast.JoinedStr, ast.BinOp})
    assert all(character == "\n" or character.isprintable() for character in source)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "give script"),
        ({"script": "a.py", "module": "a"}, "give script"),
        ({"script": " "}, "must be a path"),
        ({"script": f"{'x' * 253}.py"}, "must be a path, of at most 255 bytes a part"),
        ({"script": "a/" * 1600}, "must be a path, of at most 255 bytes a part"),
        ({"script": "a.py", "cwd": "\N{LATIN SMALL LETTER E WITH ACUTE}" * 128}, "must be a path"),
        ({"module": "a-b"}, "dotted name"),
        ({"module": "x" * 253}, "dotted name"),
        ({"module": "a;b"}, "dotted name"),
        ({"module": "..train"}, "dotted name"),
        ({"script": "a.py", "args": "--lr 1"}, "shlex.split"),
        ({"script": "a.py", "args": ["a\0b"]}, "null character"),
        ({"script": "a.py", "args": ["\ud800"]}, "cannot be encoded"),
        ({"script": "a.py", "args": [1]}, "args"),
    ],
)
def test_what_no_command_line_holds_is_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Program(**values)


def test_a_launcher_script_is_stable_and_a_changed_value_is_read(project: Project) -> None:
    program = Program(script="train.py", args=["--lr", "1e-3", "--name", "it's"])
    path = write_script(program, "mine", Launch(nproc_per_node=2), project=project)
    assert write_script(program, "mine", Launch(nproc_per_node=2), project=project) == path
    text = path.read_text()
    assert '    "--lr", "1e-3",\n' in text.replace("        ", "    ")
    path.write_text(text.replace('"1e-3"', '"3e-3"'))
    assert parse_script(path).hand_edited is False, "a changed value is a value"
    read = parse_script(path)
    assert read.program == Program(script="train.py", args=["--lr", "3e-3", "--name", "it's"])


def test_differences_of_two_launcher_scripts_are_named(project: Project) -> None:
    old = write_script(Program(script="train.py", args=["--lr", "1"]), "old", project=project)
    new = write_script(Program(script="train.py", args=["--lr", "2"]), "new", Launch(nproc_per_node=2), project=project)
    found = {name: (a, b) for name, a, b in differences(parse_script(old), parse_script(new))}
    assert found["args"] == (("--lr", "1"), ("--lr", "2"))
    assert found["nproc_per_node"] == (1, 2)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('script="train.py"', 'script="train" + ".py"', "script is computed"),
        ("program.run(launch)", "program.run(launch, 2)", "more than a plain script has"),
        ("program.run(launch)", "program.run(nt.Launch())", "more than a plain script has"),
        ("program = Program(", "program = type(", "instead of Program"),
        ("from nbtools import Launch, Program", "from nbtools import Launch\nfrom mine import Program", "more than"),
    ],
)
def test_a_computed_launcher_script_is_not_read_but_says_so(
    project: Project, before: str, after: str, complaint: str
) -> None:
    text = render(Program(script="train.py"), "mine")
    assert before in text
    path = project.scripts / "mine.py"
    path.write_text(text.replace(before, after))
    with pytest.raises(NotPlainError, match=complaint):
        read_script(path)


def test_a_wrong_value_is_refused_by_file_and_line(project: Project) -> None:
    path = project.scripts / "mine.py"
    text = render(Program(script="train.py"), "mine")
    line = text.split("\n").index("    args=(),") + 1
    path.write_text(text.replace("    args=(),", "    args=(1,),"))
    with pytest.raises(ScriptError, match=rf"mine\.py:{line}: .*args"):
        read_script(path)
    with pytest.raises(LaunchError, match=rf"mine\.py:{line}: .*args"):
        nt.launch(path)


# --- by hand -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_python_runs_the_program_under_torchrun_with_further_arguments(project: Project, records: Path) -> None:
    program = Program(script="train.py", args=["--name", "it's $(touch p)", ""])
    launch = Launch(nproc_per_node=2, gpus=(), omp_num_threads=3)
    path = write_script(program, "mine", launch, project=project)
    (elsewhere := project.root / "elsewhere").mkdir()
    done = started(sys.executable, path, "--log", "0.1 \n2", "--", "--m", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    found = recorded(records)
    assert found.keys() == {"rank0", "rank1"}
    for each in found.values():
        assert each["args"] == ["--name", "it's $(touch p)", "", "--log", "0.1 \n2", "--", "--m"]
        assert (each["world"], each["name"], each["threads"]) == ("2", "__main__", "3")
        assert each["CUDA_VISIBLE_DEVICES"] == ""
        assert Path(each["cwd"]) == elsewhere, "without cwd, the folder of the call"
    assert not (project.root / "p").exists()


def test_a_rank_of_torchrun_becomes_the_program(project: Project, records: Path) -> None:
    (project.root / "work").mkdir()
    path = write_script(Program(script="train.py", args=["-x"], cwd="work"), "mine", project=project)
    python(path, "--lr", "1", cwd=project.root, RANK="1", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
    (found,) = recorded(records).values()
    expected = {"world": "2", "cwd": str(project.root / "work"), "args": ["-x", "--lr", "1"]}
    assert {name: found[name] for name in expected} == expected


def test_python_starts_a_program_once_where_torchrun_is_off(project: Project, records: Path) -> None:
    path = write_script(Program(script="train.py"), "mine", Launch(torchrun=False), project=project)
    with subprocess.Popen([sys.executable, str(path), "a"], cwd=project.root, env=dict(os.environ)) as process:
        assert process.wait(60) == 0
    found = recorded(records)
    assert found.keys() == {"ranknone"}
    assert found["ranknone"]["args"] == ["a"]
    assert found["ranknone"]["pid"] == process.pid, "it replaces the process, so signals reach the program"


def test_a_module_is_found_in_its_working_directory(project: Project, records: Path) -> None:
    package = project.root / "repo" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text(RECORDS)
    (package / "train.py").write_text("from .other import content\nprint(content['args'])\n")
    launch = Launch(torchrun=False)
    path = write_script(Program(module="pkg.train", cwd="repo", args=["1"]), "mine", launch, project=project)
    done = started(sys.executable, path, cwd=project.root)
    assert (done.returncode, done.stdout) == (0, "['1']\n"), done.stderr


# --- in the background -------------------------------------------------------------------------------


@pytest.mark.promise("guide-L11", "guide-G12")
@pytest.mark.slow
def test_a_launched_module_starts_in_its_folder_with_the_callers_environment_and_keeps_its_bytes(
    project: Project, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_DEBUG", "LOGLEVEL"):
        monkeypatch.setenv(name, "INFO")
    package = project.root / "repo" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(RECORDS)
    program = Program(module="pkg.train", cwd="repo", args=["--", "--lr", "1"])
    path = write_script(program, "mine", Launch(nproc_per_node=2, gpus=()), project=project)
    run = nt.launch(path, args=["--monitor", "--", "--log"])
    run.wait(120)
    assert "Starting elastic_operator" in run.log(), "torchrun itself tells more"
    assert all(each["NCCL_DEBUG"] == each["LOGLEVEL"] == "INFO" for each in recorded(records).values())
    started_with = recorded(records)["rank1"]
    assert started_with["args"] == run.info["args"] == ["--", "--lr", "1", "--monitor", "--", "--log"]
    assert started_with["cwd"] == str(project.root / "repo")
    assert run.files.script.read_text() == RECORDS
    assert run.info["program"] == program.model_dump(mode="json", exclude={"args"})
    assert not (project.root / "repo" / "runs").exists()


ACCELERATED = """
import json, sys
from accelerate import Accelerator
accelerator = Accelerator()
print("processes", accelerator.num_processes, "device", accelerator.device, sys.argv[1:], flush=True)
"""


@pytest.mark.slow
def test_accelerate_starts_a_program_by_its_own_config(project: Project, records: Path) -> None:
    (project.root / "train.py").write_text(ACCELERATED)
    config = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 4\nuse_cpu: true\n"
    (project.root / "accelerate.yaml").write_text(config + "num_machines: 1\nmachine_rank: 0\nmixed_precision: 'no'\n")
    program = Program(script="train.py", args=["--num_processes", "1", "--"], accelerate_config="accelerate.yaml")
    run = nt.launch(program, gpus=())
    run.wait(180)
    assert "processes 1 device cpu ['--num_processes', '1', '--']" in run.log()
    assert "accelerate.commands.launch" in run.info["argv"]
    assert not nt.preflight(program, gpus=()).warnings
    (warning,) = nt.preflight(program, gpus=(), nproc_per_node=2).warnings
    assert "several processes on the CPU" in warning  # accelerate then starts one, and says nothing


@pytest.mark.slow
def test_the_gpus_and_the_port_of_an_accelerate_config_do_not_count(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    config = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 8\ngpu_ids: 0,1\n"
    config += "num_machines: 1\nmachine_rank: 0\nmain_process_port: 29511\nmixed_precision: 'no'\n"
    (project.root / "accelerate.yaml").write_text(config)
    program = Program(script="train.py", accelerate_config="accelerate.yaml")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    _, _, *options = program.words(project.root, Launch(gpus=(4, 5), nproc_per_node=2))
    read, *_ = _validate_launch_command(launch_command_parser().parse_args(options))
    assert prepare_multi_gpu_env(read)["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert read.nproc_per_node == "2"
    assert int(read.master_port) not in (0, 29500, 29511)


def test_by_hand_accelerate_starts_one_process_per_gpu(
    project: Project, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_with: list[str] = []
    gpus = [SimpleNamespace(index=index) for index in range(8)]
    monkeypatch.setattr("nbtools.script.program.devices", lambda: gpus, raising=False)
    monkeypatch.setattr("os.execvp", lambda _, command: started_with.extend(command))
    monkeypatch.setattr("sys.argv", [str(project.root / "scripts" / "mine.py")])
    Program(script="train.py", accelerate_config="accelerate.yaml").run(Launch(nproc_per_node="gpu"))
    assert started_with[started_with.index("--num_processes") + 1] == "8"


def test_by_hand_several_machines_are_refused_with_the_line_for_each(project: Project, records: Path) -> None:
    path = write_script(Program(script="train.py"), "mine", Launch(gpus=(), nnodes=2))
    refused = started(sys.executable, path, cwd=project.root).stderr
    assert "LaunchError: nnodes=2: python starts it on one machine" in refused
    assert "torchrun --nnodes=2 --node-rank=NODE --master-addr=ADDRESS" in refused
    assert f" -- {path}, where NODE is" in refused


def test_an_accelerate_config_in_the_home_is_found(
    project: Project, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "acc.yaml").write_text("compute_environment: LOCAL_MACHINE\n")
    checked = nt.preflight(Program(script="train.py", accelerate_config="~/acc.yaml"), gpus=())
    assert str(tmp_path / "acc.yaml") in " ".join(checked.command(project.root / "runs" / "one"))


def test_a_missing_accelerate_config_and_several_machines_are_refused(project: Project, records: Path) -> None:
    program = Program(script="train.py", accelerate_config="none.yaml")
    with pytest.raises(LaunchError, match=r"none\.yaml.*no such file"):
        nt.launch(program)
    with pytest.raises(LaunchError, match="is for one machine"):
        nt.launch(program, nnodes=2)


@pytest.mark.slow
def test_in_a_repository_of_the_users_only_its_run_and_its_launcher_script_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repo"
    (repository / "scripts").mkdir(parents=True)
    for name, text in {
        "pyproject.toml": "[project]\nname='theirs'\n",
        "train.py": "for i in (1, 2): print('step', i, 'loss', 2.0 / i)\n",
        "scripts/prepare.py": "raise SystemExit(3)\n",
        "scripts/train.sh": "torchrun train.py\n",
        "scripts/nbtools.py": "raise SystemExit(4)\n",
        "scripts/random.py": "raise SystemExit(5)\n",
    }.items():
        (repository / name).write_text(text)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("NBTOOLS_QUEUE_DIR", str(tmp_path / "queue"))
    before = {path.relative_to(repository) for path in repository.rglob("*")}
    path = write_script(Program(script="train.py"), "mine", Launch(gpus=()))
    run = nt.launch(path)
    run.wait(120)
    assert run.history["train/loss"].values.tolist() == [2.0, 1.0]
    after = {path.relative_to(repository) for path in repository.rglob("*")} - before
    outside = {path for path in after if path.parts[0] != "runs"}
    assert outside == {Path("scripts/mine.py")}
    assert run.dir.parent == repository / "runs"
    assert [found.id for found in nt.runs()] == [nt.Run("latest").id] == [run.id]


def test_patterns_of_curves_are_read_back_from_a_launcher_script(project: Project) -> None:
    curves = ("iter {step}: loss {train/loss}, {_} ms", "it's {{ {eval/loss} }}")
    path = write_script(Program(script="train.py", curves=curves), "mine")
    assert read_script(path).content == Program(script="train.py", curves=curves)
    assert '    curves=(\n        "iter {step}: loss {train/loss}, {_} ms",\n' in path.read_text()


@pytest.mark.parametrize(("curves", "said"), [(("loss",), "no number has a name"), ("loss {x}", "is one text")])
def test_a_text_that_is_no_pattern_is_refused(curves: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Program(script="train.py", curves=curves)
