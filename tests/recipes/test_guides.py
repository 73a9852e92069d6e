"""The command lines of five older programs train here as their guides say; `tests/promises.py` lists the promises."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nbtools.config import Launch
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.script.script import write_script

from trainings import free_port

TESTS = Path(__file__).resolve().parents[1]


# --- the old command lines, as their guides have them -----------------------------------------------


TINY: dict[str, dict[str, Any]] = {
    "mlm_pretraining": {"num_layers": 1, "num_heads": 2, "hidden_size": 16, "sequence_length": 16, "min_words": 1},
    "masked_diffusion": {
        "num_layers": 1,
        "num_heads": 2,
        "hidden_size": 16,
        "sequence_length": 16,
        "min_words": 1,
        "eval_draws": 8,
        "sample_texts": 1,
        "sample_length": 4,
    },
    "text_classification": {"num_layers": 1, "hidden_size": 16, "num_hash_buckets": 128, "num_decoder_layers": 1},
    "algorithm_distillation": {"num_heads": 2, "num_histories": 2, "eval_rollouts": 1, "eval_episodes": 8},
    "llm_gan": {
        "num_layers": 1,
        "num_heads": 2,
        "hidden_size": 16,
        "generator_warmup_steps": 0,
        "judge_warmup_steps": 1,
        "judge_accuracy": 0.0,
        "eval_samples": 8,
    },
}


@pytest.fixture
def old(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a tiny script of each recipe, texts, and CSV files."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.chdir(project.root)
    (project.root / "texts").mkdir()
    for number in range(24):
        words = " ".join(f"w{(number + step * step) % 17}" for step in range(40))
        (project.root / "texts" / f"{number:02}.txt").write_text(words)
    for name, first in (("a", 0), ("b", 40), ("v", 80)):
        rows = [f"{title} {number},83110," for number, title in enumerate(["smith"] * 20, first)]
        rows += [f"{title} {number},61110,83110" for number, title in enumerate(["farmer"] * 20, first)]
        (project.root / f"{name}.csv").write_text("\n".join(["occ1,code1,code2", *rows]) + "\n")
    stories = [f"A tale,noir,Once upon a time there were {number} of them and they ran." for number in range(60)]
    (project.root / "stories.csv").write_text("\n".join(["title,genre,human_story", *stories]) + "\n")
    for key, values in TINY.items():
        config = RECIPES[key].config_class(**values, log_every=1, eval_every=2, checkpoint_every=2)
        write_script(config, f"tiny_{key}", Launch(nproc_per_node=2), project=project)
    return project


TORCHRUN = "-m torch.distributed.run"
OLD_LAUNCHER = "-m torch.distributed.launch"
ADDRESSES = "--nnodes=1 --node_rank=0 --master_addr=localhost --master_port={port}"
COMMANDS = {
    "L4": f"{TORCHRUN} --nproc_per_node=2 {ADDRESSES} {{masked_diffusion}} --data_dir texts "
    "--batch_size 1 --epochs 5 --fp16",
    "L5": "{masked_diffusion} --data_dir texts --batch_size 1 --epochs 5 --learning_rate 1e-5 --save_dir out --no_fp16",
    "M2": f"{TORCHRUN} --nproc_per_node=2 --master_port={{port}} {{mlm_pretraining}} --dataset texts --batch-size 4 "
    "--epochs 5 --lr 3e-5 --streaming true --max-samples 500k --local_rank 0",
    "O2": f"{OLD_LAUNCHER} --nproc_per_node=2 --master_port={{port}} {{text_classification}} --distributed "
    "--dataset a.csv --target-cols code1 code2 --save-path ./out --batch-size 8",
    "O3": f"{TORCHRUN} --nproc_per_node=2 --master_port={{port}} {{text_classification}} --train-data a.csv b.csv "
    "--val-data v.csv --save-dir ./out --batch-size 8 --formatter hisco",
    "A4": "{algorithm_distillation} --mixed_precision bf16 --train_batch_size 4 --test_batch_size 64 "
    "--gradient_accumulation_steps 2 --num_workers 1 --tf_n_embd 16 --tf_n_layer 1 --n_transit 40",
    "G3": f"{TORCHRUN} --nproc_per_node=2 --master_port={{port}} {{llm_gan}} --batch_size 16 --epochs 5 "
    "--save_checkpoints --checkpoint_freq 10 --data_path stories.csv --min_story_length 20 --max_story_length 40",
}
EXPECTED: dict[str, dict[str, Any]] = {
    "G3": {"batch_size": 16, "epochs": 5, "checkpoint_every": 10, "min_chars": 20, "max_chars": 40},
    "L4": {"dataset": "texts", "batch_size": 1, "epochs": 5, "precision": "fp16"},
    "L5": {"learning_rate": 1e-5, "save_dir": "out", "precision": "fp32"},
    "M2": {"dataset": "texts", "batch_size": 4, "learning_rate": 3e-5, "streaming": True, "max_samples": 500_000},
    "O2": {"dataset": "a.csv", "target_cols": ["code1", "code2"], "save_dir": "./out", "batch_size": 8},
    "O3": {"train_data": ["a.csv", "b.csv"], "val_data": "v.csv", "save_dir": "./out", "formatter": "hisco"},
    "A4": {"precision": "bf16", "batch_size": 4, "gradient_accumulation_steps": 2, "sequence_length": 40},
}


def command(key: str, *more: str) -> list[str]:
    scripts = {recipe: f"scripts/tiny_{recipe}.py" for recipe in TINY}
    return [sys.executable, *COMMANDS[key].format(port=free_port(), **scripts).split(), "--max_steps", "2", *more]


def run_of(project: Project) -> RunDir:
    (folder,) = run_folders(project.runs)
    return RunDir(folder)


@pytest.mark.promise(
    "guide-L4",
    "guide-L5",
    "guide-L7",
    "guide-A3",
    "guide-A4",
    "guide-O2",
    "guide-O3",
    "guide-O5",
    "guide-M2",
    "guide-M5",
    "guide-G3",
    "guide-G13",
)
@pytest.mark.slow
@pytest.mark.parametrize("key", COMMANDS)
def test_the_old_command_lines_train(old: Project, key: str) -> None:
    done = subprocess.run(command(key), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    files = run_of(old)
    ended, resolved = read_json(files.finished) or {}, (read_json(files.config) or {})["config"]
    assert (ended["why"], ended["step"]) == ("completed", 2)
    assert {name: resolved[name] for name in EXPECTED[key]} == EXPECTED[key]
    if resolved["save_dir"] is not None:
        assert (old.root / "out" / "model" / "config.json").is_file()


@pytest.mark.promise("guide-G2")
def test_the_presets_of_the_shell_script_of_the_gan() -> None:
    recipe = RECIPES["llm_gan"]
    presets = {name: recipe.preset(name) for name in ("test", "small", "full")}
    assert [config.epochs for config, _ in presets.values()] == [5, 20, 100]
    assert [launch.nproc_per_node for _, launch in list(presets.values())[:2]] == [2, 4]
    assert presets["full"][1].nproc_per_node == "gpu", "all GPUs of the machine that launches"
    assert presets["full"][0].checkpoint_every == 20
    assert presets["test"][0].model_dump()["model_name"] is None, "runs anywhere"
    for name in ("small", "full"):
        values = presets[name][0].model_dump()
        assert values["model_name"] == "meta-llama/Llama-3.2-1B-Instruct"
        assert (values["judging"], values["learning_rate"], values["precision"]) == ("verdicts", 1e-5, "bf16")
        assert values["batch_size"] * values["gradient_accumulation_steps"] == 32


@pytest.mark.promise("guide-L13", "guide-A12", "guide-A19")
@pytest.mark.slow
def test_the_banner_says_what_was_found(old: Project) -> None:
    done = subprocess.run(command("O3"), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert "=" * 60 in done.stdout
    assert lines["processes"].startswith("2, backend gloo") and lines["devices"].startswith("CPU")
    assert lines["batch"] == "8 per process x 1 accumulated x 2 processes = 16 samples per step"
    assert lines["precision"] == "fp32" and int(lines["parameters"].replace(",", "")) > 1000
    assert "a.csv, b.csv, v.csv" in lines["dataset"] and "vocabulary" in lines
    assert "save directory   ./out" in done.stdout


@pytest.mark.promise("guide-L12", "guide-A15", "guide-O10", "guide-M16")
@pytest.mark.slow
def test_two_nodes_started_by_hand_train_as_one(old: Project) -> None:
    port, started = free_port(), []
    for node in range(2):
        words = f"{TORCHRUN} --nnodes=2 --node_rank={node} --nproc_per_node=1 --master_addr=localhost"
        words += f" --master_port={port} scripts/tiny_mlm_pretraining.py --dataset texts --batch_size 4 --max_steps 2"
        started.append(subprocess.Popen([sys.executable, *words.split()], stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=250)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    files = run_of(old)
    assert (read_json(files.finished) or {})["step"] == 2
    assert (read_json(files.config) or {})["derived"]["world_size"] == 2
    assert "completed at step 2" in said[0] and "completed" not in said[1]


@pytest.mark.promise("guide-L11", "guide-G12")
@pytest.mark.slow
def test_the_callers_environment_reaches_every_rank(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbtools.launcher.launch import launch

    script = project.scripts / "tells.py"
    script.write_text(
        "import os, pathlib\n"
        "text = os.environ['NCCL_DEBUG'] + ' ' + os.environ['LOGLEVEL']\n"
        "pathlib.Path(os.environ['NBTOOLS_RUN_DIR'], 'told-' + os.environ['RANK']).write_text(text)\n"
    )
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("LOGLEVEL", "INFO")
    run = launch(script, nproc_per_node=2, gpus=())
    run.wait(120)
    assert [(run.dir / f"told-{rank}").read_text() for rank in range(2)] == ["INFO INFO", "INFO INFO"]
    assert "Starting elastic_operator" in run.log(), "torchrun itself tells more"
