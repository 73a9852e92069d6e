"""Trainings of any recipe, for tests: in this process or started by hand, and what two equal ones have in common."""

import contextlib
import csv
import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_mlm import write_texts

from nbtools.config import TrainConfig
from nbtools.data.text_classification import occupations
from nbtools.launcher.checks.step_count import schedule
from nbtools.project import Project
from nbtools.recipes import RECIPES, recipe_of
from nbtools.run.checkpoints import Checkpoint, checkpoints_in
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir, run_folders
from nbtools.training.engine import checkpoint
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.engine.worker import run
from nbtools.training.llm_gan.dataset import INSTRUCTION, build_tokenizer

from forked_rank import launched_ranks, start_ranks


def _small(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"batch_size": 8, "max_steps": 6, "learning_rate": 1e-2, "test_fraction": 0.0}
    values |= {"num_layers": 1, "num_heads": 2, "hidden_size": 16}
    return {**values, "log_every": 1, "eval_every": 3, "checkpoint_every": 3, "keep_last": 50, **changes}


_TEXTS: dict[str, Any] = {"dataset": "texts", "sequence_length": 16, "vocab_size": 60, "min_words": 1}
_CODES: dict[str, Any] = {"num_hash_buckets": 128, "num_decoder_layers": 1, "num_decoder_heads": 2, "max_codes": 2}
_GRID: dict[str, Any] = {"grid_size": 3, "horizon": 4, "num_histories": 4, "num_episodes": 5, "sequence_length": 8}
_GAME: dict[str, Any] = {"num_sequences": 100, "num_symbols": 8, "sequence_length": 6, "eval_samples": 30}
_GAME |= {"generator_warmup_steps": 2, "judge_warmup_steps": 2, "judge_accuracy": 0.0, "judge_steps": 2}
_GAME |= {"kl_to_start": True}
TINY: dict[str, dict[str, Any]] = {
    "mlm_pretraining": _small(**_TEXTS, epochs=5),
    "masked_diffusion": _small(**_TEXTS, epochs=50, random_length_share=0.2, eval_draws=20, sample_length=8),
    "text_classification": _small(**_CODES, dataset="data.csv", validation_share=0.2, epochs=5),
    "algorithm_distillation": _small(**_GRID, epochs=50, test_share=0.25, eval_rollouts=3, eval_episodes=8),
    "llm_gan": _small(**_GAME, max_steps=8, epochs=10, learning_rate=1e-3, checkpoint_every=1),
}
"""Values of a training of a second, by recipe; `write_inputs` makes their data."""

ADAPTED: dict[str, dict[str, Any]] = {
    "mlm_pretraining": {"model_name": "base", "lora_targets": ("query", "key", "value")},
    "masked_diffusion": {"model_name": "base"},
    "text_classification": {"model_name": "base"},
    "llm_gan": {"model_name": "base/judge", "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj")}
    | {"dataset": "stories.csv", "prompt_length": 32, "min_chars": 20, "sequence_length": 8},
}
"""What makes a TINY training one of an adapter on a pretrained model, by recipe; `write_base` makes the model."""

SAME_ADAPTER = """
import torch
from peft.tuners.lora import LoraLayer

real = LoraLayer.reset_lora_parameters

def reset(*args, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        real(*args, **options)

LoraLayer.reset_lora_parameters = reset
"""
"""Before a script starts: first values of adapters do not depend on what was drawn before."""

FLOAT64 = """
import torch
from nbtools.training.engine.worker import Worker
from transformers.models.modernbert import modeling_modernbert as modernbert

wrap, narrow = Worker.wrap, torch.Tensor.float
Worker.wrap = lambda worker, module, **options: wrap(worker, module.double(), **options)
torch.Tensor.float = lambda tensor: tensor.double() if tensor.ndim or tensor.dtype.is_floating_point else narrow(tensor)

def turned(query, key, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(part * cos + modernbert.rotate_half(part) * sin for part in (query, key))

modernbert.apply_rotary_pos_emb = turned
"""
"""Before a script starts: weights, gradients and losses in double precision, in every recipe.

ModernBERT turns queries and keys in single precision: there the last bit of a double may become that of a single.
"""

_FEW_CODES = {"61110", "04217", "83110", "80110", "99910", "-3"}
OCCUPATIONS = [row for row in occupations.rows(1, 2000) if set(row.codes) <= _FEW_CODES][:160]

CLOCKED = ("time", "train/tokens_per_s", "train/samples_per_s", "train/data_wait", "train/peer_wait")
"""Values of a metric row that differ between two equal trainings."""


def write_csv(path: Path, rows: list[tuple[str, str, tuple[str, ...]]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["occ1", "lang", "code1", "code2"])
        writer.writerows([text, lang, *(*codes, "")[:2]] for text, lang, codes in rows)
    return path


def write_inputs(key: str, project: Project) -> None:
    """Write what the TINY values of a recipe read: 30 documents, prompts with answers, 160 occupations, or nothing."""
    root = project.root
    if key in ("mlm_pretraining", "masked_diffusion"):
        write_texts(root / "texts", 40 if key == "mlm_pretraining" else 15)
        pairs = [{"prompt": f"say {n} ", "answer": str(n) * (n % 3 + 1)} for n in range(40)]
        (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    if key == "text_classification":
        write_csv(root / "data.csv", [(row.text, row.lang, row.codes) for row in OCCUPATIONS])


class Planted:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def write_base(key: str, project: Project) -> None:
    """Write the pretrained model of ADAPTED, in the files of real ones: BERT, LLaDA, CANINE, or a GPT-2 and a Llama."""
    base = project.root / "base"
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    if key == "mlm_pretraining":
        base.mkdir()
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(40))]
        (base / "vocab.txt").write_text("\n".join(words))
        transformers.BertTokenizerFast.from_pretrained(base).save_pretrained(base)
        transformers.BertForMaskedLM(
            transformers.BertConfig(vocab_size=45, max_position_embeddings=32, **size)
        ).save_pretrained(base)
    elif key == "masked_diffusion":
        shutil.copytree(Path(__file__).parent / "training" / "masked_diffusion" / "llada_tiny", base)
    elif key == "text_classification":
        transformers.CanineModel(
            transformers.CanineConfig(**size, num_hash_buckets=128, max_position_embeddings=128)
        ).save_pretrained(base)
    else:
        stories = [f"the cat,noir,the dog number {number} runs very far . it sleeps !" for number in range(120)]
        (project.root / "stories.csv").write_text("\n".join(["title,genre,human_story", *stories]))
        save_pair(base)
        settings = base / "judge" / "config.json"  # a divided batch would draw other dropouts
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "classifier_dropout": 0.0}))


def train_here(
    project: Project,
    config: TrainConfig,
    resume_from: Path | None = None,
    files: RunDir | None = None,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> RunDir:
    """Train in this process, in a run directory as the launcher makes it."""
    torch.set_num_threads(1)
    files = files or RunDir.create(project.runs, recipe_of(config).key)
    files.lock.touch()
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(files.path))
    run(importlib.import_module(f"{recipe_of(config).module}.train").train, Flags(config, resume_from=resume_from))
    return files


def train_model(project: Project, key: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Path, Any]:
    """Train a recipe with its TINY values in this process; return what its `Predictor` takes."""
    write_inputs(key, project)
    config = RECIPES[key].config_class(**{**TINY[key], **changes})
    files = train_here(project, config, monkeypatch=monkeypatch)
    return checkpoints_in(files.checkpoints)[-1].path / "model", config


def rows(files: RunDir, without: Collection[str] = CLOCKED) -> list[dict[str, Any]]:
    """Metric rows without what differs between two equal runs."""
    parsed = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in without} for row in parsed]


def gradients_of(
    train: Callable[[Any], RunDir], config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """Train in this process; return the gradients of all steps, one weight after the other, and the metric rows."""
    gradients: list[torch.Tensor] = []
    real = Optimizer.step

    def spy(optimizer: Optimizer, step: int, rate: float | None = None) -> None:
        gradients.extend(weight.grad.clone() for weight in optimizer.weights if weight.grad is not None)
        real(optimizer, step, rate)

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", spy)
        return gradients, rows(train(config))


def assert_same_gradients(whole: list[torch.Tensor], divided: list[torch.Tensor]) -> None:
    """Two ways of dividing a batch give one step, but for the last digits of sums in another order."""
    assert len(whole) == len(divided) > 8
    assert any(gradient.abs().max() > 1e-4 for gradient in whole)
    for one, other in zip(whole, divided, strict=True):
        assert torch.allclose(one, other, atol=5e-6, rtol=1e-3)


def assert_same_checkpoints(first: Path, second: Path) -> None:
    """Two checkpoints hold the same weights, optimizer and random numbers, to the bit."""
    claims = [Checkpoint.read(path).manifest for path in (first, second)]
    assert claims[0]["samples"] == claims[1]["samples"]
    assert claims[0]["files"].keys() == claims[1]["files"].keys()
    for name, claim in claims[0]["files"].items():
        if name.endswith(".pt"):  # equal content may be pickled in two ways
            assert_equal(*(checkpoint.load_state(path, name) for path in (first, second)), name)
        else:
            assert claim == claims[1]["files"][name], name


def trained_as_shown(trained: Callable[..., RunDir], config: TrainConfig, root: Path) -> tuple[RunDir, dict[str, Any]]:
    """Train to the end with the numbers of samples and steps that the form had shown: they are among those recorded."""
    expected = schedule(config, 1, root=root)
    files = trained(config)
    derived = json.loads(files.config.read_text())["derived"]
    assert {**derived, "note": ""} == {**derived, **vars(expected)}
    assert json.loads(files.finished.read_text())["why"] == "completed"
    return files, derived


def assert_equal(first: Any, second: Any, where: str = "") -> None:
    """Nested values and tensors are equal to the bit."""
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key, value in first.items():
            assert_equal(value, second[key], f"{where}/{key}")
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype, where
        assert torch.equal(first, second), where
    elif isinstance(first, list | tuple) and any(isinstance(item, torch.Tensor) for item in first):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_equal(one, other, f"{where}/{number}")
    else:
        assert first == second, where


# --- real processes -------------------------------------------------------------------------------

_SAVE_GRADIENTS = """
import os

import torch
from nbtools.training.engine.optimizer import Optimizer

real = Optimizer.step

def step(optimizer, *args):
    torch.save([weight.grad for weight in optimizer.weights], f"gradients-{os.environ.get('RANK', '0')}.pt")
    real(optimizer, *args)

Optimizer.step = step
"""
"""Every rank writes its averaged gradients into the project's folder, in place of those of the step before."""


def script_text(config: TrainConfig, more: str = "") -> str:
    """A script for two processes, with `more` lines before it starts."""
    recipe = recipe_of(config)
    name = recipe.config_class.__name__
    return (
        f"from nbtools import Launch\nfrom nbtools.recipes import {name}\nfrom {recipe.module} import main\n\n"
        f"launch = Launch(nproc_per_node=2)\n\nconfig = {name}(**{config.model_dump()!r})\n{more}\n"
        'if __name__ == "__main__":\n    main(config)\n'
    )


class ByHand:
    """Scripts started under torchrun or plain python, whose output goes to files."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.script = project.scripts / "tiny.py"
        self._started: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}

    def __call__(
        self, config: TrainConfig, *args: str | Path, nproc: int | None = 2, more: str = "", name: str = "tiny"
    ) -> "subprocess.Popen[bytes]":
        """Write a script with this config and `more` lines, and start it; without `nproc` as one plain process."""
        script = self.project.scripts / f"{name}.py"
        script.write_text(script_text(config, more))
        command = [sys.executable]
        if nproc is not None:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
        log = self.project.root / f"{name}-{len(self._started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(script), *map(str, args)],
                cwd=self.project.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        self._logs[process.pid] = log
        return process

    def forked(
        self,
        config: TrainConfig | Path,
        *args: str | Path,
        nproc: int = 2,
        per_node: int | None = None,
        more: str = "",
        timeout_s: float = 250,
    ) -> Run:
        """Run a script, or one written here, to its end on ranks that need no import of torch; return its run."""
        if not isinstance(config, Path):
            self.script.write_text(script_text(config, more))
        before = {*run_folders(self.project.runs)}
        script = config if isinstance(config, Path) else self.script
        ranks = launched_ranks(nproc, free_port(), per_node)
        codes, said = self.ended(script, *args, variables=ranks, timeout_s=timeout_s)
        assert codes == [0] * nproc, said[-3000:]
        (made,) = {*run_folders(self.project.runs)} - before
        finished = Run(made)
        assert finished.state is RunState.SUCCEEDED
        return finished

    def ended(
        self,
        script: Path,
        *args: str | Path,
        nproc: int = 2,
        variables: Sequence[Mapping[str, str]] = (),
        timeout_s: float = 250,
    ) -> tuple[list[int | None], str]:
        """Run a script on forked ranks; return their exit codes, and all that they have printed.

        With `variables` each process has its own, in place of those of a launcher.
        """
        log = self.project.root / "forked.log"
        log.unlink(missing_ok=True)
        variables = variables or launched_ranks(nproc, free_port())
        ranks = start_ranks(script, [*map(str, args)], variables, cwd=self.project.root, log=log)
        try:
            deadline = time.monotonic() + timeout_s
            for rank in ranks:
                rank.join(max(0, deadline - time.monotonic()))
            return [rank.exitcode for rank in ranks], log.read_text(errors="replace")
        finally:
            for rank in ranks:
                rank.kill()

    def said(self, process: "subprocess.Popen[bytes]") -> str:
        """What a process and its ranks have printed."""
        return self._logs[process.pid].read_text(errors="replace")

    def completed(self, process: "subprocess.Popen[bytes]", timeout_s: float = 300) -> Run:
        """Wait for a process to end well; its run is the newest one."""
        assert process.wait(timeout_s) == 0, self.said(process)[-3000:]
        finished = Run(run_folders(self.project.runs)[0])
        assert finished.state is RunState.SUCCEEDED
        return finished

    def demo(self, key: str, *args: str | Path, more: str = "", timeout_s: float = 900, **changes: Any) -> Run:
        """Run the preset cpu_demo of a recipe, of at most a thousand steps, on two ranks to its end."""
        config, _ = RECIPES[key].preset("cpu_demo")
        assert config.max_steps is not None and config.max_steps <= 1000
        return self.completed(self(config.replace(**changes), *args, more=more), timeout_s)

    def gradients(self, config: TrainConfig, nproc: int) -> tuple[Run, list[torch.Tensor]]:
        """Run a script to its end on forked ranks; return its run and the gradients that all ranks share.

        They are those of the last step.
        """
        finished = self.forked(config, nproc=nproc, more=_SAVE_GRADIENTS)
        saved = [torch.load(self.project.root / f"gradients-{rank}.pt", weights_only=True) for rank in range(nproc)]
        for other in saved[1:]:
            assert all(torch.equal(*pair) for pair in zip(saved[0], other, strict=True))
        return finished, saved[0]

    def kill(self) -> None:
        """End what is left; ranks follow their agent."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port that is free now and that no outgoing connection takes by chance."""
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, max(lowest_ephemeral, 10_100))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def by_hand(project: Project) -> Iterator[ByHand]:
    """Start scripts, and leave nothing behind."""
    start = ByHand(project)
    try:
        yield start
    finally:
        start.kill()


# --- tiny pretrained models -----------------------------------------------------------------------

CHAT = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|writer|>{% endif %}"
)
"""A template as chat models have it."""
WORDS = (
    "title : the dog cat a very long of many words . ! it runs far sleeps and sleep",
    "text human which was by 1 2 { } \\ boxed",
    INSTRUCTION,
)


def save_tokenizer(folder: Path, texts: Sequence[str], chat: str | None = None) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of the words of `texts`, with a chat template or without."""
    tokenizer = build_tokenizer("words", texts, 300)
    if chat:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|writer|>"]})
        tokenizer.chat_template = chat
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_pair(root: Path, chat: str | None = CHAT, **changes: Any) -> transformers.PreTrainedTokenizerFast:
    """A GPT-2 to write and a Llama to judge, with one tokenizer."""
    for name in ("writer", "judge"):
        tokenizer = save_tokenizer(root / name, WORDS, chat)
    torch.manual_seed(0)
    size = len(tokenizer)
    gpt2 = {"n_positions": 96, "n_embd": 8, "n_layer": 1, "n_head": 2, **changes}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=size + 3, **gpt2)).save_pretrained(root / "writer")
    llama: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    llama |= {"vocab_size": size + 5, "num_attention_heads": 2, "max_position_embeddings": 160}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama)).save_pretrained(root / "judge")
    return tokenizer
