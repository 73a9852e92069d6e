"""The command lines of five older programs train here as their guides say; `tests/promises.yaml` lists the promises."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CanineConfig, CanineModel, CanineTokenizer, LlamaConfig, LlamaForCausalLM

from nbtools.config import Launch
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.script.script import write_script
from nbtools.training.masked_diffusion.llada import load_llada

from trainings import CHAT, WORDS, ByHand, by_hand, free_port, save_tokenizer

TESTS = Path(__file__).resolve().parents[1]


# --- the old command lines, as their guides have them -----------------------------------------------


SIZE: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_size": 16}
TEXT = {**SIZE, "sequence_length": 16, "min_words": 1}
WARM_UPS = {"generator_warmup_steps": 0, "judge_warmup_steps": 1, "judge_accuracy": 0.0}
TINY: dict[str, dict[str, Any]] = {
    "mlm_pretraining": TEXT,
    "masked_diffusion": {**TEXT, "eval_draws": 8, "sample_texts": 1, "sample_length": 4},
    "text_classification": {"num_layers": 1, "hidden_size": 16, "num_hash_buckets": 128, "num_decoder_layers": 1},
    "algorithm_distillation": {"num_heads": 2, "num_histories": 2, "eval_rollouts": 1, "eval_episodes": 8},
    "llm_gan": {**SIZE, **WARM_UPS, "eval_samples": 8},
}


@pytest.fixture
def old(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a tiny script of each recipe, texts, and CSV files."""
    project = cpu_project
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
    "O3": {"train_data": ["a.csv", "b.csv"], "val_data": ["v.csv"], "save_dir": "./out", "formatter": "hisco"},
    "A4": {"precision": "bf16", "batch_size": 4, "gradient_accumulation_steps": 2, "sequence_length": 40}
    | {"eval_batch_size": 64, "num_workers": 1, "hidden_size": 16, "num_layers": 1},
}


def fork(start: ByHand, key: str) -> Run:
    """Run the script of a command with its flags on forked ranks: two under torchrun, else one.

    `test_launchers` shows that each launcher starts a script, and the test of two nodes that torchrun takes addresses.
    """
    scripts = {recipe: f"scripts/tiny_{recipe}.py" for recipe in TINY}
    words = [*COMMANDS[key].format(port=0, **scripts).split(), "--max_steps", "2"]
    (script,) = (index for index, word in enumerate(words) if word.endswith(".py"))
    nproc = 2 if "-m" in words else 1
    return start.forked(start.project.root / words[script], *words[script + 1 :], nproc=nproc)


def assert_banner_of_o3(said: str) -> None:
    """The banner says what was found."""
    lines = dict(line.split(maxsplit=1) for line in said.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert "=" * 60 in said
    assert lines["processes"].startswith("2, backend gloo") and lines["devices"].startswith("CPU")
    assert lines["batch"] == "8 per process x 1 accumulated x 2 processes = 16 samples per step"
    assert lines["precision"] == "fp32 (auto)" and int(lines["parameters"].replace(",", "")) > 1000
    assert "a.csv, b.csv, v.csv" in lines["dataset"] and "vocabulary" in lines
    assert "save directory   ./out" in said


@pytest.mark.promise("guide-L4", "guide-L5", "guide-L7", "guide-A3", "guide-A4", "guide-O2", "guide-O3", "guide-O5")
@pytest.mark.promise("guide-M2", "guide-M5", "guide-G3", "guide-G13", "guide-L13", "guide-A12", "guide-A19")
@pytest.mark.slow
@pytest.mark.parametrize("key", COMMANDS)
def test_the_old_command_lines_train_and_the_banner_says_what_was_found(old: Project, start: ByHand, key: str) -> None:
    run = fork(start, key)
    files = run.files
    ended, resolved = read_json(files.finished) or {}, (read_json(files.config) or {})["config"]
    assert (ended["why"], ended["step"]) == ("completed", 2)
    assert {name: resolved[name] for name in EXPECTED[key]} == EXPECTED[key]
    if resolved["save_dir"] is not None:
        assert (old.root / "out" / "model" / "config.json").is_file()
    if key == "O3":
        assert_banner_of_o3(run.log())


# --- the same with pretrained models, in the files of the real ones ---------------------------------


@pytest.fixture
def start(old: Project) -> Iterator[ByHand]:
    with by_hand(old) as started:
        yield started


def assert_fine_tuned(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], num_steps: int) -> None:
    """The weights are those of `before` but for what `num_steps` steps of Adam at 1e-5 can change."""
    moved = [(after[name].float() - weight.float()).abs().max().item() for name, weight in before.items()]
    assert 0 < max(moved) < 2e-5 * num_steps
    assert sum(step > 0 for step in moved) > 0.8 * len(moved), "all layers are trained"


def derived(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = (read_json(run.config) or {})["derived"]
    return found


@pytest.mark.promise("guide-L4", "guide-L7", "safety-llada")
@pytest.mark.slow
def test_the_guides_command_fine_tunes_a_llada(start: ByHand, tmp_path: Path) -> None:
    shutil.copytree(TESTS / "training" / "masked_diffusion" / "llada_tiny", tmp_path / "llada")
    for number in range(12, 24):
        (start.project.root / "texts" / f"{number}.txt").unlink()
    flags = ["--data_dir", "texts", "--model_name", str(tmp_path / "llada"), "--batch_size", "1", "--epochs", "5"]
    recipe = RECIPES["masked_diffusion"]
    config = recipe.config_class(sequence_length=16, min_words=1, eval_draws=8, sample_texts=1, sample_length=4)
    ended = start.forked(config.replace(max_steps=3), *flags, "--learning_rate", "1e-5", "--fp16")
    num_steps = derived(ended.files)["total_steps"]
    assert num_steps > 3, "--epochs lifts the script's own cap"
    assert num_steps % 5 == 0
    assert (read_json(ended.files.config) or {})["config"]["precision"] == "fp16"
    before, after = load_llada(str(tmp_path / "llada")), load_llada(str(ended.files.outputs / "model"))
    assert_fine_tuned(before.state_dict(), after.state_dict(), num_steps)


@pytest.mark.promise("guide-O2", "guide-O3")
@pytest.mark.slow
@pytest.mark.parametrize("guide", ["finetune.py", "train_mixer.py"])
def test_the_guides_commands_train_heads_on_a_canine(start: ByHand, tmp_path: Path, guide: str) -> None:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    canine = CanineModel(CanineConfig(**size, num_hash_buckets=128, max_position_embeddings=128))
    folder = tmp_path / "canine-s"
    canine.config.save_pretrained(folder)
    torch.save(canine.state_dict(), folder / "pytorch_model.bin")  # the hub's canine-s has no safetensors
    CanineTokenizer().save_pretrained(folder)
    flags = {
        "finetune.py": "--dataset a.csv --target-cols code1 code2 --save-path ./output --batch-size 8",
        "train_mixer.py": "--train-data a.csv b.csv --val-data v.csv --save-dir ./output --formatter hisco",
    }[guide]
    values = {"max_codes": 2, "batch_size": 8, "epochs": 2, "learning_rate": 1e-5, "num_decoder_layers": 1}
    config = RECIPES["text_classification"].config_class(**values, num_decoder_heads=2)
    ended = start.forked(config, "--distributed", *flags.split(), "--model_name", str(folder))
    resolved = (read_json(ended.files.config) or {})["config"]
    assert resolved["formatter"] == ("hisco" if guide == "train_mixer.py" else None)
    after = CanineModel.from_pretrained(start.project.root / "output" / "model")
    assert_fine_tuned(canine.state_dict(), after.state_dict(), derived(ended.files)["total_steps"])


@pytest.mark.promise("guide-G2", "guide-G3")
@pytest.mark.slow
def test_the_guides_command_sets_two_llamas_against_each_other(start: ByHand, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = save_tokenizer(
        tmp_path / "llama", (*WORDS, "A tale noir Once upon time there were of them and they"), CHAT
    )
    size: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    size |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"rope_theta": 5e5, "original_max_position_embeddings": 64}
    settings = LlamaConfig(vocab_size=len(tokenizer), **size, tie_word_embeddings=True, rope_parameters=scaling)
    llama = LlamaForCausalLM(settings)
    llama.to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    shutil.copytree(tmp_path / "llama", tmp_path / "judge")
    config, _ = RECIPES["llm_gan"].preset("small")
    config = config.replace(sequence_length=16, prompt_length=24, max_judge_tokens=8, judge_warmup_steps=1)
    config = config.replace(judge_accuracy=0.0, gradient_accumulation_steps=1, eval_samples=8)
    flags = ["--batch_size", "16", "--epochs", "5", "--save_checkpoints", "--checkpoint_freq", "10"]
    flags += ["--data_path", "stories.csv", "--min_story_length", "20", "--max_story_length", "40"]
    names = ["--model_name", str(tmp_path / "llama"), "--judge_name", str(tmp_path / "judge")]
    ended = start.forked(config, *flags, *names)
    num_steps = derived(ended.files)["total_steps"]
    assert num_steps == 5, "54 training texts, 32 in a step"
    saved = ended.files.outputs
    before = llama.state_dict()
    for part in ("generator", "judge"):
        after = AutoModelForCausalLM.from_pretrained(saved / "model" / part)
        assert isinstance(after, LlamaForCausalLM)
        assert_fine_tuned(before, after.state_dict(), num_steps)


# --- presets and nodes ------------------------------------------------------------------------------


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


@pytest.mark.promise("guide-L4", "guide-L12", "guide-A3", "guide-A15", "guide-O10", "guide-M16")
@pytest.mark.slow
def test_two_nodes_started_by_hand_train_as_one(old: Project) -> None:
    port, started = free_port(), []
    for node in range(2):
        words = f"{TORCHRUN} --nnodes=2 --node_rank={node} --nproc_per_node=1 --master_addr=localhost"
        words += f" --master_port={port} scripts/tiny_mlm_pretraining.py --dataset texts --batch_size 4 --max_steps 2"
        started.append(subprocess.Popen([sys.executable, *words.split()], stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    (folder,) = run_folders(old.runs)
    files = RunDir(folder)
    assert (read_json(files.finished) or {})["step"] == 2
    assert (read_json(files.config) or {})["derived"]["world_size"] == 2
    assert "completed at step 2" in said[0] and "completed" not in said[1]
