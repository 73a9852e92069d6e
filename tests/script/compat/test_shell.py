"""`scripts/NAME.sh`: what it runs, the words of older launchers that it takes, and when it is replaced."""

import stat
import subprocess
from pathlib import Path

import pytest
from fixture_types import Cli

from nbtools.cli.commands import main
from nbtools.config import Launch
from nbtools.project import Project
from nbtools.recipes import LLMGANConfig, MLMPretrainingConfig
from nbtools.script.compat.shell import shell_text
from nbtools.training.engine.flags import parse


@pytest.mark.promise("guide-L3")
def test_sh_writes_an_executable_script_that_passes_its_arguments_on(project: Project, tmp_path: Path) -> None:
    """torchrun is a stand-in here, found on PATH; the real one is used below."""
    assert main(["new", "mlm_pretraining", "fresh", "--preset", "cpu_demo", "--sh"]) == 0
    path = project.scripts / "fresh.sh"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "torchrun"
    stand_in.write_text('#!/bin/sh\necho "$PWD|$CUDA_VISIBLE_DEVICES|$*|$3"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{stand_in.parent}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "7", "CDPATH": "/usr:/"}
    done = subprocess.run([path, "--lr", "a b"], cwd="/", env=environment, capture_output=True, text=True, check=True)
    assert (
        done.stdout == f"{project.root}||--standalone --nproc-per-node=2 scripts/fresh.py --lr a b|scripts/fresh.py\n"
    )


def test_a_shell_script_names_the_gpus_and_threads_it_was_made_for() -> None:
    text = shell_text("fresh", Launch(nproc_per_node=2, gpus=(1, 3), omp_num_threads=4), "masked_diffusion")
    assert "\nexport CUDA_VISIBLE_DEVICES=1,3\nexport OMP_NUM_THREADS=4\nprocesses=2\n" in text
    assert "export" not in shell_text("fresh", Launch(), "masked_diffusion")


def test_a_shell_script_that_was_changed_is_only_replaced_by_force(project: Project, cli: Cli) -> None:
    words = ["new", "mlm_pretraining", "fresh", "--sh"]
    for _ in range(2):  # the same again is no change
        cli(*words)
    path = project.scripts / "fresh.sh"
    path.write_text(path.read_text() + "# mine\n")
    (project.scripts / "fresh.py").unlink()
    assert "fresh.sh: exists with other content" in cli(*words, code=2).stderr
    assert not (project.scripts / "fresh.py").exists(), "nothing is written by halves"
    cli(*words, "--force")
    assert "# mine" not in path.read_text()


def test_a_link_is_replaced_and_its_target_left_alone(project: Project, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (project.scripts / "fresh.sh").symlink_to(tmp_path / "theirs")
    words = ["new", "mlm_pretraining", "fresh", "--sh"]
    assert main(words) == 2
    assert main([*words, "--force"]) == 0
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (project.scripts / "fresh.sh").is_symlink()


STAND_IN = '#!/bin/sh\nshift\nprintf "%s\\n" "$@"\n'


def run_sh(project: Project, recipe: str, preset: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script of `--sh` with a torchrun that prints its arguments, one on each line."""
    assert main(["new", recipe, "fresh", "--preset", preset, "--sh"]) == 0
    bin_ = project.root / "bin"
    bin_.mkdir()
    (bin_ / "torchrun").write_text(STAND_IN)
    (bin_ / "torchrun").chmod(0o755)
    environment = {"PATH": f"{bin_}:/usr/bin:/bin"}
    path = project.scripts / "fresh.sh"
    return subprocess.run([path, *words], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.promise("guide-M3")
def test_the_words_of_run_multi_gpu_training_sh_become_flags(project: Project) -> None:
    done = run_sh(
        project, "mlm_pretraining", "h200_8gpu_standard", *["hf", "32", "5", "3e-5", "true", "--min-words", "7"]
    )
    assert (done.returncode, done.stderr) == (0, "")
    processes, script, *flags = done.stdout.splitlines()
    assert (processes, script) == ("--nproc-per-node=8", "scripts/fresh.py")
    config = parse(MLMPretrainingConfig(), flags).config
    values = (config.dataset, config.batch_size, config.epochs, config.learning_rate, config.streaming)
    assert values == ("hf", 32, 5, 3e-5, True)
    assert config.min_words == 7


@pytest.mark.promise("guide-L3")
@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ([], ["--nproc-per-node=2", "scripts/fresh.py"]),
        (["4"], ["--nproc-per-node=4", "scripts/fresh.py"]),
        (["2", "/a path/$(x)"], ["--nproc-per-node=2", "scripts/fresh.py", "--dataset=/a path/$(x)"]),
        (["4", "--lr", "1e-4"], ["--nproc-per-node=4", "scripts/fresh.py", "--lr", "1e-4"]),
    ],
)
def test_the_words_of_launch_training_sh_are_processes_and_dataset(
    project: Project, words: list[str], passed: list[str]
) -> None:
    assert run_sh(project, "masked_diffusion", "shakespeare_2gpu", *words).stdout.splitlines() == passed


@pytest.mark.promise("guide-G2")
@pytest.mark.parametrize(("word", "processes", "epochs"), [("test", "2", 5), ("small", "4", 20), ("full", "gpu", 100)])
def test_the_word_of_run_ddp_training_sh_sets_processes_and_epochs(
    project: Project, word: str, processes: str, epochs: int
) -> None:
    given, _, *flags = run_sh(project, "llm_gan", "test", word, "--batch_size", "16").stdout.splitlines()
    assert given == f"--nproc-per-node={processes}"
    config = parse(LLMGANConfig(), flags).config
    assert (config.epochs, config.batch_size) == (epochs, 16)


@pytest.mark.parametrize(
    ("recipe", "preset", "words", "said"),
    [
        ("mlm_pretraining", "cpu_demo", "hf 1 2 3 true more", "more: is not expected; usage: "),
        ("masked_diffusion", "cpu_demo", "many", "many: is not expected; usage: "),
        ("llm_gan", "cpu_demo", "tset", "tset: is not expected; usage: "),
    ],
)
def test_a_word_too_many_ends_in_one_line_before_torchrun(
    project: Project, recipe: str, preset: str, words: str, said: str
) -> None:
    done = run_sh(project, recipe, preset, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
