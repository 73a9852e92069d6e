"""Resume and fork: a run goes on in another one, from the newest checkpoint that is whole, or is refused in words."""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Cli, MonkeyPatch, Printed
from tiny_mlm import tiny_mlm, write_texts

from nbtools.config import Launch, Slurm, StopOn
from nbtools.errors import CheckpointError, ConfigError, LaunchError, NbtoolsError
from nbtools.launcher import launch as launching
from nbtools.launcher.checks.step_count import moved_rate, rate_settings
from nbtools.launcher.resume import _new_script, config_of, resume
from nbtools.launcher.sbatch import SlurmFlags
from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig, MLMPretrainingConfig
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.lineage import resumed_step
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.requests.conditions import NONE_SET
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import read_script, render, write_script
from nbtools.steering import append_rows
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.worker import run as train_here
from nbtools.training.mlm_pretraining.train import train

pytestmark = pytest.mark.filterwarnings("ignore:the learning rate was:UserWarning")  # it is tested below

CONFIG = tiny_mlm(
    batch_size=6, max_steps=6, epochs=2, learning_rate=1e-2, eval_every=100, checkpoint_epochs=False, keep_last=100
)
STEPS_PER_EPOCH = 11
"""That is what the texts come to in batches of six."""
Refused = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run that succeeded: really trained, on one process, with checkpoints at 2, 4 and 6."""
    root = tmp_path_factory.mktemp("lab")
    for name in ("scripts", "runs"):
        (root / name).mkdir()
    write_texts(root / "texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTOOLS_ROOT", str(root))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        torch.set_num_threads(1)
        script = write_script(CONFIG, "tiny", Launch(gpus=()), project=root)
        files = RunDir.create(root / "runs", "tiny")
        files.lock.touch()
        files.script.write_bytes(script.read_bytes())
        settings = Launch(gpus=(), omp_num_threads=1).model_dump(mode="json")
        info = {"name": "tiny", "recipe": "mlm_pretraining", "args": [], "launch": settings, "time": 1.0}
        write_json(files.launch, {**info, "script": str(script), "cwd": str(root), "resumed_from": None})
        patch.setenv("NBTOOLS_RUN_DIR", str(files.path))
        train_here(train, Flags(CONFIG))
        assert (Run(files.path).config or {})["derived"]["steps_per_epoch"] == STEPS_PER_EPOCH
        write_json(files.exit, {"returncode": 0, "stopped": False, "time": 2.0})
    return root


@pytest.fixture
def parent(lab: Path, cpu_project: Project) -> Run:
    """The run, in a copy of its project."""
    shutil.copytree(lab, cpu_project.root, dirs_exist_ok=True)
    (folder,) = (path for path in cpu_project.runs.iterdir() if not path.name.startswith("."))
    change(RunDir(folder).launch, script=str(cpu_project.scripts / "tiny.py"), cwd=str(cpu_project.root))
    return Run(folder)


@pytest.fixture
def refused(parent: Run, project: Project) -> Refused:
    """Expect that a resume is refused in words, and changes neither scripts nor runs."""

    @contextmanager
    def expect(said: str, kind: type[Exception] = NbtoolsError) -> Iterator[None]:
        before = {*project.scripts.iterdir(), *project.runs.glob("2*")}
        with pytest.raises(kind, match=said):
            yield
        assert {*project.scripts.iterdir(), *project.runs.glob("2*")} == before

    return expect


@pytest.fixture
def unstarted(monkeypatch: MonkeyPatch) -> None:
    """A resumed run is laid out in full, and no process starts: these tests are about what would run."""
    monkeypatch.setattr(launching, "_start_supervisor", lambda *_: None)


def change(path: Path, **values: Any) -> None:
    content = read_json(path)
    assert content is not None
    write_json(path, {**content, **values})


def unfinished(run: Run, checkpoint: int = 4) -> Run:
    """As if the run had been stopped after that checkpoint."""
    for saved in run.checkpoints:
        if saved.step > checkpoint:
            shutil.rmtree(saved.path)
    write_json(run.files.exit, {"returncode": 1, "stopped": True, "time": 2.0})
    change(run.files.finished, why="stopped", step=checkpoint)
    lines = run.files.metrics.read_text().splitlines(keepends=True)
    run.files.metrics.write_text("".join(lines[:checkpoint]))
    return Run(run.dir)


# --- refused before anything starts ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning_rat": 1e-4}, "did you mean learning_rate?"),
        ({"learning_rate": -1.0}, r"learning_rate=-1\.0: must be > 0 \(MLMPretrainingConfig\)"),
        ({"learning_rate": "fast"}, "give a number"),
        ({"num_layers": 2}, r"num_layers=2: the checkpoints of .* are of a model with num_layers=1"),
        ({"num_heads": 4}, "num_heads=4"),  # the weights would load, and mean something else
        ({"hidden_size": 32, "batch_size": 2}, r"hidden_size=32: .* leave it as it is, or train another"),
        ({"vocab_size": 50}, "vocab_size=50"),
        ({"model_name": "bert-base-uncased"}, "model_name='bert-base-uncased'"),
        ({"dataset": "elsewhere"}, "elsewhere"),
        ({"batch_size": 1000}, "too few for one step"),
        ({"max_steps": 4}, "nothing is left to do"),
    ],
)
def test_impossible_changes_leave_nothing(parent: Run, refused: Refused, changes: dict[str, object], said: str) -> None:
    unfinished(parent)
    with refused(said):
        resume(Run(parent.dir), changes=changes)


def test_flags_and_processes_that_cannot_be_are_refused_and_no_fork_is_left(parent: Run, refused: Refused) -> None:
    unfinished(parent)
    with refused("num_heads=1: the checkpoints", ConfigError):
        resume(Run(parent.dir), args=["--num-heads", "1"])
    with refused("no-such-flag", LaunchError):
        resume(Run(parent.dir), changes={"learning_rate": 1e-4}, args=["--no-such-flag"])
    with refused("70 processes", LaunchError):
        resume(Run(parent.dir), 4, changes={"learning_rate": 1e-4}, nproc_per_node=70)


def test_a_finished_run_says_how_to_train_longer(parent: Run, refused: Refused) -> None:
    said = r"nothing is left to do, step-000006 is the end of max_steps=6; .* resume with --set max_steps=12 "
    with refused(said, LaunchError):
        resume(parent)


def test_where_the_epochs_ended_a_run_more_of_them_are_named(parent: Run, refused: Refused) -> None:
    content = read_json(parent.files.config)
    change(parent.files.config, config={**content["config"], "max_steps": None})
    parent.files.script.write_text(parent.files.script.read_text().replace("max_steps=6", "max_steps=None"))
    last = parent.files.checkpoint(2 * STEPS_PER_EPOCH)
    parent.files.checkpoint(6).rename(last)
    change(last / "manifest.json", step=2 * STEPS_PER_EPOCH, epoch=2, position=0, samples=6 * 2 * STEPS_PER_EPOCH)
    with refused(r"step-000022 is the end of epochs=2; .* --set epochs=4", LaunchError):
        resume(Run(parent.dir))


def test_a_script_that_computes_its_values_is_not_written_anew(parent: Run, refused: Refused) -> None:
    parent.files.script.write_text(parent.files.script.read_text() + "\nprint('mine')\n")
    with refused("Its values cannot be changed in a copy of the script: pass them as flags", LaunchError):
        resume(parent, 4, changes={"learning_rate": 1e-4})


def test_a_checkpoint_that_is_not_there_or_not_of_this_run_is_refused(parent: Run, refused: Refused) -> None:
    other = parent.dir.with_name("2020-01-01_000000_other")
    shutil.copytree(parent.dir, other)
    for ref in (3, "step-000003", "newest", "../x"):
        with refused(r"step-000002, step-000004, step-000006|manifest\.json", CheckpointError):
            resume(parent, ref)
    with refused(f"did not resume; resume {other.name}", CheckpointError):
        resume(parent, other / "checkpoints" / "step-000004")
    (parent.files.checkpoint(4) / "state.pt").unlink()
    with refused(r"state\.pt: is missing; name another checkpoint, or omit it", CheckpointError):
        resume(parent, "step-000004")
    (parent.files.checkpoint(4) / "manifest.json").unlink()
    with refused(r"manifest\.json: is missing", CheckpointError):
        resume(parent, 4)
    with refused("has no checkpoint 'step-7'; it has step-000002, step-000006", CheckpointError):
        resume(parent, "step-7")


def test_a_run_without_a_whole_checkpoint_is_refused_with_every_reason(parent: Run, refused: Refused) -> None:
    for saved in parent.checkpoints:
        (saved.path / "state.pt").unlink()
    with refused(r"step-000006: .*state\.pt: is missing.*step-000002: .*state\.pt: is missing", LaunchError):
        resume(parent)


@pytest.mark.usefixtures("unstarted")
def test_a_run_is_resumed_as_it_was_launched_but_from_another_checkpoint(parent: Run, project: Project) -> None:
    args = ["--max-steps", "50", "--resume_from=/old", "--seed", "1", "--resume-from", "/older"]
    change(parent.files.launch, args=args, name="mine")
    (project.scripts / "tiny.py").unlink()
    child = resume(Run(parent.dir), 4, args=["--max-steps", "60"])
    kept, named = ["--max-steps", "50", "--seed", "1"], ["--resume-from", str(parent.files.checkpoint(4).resolve())]
    assert child.info["args"] == [*kept, *named, "--max-steps", "60"]
    origin = {"run": parent.id, "checkpoint": "step-000004", "step": 4}
    assert child.info["resumed_from"] == {**origin, "changes": {"max_steps": [6, 60], "seed": [0, 1]}}
    assert (child.name, child.info["script"]) == ("mine", parent.info["script"])
    assert child.info["launch"]["notify_on"] is None
    assert child.files.script.read_bytes() == parent.files.script.read_bytes()
    write_json(child.files.exit, {"returncode": 1, "stopped": True, "time": 3.0})
    append_rows(child.files.notices, [{"kind": "notify_on", "conditions": {"nan": True}}])  # its owner changed them
    again = resume(child)  # which saved nothing; the parent's newest checkpoint is not what it began with
    assert again.info["launch"]["notify_on"] == {**NONE_SET, "nan": True}
    assert again.info["args"] == [*kept, "--max-steps", "60", *named]
    assert again.info["resumed_from"] == {**origin, "run": child.id}


# --- forks ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unstarted")
def test_a_fork_has_a_script_of_its_own_and_tells_what_changed(parent: Run, project: Project) -> None:
    taken = project.scripts / "tiny_2.py"
    taken.write_text("# mine\n")
    original = (project.scripts / "tiny.py").read_bytes()
    words = render(CONFIG, "tiny", Launch(gpus=(), on_end=("touch", "proof"), stop_on=StopOn(nan=True)))
    parent.files.script.write_text(words)  # of which a fork has the conditions only: words could be anybody's
    change(
        parent.files.launch, launch={**parent.info["launch"], "on_end": ["touch", "proof"], "stop_on": {"nan": True}}
    )
    child = resume(parent, "step-000004", changes={"learning_rate": 1e-4, "max_steps": 5}, max_restarts=1)
    path = project.scripts / "tiny_3.py"
    script = read_script(path)
    assert script.config == CONFIG.replace(learning_rate=1e-4, max_steps=5)
    assert script.launch == Launch(gpus=(), max_restarts=1, stop_on=StopOn(nan=True))
    assert (taken.read_text(), (project.scripts / "tiny.py").read_bytes()) == ("# mine\n", original)
    assert child.files.script.read_bytes() == path.read_bytes()
    assert child.id.endswith("_tiny")
    assert child.info["args"] == ["--resume-from", str(parent.files.checkpoint(4).resolve())]
    assert child.info["launch"]["max_restarts"] == 1
    origin = {"run": parent.id, "checkpoint": "step-000004", "step": 4}
    changes = {"max_steps": [6, 5], "learning_rate": [0.01, 0.0001]}
    assert child.info["resumed_from"] == {**origin, "changes": changes}
    told = f"forked from {parent.id} at step 4: max_steps 6 -> 5, learning_rate 0.01 -> 0.0001"
    assert child.summary()["origin"] == told
    assert child.history["train/loss"].steps.tolist()[:4] == [1, 2, 3, 4]


@pytest.mark.usefixtures("unstarted")
def test_a_fork_of_a_record_from_before_keeps_the_meaning_of_what_it_lacks(parent: Run, project: Project) -> None:
    later = {"clean": "light", "test_fraction": 0.0, "eval_samples": None, "special_tokens": "tokens"}
    content = read_json(parent.files.config)
    change(parent.files.config, config={name: value for name, value in content["config"].items() if name not in later})
    for path in (parent.files.script, project.scripts / "tiny.py"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.strip().startswith(tuple(f"{n}=" for n in later))))
    resume(parent, "step-000004", changes={"learning_rate": 1e-4, "max_steps": 5})
    forked = read_script(project.scripts / "tiny_2.py").config.model_dump()
    assert {name: forked[name] for name in later} == later
    assert (forked["learning_rate"], forked["max_steps"]) == (1e-4, 5)


@pytest.mark.usefixtures("unstarted")
def test_a_resumed_run_and_its_fork_keep_the_name_of_the_run(parent: Run, project: Project, cli: Cli) -> None:
    own = resume(parent, 4, changes={"learning_rate": 1e-3})
    assert (own.name, Path(own.info["script"]).name) == (parent.name, "tiny_2.py")
    Path(own.info["script"]).unlink()
    change(parent.files.launch, name="foo")
    parent = Run(parent.dir.rename(project.runs / "2026-01-01_000000_foo"))
    again = resume("foo", 4)
    assert (again.name, Run("foo").id, Run("foo~1").id) == ("foo", again.id, parent.id)
    fork = resume(parent, 4, changes={"learning_rate": 1e-4})
    assert (fork.name, Path(fork.info["script"]).name, Run("foo~2").id) == ("foo", "tiny_2.py", parent.id)
    named = cli("resume", parent.id, "--checkpoint", "4", "--set", "seed=7", "--name", "bar").stdout
    assert Run("bar").id == named.strip() and Path(Run("bar").info["script"]).name == "tiny_3.py"
    with pytest.raises(LaunchError, match="name='a b': give at most 64 letters"):
        resume(parent, 4, changes={"seed": 8}, name="a b")
    assert len([*project.scripts.iterdir()]) == 3


@pytest.mark.promise("safety-code")
@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize("changes", [{}, {"seed": 7}], ids=["resume", "fork"])
def test_code_of_a_model_is_allowed_by_the_caller_not_by_a_foreign_run(
    parent: Run, refused: Refused, monkeypatch: MonkeyPatch, changes: dict[str, Any]
) -> None:
    values = CONFIG.model_dump(include={"dataset", "batch_size", "sequence_length", "test_fraction"})
    config = MaskedDiffusionConfig(**values, max_steps=6, epochs=2, trust_remote_code=True)
    parent.files.script.write_text(render(config, "tiny", Launch(gpus=())))
    for path, more in ((parent.files.config, {"config": config.model_dump()}), (parent.files.launch, {})):
        change(path, recipe="masked_diffusion", **more)
    with monkeypatch.context() as patch:
        patch.setattr("nbtools.launcher.resume.foreign_owner", lambda path: "ann")
        with refused(r"belongs to ann, and .*--set trust_remote_code=true", LaunchError):
            resume(Run(parent.dir), 4, changes=changes)
        assert resume(Run(parent.dir), 4, changes={**changes, "trust_remote_code": True}).id
        assert resume(Run(parent.dir), 4, changes={**changes, "trust_remote_code": False}).id
    assert resume(Run(parent.dir), 4, changes=changes).id, "a run of the caller's own is resumed as it was launched"


@pytest.mark.usefixtures("unstarted")
def test_values_that_are_what_they_were_make_no_fork(parent: Run, project: Project) -> None:
    child = resume(parent, 4, changes={"learning_rate": 1e-2, "dataset": "texts"})
    assert sorted(path.name for path in project.scripts.iterdir()) == ["tiny.py"]
    origin = {"run": parent.id, "checkpoint": "step-000004", "step": 4}
    assert child.info["resumed_from"] == {**origin, "named": ["dataset"]}, "the training accepts files that changed"
    assert child.summary()["origin"] == f"resumed from {parent.id} at step 4"


@pytest.mark.usefixtures("unstarted")
@pytest.mark.slow
def test_a_run_that_was_given_flags_is_forked_with_them(parent: Run) -> None:
    content = read_json(parent.files.config)
    assert content is not None
    args = ["--learning-rate", "0.5", "--max-steps", "100", "--epochs", "50"]
    change(parent.files.launch, args=args)
    run = Run(parent.dir)
    parent.files.config.unlink()  # ended before rank 0 wrote it down: the flags themselves are asked
    assert config_of(run) == CONFIG.replace(learning_rate=0.5, max_steps=100, epochs=50)
    child = resume(run, 4, changes={"batch_size": 3})
    assert child.info["args"] == ["--resume-from", str(run.files.checkpoint(4).resolve())]
    written = read_script(child.info["script"]).config
    assert written == CONFIG.replace(learning_rate=0.5, max_steps=100, epochs=50, batch_size=3)
    assert child.info["resumed_from"]["changes"] == {"batch_size": [6, 3], "effective_batch": [6, 3]}


@pytest.mark.promise("safety-epochs")
@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize(
    ("changes", "said", "config"),
    [
        ({"max_steps": 50}, "epochs 2 -> 5: max_steps=50 needs as many", {"max_steps": 50, "epochs": 5}),
        ({"epochs": 4}, "max_steps=6 is lifted, as epochs=4 is given", {"max_steps": None, "epochs": 4}),
    ],
)
def test_steps_of_a_fork_bring_epochs_and_epochs_lift_the_cap(
    parent: Run, changes: dict[str, Any], said: str, config: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match=said):
        child = resume(parent, changes=changes)
    assert read_script(child.info["script"]).config == CONFIG.replace(**config)
    told = {name: [CONFIG.model_dump()[name], value] for name, value in config.items()}
    assert child.info["resumed_from"]["changes"] == told


@pytest.mark.usefixtures("unstarted")
def test_another_number_of_processes_warns_of_the_samples_per_step(parent: Run) -> None:
    with pytest.warns(UserWarning, match=r"12 samples per step from here on, 6 until now .*; batch_size=3 keeps 6\)"):
        child = resume(parent, 4, nproc_per_node=2)
    told = "nproc_per_node 1 -> 2, effective_batch 6 -> 12"
    assert child.summary()["origin"] == f"resumed from {parent.id} at step 4: {told}"
    assert child.info["launch"]["nproc_per_node"] == 2


def test_forks_at_once_never_share_a_script(project: Project) -> None:
    configs = [CONFIG.replace(seed=seed) for seed in range(12)]
    with ThreadPoolExecutor(12) as pool:
        paths = list(pool.map(lambda config: _new_script(project, "tiny", config, Launch()), configs))
    assert sorted(path.name for path in paths) == sorted(f"tiny_{number}.py" for number in range(2, 14))
    assert [read_script(path).config for path in paths] == configs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny_2", "tiny_2"),
        ("tiny_7", "tiny_2"),
        ("9lives", "fork_2"),
        ("x" * 64, "x" * 50 + "_2"),
        ("../up", "fork_2"),
    ],
)
def test_the_name_of_a_fork_is_one_that_a_script_may_have(project: Project, name: str, expected: str) -> None:
    assert _new_script(project, name, CONFIG, Launch()) == project.scripts / f"{expected}.py"


# --- broken checkpoints ---------------------------------------------------------------------------


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda _: None,
    "emptied": lambda _: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "flipped": lambda content: flipped(content, len(content) // 2),
    # In the manifest, in one of the hashes: a number of it may be anything, nobody could tell.
    "flipped manifest": lambda content: flipped(content, content.index(b'"sha256": "') + 20),
}


def damage_every_file_in_every_way(run: Run) -> list[tuple[str, str, str]]:
    """Copy the newest checkpoint to later steps, each with another file damaged in another way.

    Returns:
        Name of the checkpoint, of the file, and the damage, newest first.
    """
    whole = run.checkpoints[-1]
    names = sorted(path.relative_to(whole.path).as_posix() for path in whole.path.rglob("*") if path.is_file())
    assert {"manifest.json", "state.pt", "rank-0.pt", "model/config.json", "model/model.safetensors"} <= set(names)
    done = []
    for name in names:
        for how, damage in DAMAGE.items():
            if ("manifest" in how) != (name == "manifest.json") and how.startswith("flipped"):
                continue
            copy = run.files.checkpoint(1000 + len(done))
            shutil.copytree(whole.path, copy)
            change(copy / "manifest.json", step=1000 + len(done))
            Checkpoint.read(copy).verify()  # whole, until now
            content = damage((copy / name).read_bytes())
            if content is None:
                (copy / name).unlink()
            else:
                (copy / name).write_bytes(content)
            done.append((copy.name, name, how))
    return done[::-1]


@pytest.mark.promise("fault-16", "fault-17")
@pytest.mark.usefixtures("unstarted")
def test_each_file_damaged_in_each_way_is_passed_over_by_name_and_reason(parent: Run) -> None:
    broken = damage_every_file_in_every_way(unfinished(parent))
    assert len(broken) >= 4 * 7
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        child = resume(parent.id)
    assert child.info["resumed_from"] == {"run": parent.id, "checkpoint": "step-000004", "step": 4}
    said = [str(warning.message) for warning in caught if "passed over" in str(warning.message)]
    assert len(said) == len(broken)
    for message, (checkpoint, name, how) in zip(said, broken, strict=True):
        assert message.startswith(f"passed over {checkpoint}: "), (how, message)
        if how != "flipped manifest":  # it accuses the file whose hash it holds
            assert name in message, (how, message)


@pytest.mark.usefixtures("unstarted")
def test_the_command_line_says_what_it_passed_over(parent: Run, cli: Cli) -> None:
    unfinished(parent)
    weights = parent.files.checkpoint(4) / "model" / "model.safetensors"
    weights.write_bytes(flipped(weights.read_bytes(), 200))
    done = cli("resume", parent.id, "--set", "learning_rate=1e-4", "--set", "max_steps=5")
    assert resumed_step(Run(done.stdout.strip()).info) == 2
    assert "nbtools: wrote " in done.stderr and "scripts/tiny_2.py" in done.stderr
    assert "warning: passed over step-000004: " in done.stderr
    assert "model.safetensors: its SHA-256 differs" in done.stderr


def trained(run: Run, monkeypatch: MonkeyPatch) -> None:
    """Train in this process what a resumed run would in its own."""
    run.files.lock.touch()
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(run.dir))
    train_here(train, Flags(read_script(run.files.script).config, resume_from=Path(run.info["args"][-1])))


# --- on Slurm ---------------------------------------------------------------------------------------


@pytest.fixture
def unsubmitted(unstarted: None, monkeypatch: MonkeyPatch) -> None:
    """As `unstarted`, and no job is submitted."""
    monkeypatch.setattr(launching, "with_site", lambda checked: checked)
    monkeypatch.setattr("nbtools.machine.slurm.submit", lambda *_: (71, None))


def test_a_resumed_run_stays_where_it_ran_unless_the_call_says_otherwise(parent: Run, unsubmitted: None) -> None:
    unfinished(parent)
    job = resume(parent, cluster=Slurm(partition="low", gpus_per_node=0, mem="1G"))
    assert (read_json(job.files.slurm) or {})["job_id"] == 71 and job.info["launch"]["gpus"] is None
    assert job.info["resumed_from"]["step"] == 4 and job.info["args"][-2] == "--resume-from"
    write_json(job.files.exit, {"returncode": 1, "stopped": True, "time": 3.0})
    again = resume(job)
    assert again.info["launch"]["cluster"] == job.info["launch"]["cluster"]
    longer = resume(job, cluster=SlurmFlags({"time_limit": "8:00:00"}))
    assert longer.info["launch"]["cluster"] == {**job.info["launch"]["cluster"], "time_limit": "8:00:00"}
    here = resume(job, cluster="none")
    assert (
        here.info["launch"]["cluster"] is None and here.info["launch"]["gpus"] == [] and not here.files.slurm.exists()
    )
    with pytest.raises(LaunchError, match="mem=2G: is for Slurm"):
        resume(parent, cluster=SlurmFlags({"mem": "2G"}))


def test_a_fork_of_a_job_writes_its_settings_into_the_script(parent: Run, unsubmitted: None) -> None:
    fork = resume(parent, changes={"max_steps": 20}, cluster=Slurm(partition="low", gpus_per_node=0))
    written = read_script(fork.info["script"])
    assert written.launch.cluster == Slurm(partition="low", gpus_per_node=0) and written.launch.gpus is None
    write_json(fork.files.exit, {"returncode": 1, "stopped": True, "time": 3.0})
    other = resume(fork, parent.checkpoints[-1].path, changes={"learning_rate": 1e-4}, cluster="none")
    assert read_script(other.info["script"]).launch == Launch(gpus=())


# --- the learning rate ------------------------------------------------------------------------------


RATES = MLMPretrainingConfig(learning_rate=1e-3, warmup_ratio=0.1)


@pytest.mark.promise("moved-rate")
@pytest.mark.parametrize(
    ("step", "changes", "total", "said"),
    [
        (600, {}, 1200, "was 1.8e-06 at step 600 and is 5.6e-04 at step 601 (total_steps 600 -> 1200)"),
        (300, {}, 1200, "was 5.6e-04 at step 300 and is 8.3e-04 at step 301"),
        (300, {}, 400, "is 2.8e-04 at step 301"),
        (300, {"learning_rate": 5e-3}, 600, "is 2.8e-03 at step 301 (learning_rate 0.001 -> 0.005)"),
        (300, {"lr_schedule": "constant"}, 600, "is 1.0e-03 at step 301 (lr_schedule linear -> constant)"),
        (30, {"warmup_ratio": 0.0}, 600, "was 5.0e-04 at step 30 and is 9.5e-04 at step 31"),
        (300, {"learning_rate": 1.15e-3}, 600, ""),
        (300, {}, 610, ""),
        (599, {}, 600, ""),
        (1, {}, 600, ""),
        (1, {}, 610, ""),
    ],
)
def test_a_moved_learning_rate_is_told_with_both(step: int, changes: dict[str, Any], total: int, said: str) -> None:
    after = rate_settings(RATES.replace(**changes), total)
    note = moved_rate(rate_settings(RATES, 600), after, step)
    assert said in note and bool(note) is bool(said)


@pytest.mark.promise("moved-rate")
@pytest.mark.usefixtures("unstarted")
def test_a_longer_training_says_both_rates_and_logs_them(parent: Run, monkeypatch: MonkeyPatch, capfd: Printed) -> None:
    note = "the learning rate was 1.7e-03 at step 6 and is 7.4e-03 at step 7 (total_steps 6 -> 20)"
    with pytest.warns(UserWarning, match=re.escape(note)):
        child = resume(parent, changes={"max_steps": 20})
    trained(child, monkeypatch)
    assert f"note: {note}" in capfd.readouterr().out
    train_here(train, Flags(CONFIG, resume_from=parent.files.checkpoint(4)))
    assert "the learning rate was" not in capfd.readouterr().out
