"""Programs of the user's continue from the checkpoints that they wrote: by hand, as a fork, and after a failure."""

import json
import re
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Cli, MonkeyPatch
from waiting import eventually

from nbtools.config import Launch
from nbtools.errors import CheckpointError, ConfigError, LaunchError
from nbtools.failures.restarts import read_restarts, restarted
from nbtools.launcher.job import with_job
from nbtools.launcher.launch import launch
from nbtools.launcher.programs.next_attempt import continued
from nbtools.launcher.programs.program_resume import known_words, overwritten, planned_resume, remember, said_in_words
from nbtools.launcher.resume import launch_again, resume
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.plots.view import view_of
from nbtools.project import Project
from nbtools.run.compare import compare_runs
from nbtools.run.run import Run, shared_outputs
from nbtools.run.state import RunState
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint
from nbtools.script.program import Program
from nbtools.script.script import read_script, write_script

from asking import asked

PROGRAMS = Path(__file__).parents[2] / "programs"


@pytest.fixture
def work(cpu_project: Project, tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """The working directory of the programs."""
    folder = tmp_path / "work"
    folder.mkdir()
    for path in PROGRAMS.glob("*.py"):
        shutil.copy(path, folder)
    monkeypatch.chdir(folder)
    return folder


def finished(run: Run) -> Run:
    state = run.wait(timeout_s=300, check=False)
    assert state is RunState.SUCCEEDED, run.log()
    return run


def saves(*args: str, **options: Any) -> Run:
    return launch("saves.py", torchrun=False, args=args, **options)


def steps_of(run: Run) -> list[int]:
    return [int(step) for step in run.history["train/loss"].steps]


# --- checkpoints of a run -------------------------------------------------------------------------


def test_the_checkpoints_of_a_program_are_listed_with_step_and_size(work: Path, cli: Cli) -> None:
    run = finished(saves())
    assert [(one.name, one.step) for one in run.checkpoints] == [
        (f"out/ckpt_step{step}.pt", step) for step in (10, 20, 30, 40)
    ]
    shown = json.loads(cli("show", run.id, "--json").stdout)["checkpoints"]
    size = (work / "out/ckpt_step40.pt").stat().st_size
    assert {**shown[-1], "time": 0} == {
        "name": "out/ckpt_step40.pt",
        "step": 40,
        "path": str(work / "out/ckpt_step40.pt"),
        "time": 0,
        "is_estimate": False,
        "metrics": {},
        "bytes": size,
        "best": False,
    }
    assert "out/ckpt_step40.pt (step 40)" in cli("show", run.id).stdout


def test_a_checkpoint_whose_name_has_no_step_has_about_that_of_the_curve(work: Path, cli: Cli) -> None:
    run = finished(saves("--name", "ckpt.pt", "--pause", "0.2", "--steps", "14"))
    (found,) = run.checkpoints
    assert found.step is not None and 8 <= found.step <= 11, "saved after step 10"
    assert f"ckpt.pt (about step {found.step})" in cli("show", run.id).stdout
    child = finished(resume(run, args=["--steps", "16", "--out-dir", "elsewhere"]))
    assert child.summary()["origin"].startswith(f"forked from {run.id} at about step {found.step}: adds the arguments ")
    assert view_of(child).is_resume_estimated


def test_a_stop_names_the_newest_checkpoint(work: Path) -> None:
    (work / "once.py").write_text("import time; open('last.ckpt', 'w').write('x'); time.sleep(600)")
    run = launch("once.py", torchrun=False)
    while not run.checkpoints:
        time.sleep(0.2)
    assert "; newest checkpoint last.ckpt; " in run.stop()
    (work / "at_stop.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(open('end.ckpt', 'w').write('x') and 0))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    run = launch("at_stop.py", torchrun=False)
    while "ready" not in run.log():
        time.sleep(0.1)
    assert "; checkpoint end.ckpt saved; " in run.stop()


# --- resume ---------------------------------------------------------------------------------------


def test_a_run_resumes_where_it_was_with_its_arguments_and_the_curves_join(
    work: Path, project: Project, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    parent = finished(saves("--steps", "25", "--lr", "7"))
    assert parent.info["program"]["resume"] == ["--resume", "{checkpoint}"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NBTOOLS_ROOT")
    child = finished(resume(parent, args=["--steps", "30"]))
    target = str(work / "out/ckpt_step20.pt")
    assert child.info["args"] == ["--steps", "25", "--lr", "7", "--resume", target, "--steps", "30"]
    same = ("cwd", "script", "root", "program", "target")
    changed = {name: (parent.info[name], child.info[name]) for name in same if parent.info[name] != child.info[name]}
    assert changed.keys() <= {"program"}, changed
    assert child.info["argv"][0] == parent.info["argv"][0]
    assert child.dir.parent == parent.dir.parent
    origin = {"run": parent.id, "checkpoint": "out/ckpt_step20.pt", "step": 20, "path": target}
    assert {name: child.info["resumed_from"][name] for name in origin} == origin
    assert child.parent == parent
    assert steps_of(child) == list(range(1, 31))
    assert child.own_history["train/loss"].steps.tolist() == list(range(21, 31))
    assert len(parent.history["train/loss"]) == 25
    assert f"resumed {target}" in child.log()


def test_a_second_resume_replaces_the_checkpoint_among_the_arguments(work: Path) -> None:
    parent = finished(saves("--steps", "20"))
    with pytest.warns(UserWarning, match=r"overwrites those of .*; name another folder with --out-dir"):
        child = resume(parent, "ckpt_step10.pt", args=["--steps", "30"])
    finished(child)
    assert steps_of(child) == list(range(1, 31))
    third = finished(resume(child, args=["--steps", "35"]))
    assert third.info["args"].count("--resume") == 1
    assert str(work / "out/ckpt_step30.pt") in third.info["args"]
    assert steps_of(third) == list(range(1, 36))
    assert planned_resume(third).checkpoint.step == 30, "it saved nothing: from the checkpoint that it began with"


def test_a_count_that_begins_again_erases_no_row_of_the_parent(work: Path) -> None:
    parent = finished(saves("--steps", "25"))
    child = finished(resume(parent, args=["--steps", "45", "--count-anew"]))
    assert child.own_history["train/loss"].steps.tolist() == list(range(1, 26))
    assert steps_of(child) == list(range(1, 46))
    assert child.history["train/loss"].values.tolist() == [1000.0 - step for step in range(1, 46)]
    assert child.rows.notes[-1] == (
        "its steps begin again after the resume: drawn 20 steps later, behind the curve of its parent"
    )
    assert steps_of(parent) == list(range(1, 26))


def test_a_chain_of_runs_without_steps_keeps_each_ones_own_rows(work: Path, cli: Cli) -> None:
    first = finished(launch("epochs.py", torchrun=False))
    assert all(isinstance(one, ForeignCheckpoint) and one.is_estimate for one in first.checkpoints)
    second = finished(resume(first, args=["--epochs", "6"]))
    with pytest.warns(UserWarning, match=r"overwrites those of .*; name another folder with --out_dir"):
        third = resume(second, "ckpt_3.pt", args=["--lr", "2", "--epochs", "5"])
    finished(third)
    said = cli("show", third.id).stdout
    assert re.search(rf"forked from {second.id} at about step \d+: adds the arguments --lr 2 --epochs 5\n", said)
    assert re.search(r"ckpts/ckpt_4.pt \(about step \d+\)", said)
    for run in (first, second, third):
        drawn, own = run.history["train/loss"], run.own_history["train/loss"]
        assert drawn.values.tolist()[-len(own) :] == own.values.tolist(), "the newest run's rows are all there"
        assert (drawn.steps[1:] > drawn.steps[:-1]).all()
    view = view_of(third)
    assert view.is_resume_estimated and view.resumed_at == third.info["resumed_from"]["step"]
    compared = compare_runs(first, second, third)
    assert [name for name, _ in compared.members[2].sources] == [second.id, first.id]
    planned = planned_resume(third, "ckpts/ckpt_1.pt", args=["--epochs", "3"])  # of the first
    assert planned.checkpoint.path == work / "ckpts/ckpt_1.pt" and "overwrites those of" in planned.notes[0]


def test_a_fork_says_while_it_is_typed_which_checkpoints_it_overwrites(work: Path) -> None:
    parent = finished(launch("epochs.py", torchrun=False, args=["--name", "last.pt"]))
    (saved,) = parent.checkpoints
    assert isinstance(saved, ForeignCheckpoint)
    assert overwritten(parent, saved, []) == "", "it continues"
    assert "same names; name another folder with --out_dir" in overwritten(parent, saved, ["--lr", "2"])
    assert overwritten(parent, saved, ["--lr", "2", "--out_dir", "other"]) == ""
    with closing(LivePlot(parent)) as panel:
        table = panel._widgets.tabs.checkpoints
        eventually(lambda: not table.start.disabled)
        for typed, is_said in (("--lr 2", True), ("--lr 2 --out_dir other", False), ("", False)):
            table.changes.value = typed
            assert ("name another folder with --out_dir" in table.changing.value) is is_said
        assert [label for label, _ in table.choice.options] == [
            "latest verified",
            f"about step {saved.step} · {saved.name}",
        ]
        table.look()
        assert f"<b>about {saved.step}</b>" in table.table.value


def test_what_a_concurrent_run_may_have_written_is_not_resumed(work: Path) -> None:
    first = launch("epochs.py", torchrun=False, args=["--epochs", "10000"])
    with pytest.warns(
        UserWarning, match=rf"ckpts: {first.id} writes its files there, too, .*: name another .* --out_dir"
    ):
        second = launch("epochs.py", torchrun=False, args=["--epochs", "10000"])
    apart = launch("epochs.py", torchrun=False, args=["--out_dir", "apart"])
    assert [one.name for one in finished(apart).checkpoints] == [f"apart/ckpt_{epoch}.pt" for epoch in range(3)]
    eventually(lambda: (work / "ckpts/ckpt_0.pt").exists() and "epoch 1" in second.log())
    why = f"{work / 'ckpts'}: its checkpoints are not listed, since {second.id} ran at the same time"
    assert f"no checkpoint was found ({why} and may have written them" in first.stop()
    second.stop()
    assert first.info["default_folders"] == ["--out_dir", "ckpts"] and first.checkpoints == []
    assert shared_outputs(first)[0].startswith(why) and first.summary()["shared"] == shared_outputs(first)
    with pytest.raises(LaunchError, match=rf"\({why}"):
        resume(first)
    with closing(LivePlot(first)) as panel:
        table = panel._widgets.tabs.checkpoints
        eventually(lambda: why in panel._widgets.words.losses.value)
        table.look()
        assert f"No checkpoint has been found: {why}" in table.table.value


def test_the_tab_shows_how_a_program_resumes_and_remembers_what_is_typed(work: Path) -> None:
    (work / "own.py").write_text(
        "for i in range(1, 4): print(f'step {i} loss {9 - i}.5')\nopen('ckpt_1.pt', 'w').write('x')\n"
    )
    run = finished(launch("own.py", torchrun=False))
    with closing(LivePlot(run)) as panel:
        tab = panel._widgets.tabs.checkpoints
        eventually(lambda: tab.program.pattern.value == "ckpt_*.pt")
        tab.look()
        why = "Cannot resume: no argument of own.py is known to resume it"
        eventually(lambda: tab.start.disabled and tab.start.tooltip.startswith(why))
        assert "Guessed: the files by the usual names of checkpoints" in tab.program.origin.value
        tab.program.words.value = "--from {checkpoint}"
        eventually(lambda: not tab.start.disabled)
        assert known_words(run) == ("--from", "{checkpoint}")
        assert f"Continues from ckpt_1.pt (about step 3), with --from {work / 'ckpt_1.pt'}" in tab.changing.value
        tab.program.pattern.value = "none/*.pt"
        tab_says = "No checkpoint has been found: none of its files is named none/*.pt"
        eventually(lambda: tab.look() or tab_says in tab.table.value)


def test_a_checkpoint_is_named_else_refused_and_one_that_was_cut_off_is_passed_over(work: Path) -> None:
    parent = finished(saves("--steps", "20"))
    for ref in ("ckpt_step10.pt", "out/ckpt_step10.pt", 10, "10", Path("out/ckpt_step10.pt")):
        assert planned_resume(parent, ref).checkpoint.path == work / "out/ckpt_step10.pt"
    shutil.copy(work / "out/ckpt_step10.pt", work / "mine")
    assert planned_resume(parent, "mine").args[-1] == str(work / "mine")
    with pytest.raises(CheckpointError, match=r"has no checkpoint 'other', .* it has out/ckpt_step20.pt, out/ckpt_"):
        resume(parent, "other")
    whole = (work / "out/ckpt_step20.pt").read_bytes()
    (work / "out/ckpt_step20.pt").write_bytes(whole[:40])
    planned = planned_resume(Run(parent.dir))
    assert re.match(r"passed over out/ckpt_step20.pt: .* was not written to its end", planned.notes[0])
    assert planned.checkpoint.step == 10


def test_what_cannot_be_resumed_says_why_and_what_to_do(work: Path, cli: Cli) -> None:
    (work / "plain.py").write_text("open('last.ckpt', 'w').write('x'); print('step 1 loss 1.0')")
    run = finished(launch("plain.py", torchrun=False))
    why = (
        rf"{run.id}: no argument of plain.py is known .*; name one: resume_with=.*--resume-with .* the tab Checkpoints"
    )
    with pytest.raises(LaunchError, match=why):
        resume(run)
    with pytest.raises(ConfigError, match=r"'lr': .* runs a program, which has arguments and no fields; give them as"):
        resume(run, changes={"lr": 1})
    assert "runs a program, which has arguments and no fields" in cli("resume", run.id, "--set", "lr=1", code=2).stderr
    empty = finished(saves("--steps", "5", "--out-dir", "empty"))
    (work / "last.ckpt").unlink()
    with pytest.raises(LaunchError, match=r"to resume from \(none of its files has a checkpoint's name\)"):
        resume(empty)
    active = saves("--steps", "10000")
    with pytest.raises(LaunchError, match="stop it first"):
        resume(active)
    active.stop()


def test_words_without_a_path_continue_from_the_newest_checkpoint_alone(work: Path) -> None:
    (work / "auto.py").write_text(
        "import argparse, pathlib\np = argparse.ArgumentParser()\n"
        "p.add_argument('--auto-resume', action='store_true')\n"
        "print('auto', p.parse_args().auto_resume)\nfor n in (1, 2): pathlib.Path(f'ckpt_{n}.pt').write_text('x')\n"
    )
    run = finished(launch("auto.py", torchrun=False))
    older, newer = sorted(run.checkpoints, key=lambda one: one.time)
    assert older.time < newer.time
    with pytest.raises(LaunchError, match=f"--auto-resume contains no checkpoint, so .* not {older.name}"):
        resume(run, older)
    assert planned_resume(run).args == ("--auto-resume",)


# --- words that the user gives ----------------------------------------------------------------------


def test_given_words_are_remembered_by_the_run_and_its_launcher_script(work: Path, project: Project, cli: Cli) -> None:
    source = (work / "saves.py").read_text()
    (work / "saves.py").write_text(source.replace('"--resume"', '"--go" + "-on", dest="resume"'))
    program = Program(script=str(work / "saves.py"), args=("--steps", "20"), cwd=str(work))
    script = write_script(program, "mine", Launch(torchrun=False), project=project)
    parent = finished(launch(script))
    with pytest.raises(LaunchError, match=r"no argument of saves.py is known to resume it"):
        resume(parent)
    words = ["resume", parent.id, "--resume-with", "--go-on {checkpoint}"]
    target, num_runs = work / "out/ckpt_step20.pt", len(list(project.runs.iterdir()))
    assert cli(*words, "--dry-run", "--", "--steps", "30").stdout.splitlines() == [
        f"{parent.id}: continues from out/ckpt_step20.pt (step 20), with --go-on {target}",
        f"saves.py --steps 20 --go-on {target} --steps 30",
    ]
    assert len(list(project.runs.iterdir())) == num_runs and known_words(parent) == ()
    started = cli(*words, "--", "--steps", "30")
    child = finished(Run(started.stdout.strip()))
    given = ("--go-on", "{checkpoint}")
    assert known_words(parent) == given, "the parent can now be resumed from the panel, too"
    assert read_script(script).program == program.replace(resume=given)
    assert tuple(child.info["program"]["resume"]) == given
    assert child.info["script"] == str(script) and child.name == "mine" and known_words(child) == given


def test_a_program_is_launched_again_with_the_arguments_of_its_run(work: Path, project: Project) -> None:
    first = finished(saves("--steps", "3"))
    again = finished(launch_again(first))
    assert (again.info["args"], again.info["cwd"]) == (["--steps", "3"], str(work))
    program = Program(script=str(work / "saves.py"), args=("--steps", "4"), cwd=str(work))
    script = write_script(program, "mine", Launch(torchrun=False), project=project)
    run = finished(launch(script, args=["--lr", "3"]))
    write_script(program.replace(args=("--steps", "4", "--pause", "0")), "mine", Launch(torchrun=False), overwrite=True)
    assert finished(launch_again(run)).info["args"] == ["--steps", "4", "--pause", "0"]


def test_what_the_user_says_is_remembered_for_the_run_and_later_launches(work: Path, monkeypatch: MonkeyPatch) -> None:
    """A program that is launched without a launcher script."""
    (work / "own.py").write_text(
        "import pathlib, sys\nprint('words', *sys.argv[1:])\n"
        "for name in ('a.weights', 'last.ckpt'): pathlib.Path(name).write_text('x')\n"
    )
    run = finished(launch("own.py", torchrun=False))
    assert said_in_words(run) == ("last.ckpt", "", "Guessed: the files by the usual names of checkpoints. ")
    assert remember(run, checkpoints="*.weights") == "remembered for own.py"
    assert [one.name for one in run.checkpoints] == ["a.weights"], "of this run, too"
    remember(run, resume=("--from", "{checkpoint}"))
    assert said_in_words(run) == ("*.weights", "--from '{checkpoint}'", "")
    assert "words --from a.weights" in finished(resume(run)).log().replace(f"{work}/", "")
    later = finished(launch("own.py", torchrun=False))
    assert later.info["program"]["checkpoints"] == "*.weights"
    assert later.info["program"]["resume"] == ["--from", "{checkpoint}"]
    with pytest.raises(ConfigError, match=r"checkpoints='\*\*/x': must be a path with \* for what differs"):
        remember(run, checkpoints="**/x")
    monkeypatch.setattr("nbtools.run.run.foreign_owner", lambda _: "somebody")
    assert [one.name for one in Run(later.dir).checkpoints] == ["last.ckpt"], "another user's pattern is not followed"


# --- automatic restarts -----------------------------------------------------------------------------


def test_a_failed_program_restarts_from_its_newest_checkpoint(work: Path) -> None:
    run = finished(saves("--fail-at", "25", "--steps", "40", max_restarts=2))
    (restart,) = read_restarts(run.files)
    assert (restart.checkpoint, restart.checkpoint_step) == ("out/ckpt_step20.pt", 20)
    assert restarted(restart).startswith("restarted at step 20: ")
    assert f"resumed {work / 'out/ckpt_step20.pt'}" in run.log()
    assert steps_of(run) == list(range(1, 41))


def test_a_restart_leaves_an_argument_alone_that_may_not_resume(work: Path) -> None:
    (work / "loads.py").write_text(
        "import argparse, pathlib, sys\np = argparse.ArgumentParser()\np.add_argument('--load')\n"
        "print('load', p.parse_args().load, flush=True)\nhere = pathlib.Path('last.ckpt')\n"
        "if not here.exists(): here.write_text('x'); sys.exit(3)\n"
    )
    run = finished(launch("loads.py", torchrun=False, max_restarts=1, args=["--load", "pretrained.pt"]))
    (restart,) = read_restarts(run.files)
    assert restart.checkpoint is None
    assert run.log().count("load pretrained.pt") == 2
    assert planned_resume(run).args == ("--load", str(work / "last.ckpt"))


def test_a_checkpoint_that_a_kill_cut_off_is_passed_over_by_a_restart(work: Path) -> None:
    (work / "cut.py").write_text(
        "import os, sys, signal\n"
        "if '--resume' in sys.argv: print('from', sys.argv[-1]); sys.exit()\n"
        "import zipfile\n"
        "with zipfile.ZipFile('ckpt_1.pt', 'w') as archive: archive.writestr('x', b'x' * 9999)\n"
        "open('ckpt_2.pt', 'wb').write(open('ckpt_1.pt', 'rb').read()[:5000])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    program = Program(script=str(work / "cut.py"), resume=("--resume", "{checkpoint}"))
    run = finished(launch(program, torchrun=False, max_restarts=1))
    (line,) = map(json.loads, run.files.attempts.read_text().splitlines())
    assert line["checkpoint"] == "ckpt_1.pt"
    assert len(line["passed_over"]) == 1 and line["passed_over"][0].startswith("ckpt_2.pt: ")
    assert f"from {work / 'ckpt_1.pt'}" in run.log()


def test_an_attempt_of_a_job_continues_with_the_words_of_its_program() -> None:
    plan = {"args": ["--lr", "1", "--resume", "old"], "argv": [], "program": {"resume": ["--resume", "{checkpoint}"]}}
    job = {"command": ["torchrun", "train.py"], "env": {}, "resume_from": "/out/ckpt.pt"}
    assert with_job(plan, job)["argv"] == ["torchrun", "train.py", "--lr", "1", "--resume", "/out/ckpt.pt"]
    assert with_job(plan, {**job, "resume_from": None})["argv"][2:] == plan["args"]
    later = with_job(plan, job)
    again = continued(later, Path("/out/newer.pt"))
    assert again["argv"] == ["torchrun", "train.py", "--lr", "1", "--resume", "/out/newer.pt"]


# --- real programs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_transformers_trainer_resumes_to_the_same_weights(work: Path) -> None:
    own = ["--save_steps", "10", "--logging_steps", "5", "--max_steps", "40", "--use_cpu", "--disable_tqdm", "true"]
    own += ["--report_to", "none", "--learning_rate", "0.05"]
    asked(work / "hf_trainer.py")  # its source does not name the flags of TrainingArguments
    whole = finished(launch("hf_trainer.py", torchrun=False, args=["--output_dir", "whole", *own]))
    assert [one.step for one in whole.checkpoints] == [10, 20, 30, 40]
    assert whole.checkpoints[-1].name == "whole/checkpoint-40"
    child = finished(resume(whole, 20, args=["--output_dir", "again"]))
    named = ["--resume_from_checkpoint", str(work / "whole/checkpoint-20")]
    assert child.info["args"][-4:] == [*named, "--output_dir", "again"]
    assert steps_of(child) == list(range(5, 45, 5))
    ends = [(work / folder / "end/model.safetensors").read_bytes() for folder in ("whole", "again")]
    assert ends[0] == ends[1]


LIGHTNING = """
import argparse, lightning, torch
p = argparse.ArgumentParser()
p.add_argument("--ckpt_path")
p.add_argument("--max_epochs", type=int, default=2)
args = p.parse_args()
torch.manual_seed(0)
class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
    def training_step(self, batch):
        loss = (self.linear(batch) ** 2).mean()
        print(f"step {self.global_step} loss {loss.item()}", flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
data = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2)
options = {"accelerator": "cpu", "enable_progress_bar": False, "logger": False, "default_root_dir": "out"}
lightning.Trainer(max_epochs=args.max_epochs, **options).fit(Line(), data, ckpt_path=args.ckpt_path)
"""
ACCELERATE = """
import argparse, torch
from accelerate import Accelerator
p = argparse.ArgumentParser()
p.add_argument("--resume_from_checkpoint")
p.add_argument("--max_epochs", type=int, default=2)
args = p.parse_args()
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
step = 0
if args.resume_from_checkpoint:
    accelerator.load_state(args.resume_from_checkpoint)
    step = int(args.resume_from_checkpoint.rpartition("_")[2])
while step < 4 * args.max_epochs:
    loss = (model(torch.ones(2, 2)) ** 2).mean()
    print(f"step {step} loss {loss.item()}", flush=True)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 4 == 0:
        accelerator.save_state(f"out/step_{step}")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "flag", "newest", "pattern"),
    [
        pytest.param(
            LIGHTNING,
            "--ckpt_path",
            "out/checkpoints/epoch=1-step=8.ckpt",
            "out/checkpoints/epoch=*-step=*.ckpt",
            marks=pytest.mark.needs("lightning"),
        ),
        (ACCELERATE, "--resume_from_checkpoint", "out/step_8", "out/step_*"),
    ],
    ids=["lightning", "accelerate"],
)
def test_lightning_and_accelerate_are_resumed(work: Path, source: str, flag: str, newest: str, pattern: str) -> None:
    (work / "train.py").write_text(source)
    run = finished(launch("train.py", torchrun=False))
    assert said_in_words(run)[:2] == (pattern, f"{flag} '{{checkpoint}}'")
    assert (run.checkpoints[-1].name, run.checkpoints[-1].step) == (newest, 8)
    child = finished(resume(run, args=["--max_epochs", "3"]))
    assert child.info["args"] == [flag, str(work / newest), "--max_epochs", "3"]
    assert child.own_history["train/loss"].steps.tolist() == [8, 9, 10, 11] and steps_of(child) == [*range(12)]
    loss = child.history["train/loss"].values
    assert (loss[1:] < loss[:-1]).all(), "the weights continue"


@pytest.mark.slow
def test_checkpoints_of_a_ddp_program_by_torch_save_and_dcp_are_found(work: Path) -> None:
    parent = finished(launch("ddp_saves.py", nproc_per_node=2, args=["--out_dir", "o"]))
    assert {one.name: one.step for one in parent.checkpoints if "dcp" in one.name} == {
        f"o/dcp_step{step}": step for step in (10, 20, 30)
    }
    assert all(len(list(one.path.glob("*.distcp"))) == 2 for one in parent.checkpoints if "dcp" in one.name)
    snapshot = next(one for one in parent.checkpoints if one.name == "o/snapshot.pt")
    assert planned_resume(parent, snapshot).args == ("--out_dir", "o", "--resume", str(work / "o/snapshot.pt"))
