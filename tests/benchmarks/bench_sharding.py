"""Sharding on CPUs: CPU per step and memory against DDP, time in save calls against a save that the loop waits for.

    python tests/benchmarks/bench_sharding.py [cpu] [memory] [save]

cpu: two gloo ranks, ten steps of either strategy in turn in the same processes, CPU seconds of both ranks (goal: fsdp
at most 2.2 x ddp at 4 M parameters, told at 50 M). memory: four ranks, 100 M parameters, the largest anonymous memory
(`RssAnon`) of a rank above that of one that has only imported the same libraries (goal: at most 0.45 x ddp). save: two
ranks, 400 MB of weights and moments every 50 steps, seconds of the loop in save calls, the wait for the save before
included (goal: at most 0.3 x a save that the loop waits for).
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import ModernBertConfig, ModernBertForMaskedLM

from nbtools.config import TrainConfig
from nbtools.run.checkpoints import Progress
from nbtools.training.engine import checkpoint
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.mlm_pretraining.train import MaskedLM
from nbtools.training.sharding.fsdp import release, shard
from nbtools.training.sharding.saves import ShardedSaves, copied
from nbtools.training.text.adapter import saved_weights

CPU = torch.device("cpu")
SHAPES = {"4M": (256, 4, 4000), "33M": (512, 8, 10_000), "50M": (512, 14, 10_000), "100M": (768, 13, 10_000)}
"""Width, layers and words."""


def built(shape: str) -> MaskedLM:
    width, layers, words = SHAPES[shape]
    ids = dict.fromkeys(("pad_token_id", "cls_token_id", "bos_token_id", "sep_token_id", "eos_token_id"), 0)
    size = ModernBertConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        **ids,
    )
    return MaskedLM(ModernBertForMaskedLM(size))


class Training:
    """A model under one of the strategies, and its optimizer."""

    def __init__(self, strategy: str, shape: str) -> None:
        torch.manual_seed(0)
        self.masked_lm = built(shape)
        self.model: torch.nn.Module = self.masked_lm
        if strategy == "fsdp":
            shard(self.masked_lm, CPU, None, dist.get_world_size())
        else:
            self.model = DistributedDataParallel(self.masked_lm, gradient_as_bucket_view=True)
        self.optimizer = Optimizer(self.model, TrainConfig(), 1000, CPU)
        self.batch = torch.randint(1, 100, (8, 64)), torch.arange(10).expand(8, 10), torch.randint(1, 100, (8, 10))

    def steps(self, count: int) -> float:
        """Return the CPU seconds of so many steps in this process."""
        began = time.process_time()
        for step in range(1, count + 1):
            self.optimizer.backward(self.model(*self.batch) / 80)
            self.optimizer.step(step)
        return time.process_time() - began


def cpu() -> None:
    for shape, rounds in (("4M", 8), ("50M", 3)):
        trainings = {strategy: Training(strategy, shape) for strategy in ("ddp", "fsdp")}
        seconds: dict[str, list[float]] = {"ddp": [], "fsdp": []}
        for training in trainings.values():
            training.steps(2)
        for _ in range(rounds):
            for strategy, training in trainings.items():
                seconds[strategy].append(summed(training.steps(10)) / 10)
        ddp, fsdp = (statistics.median(seconds[strategy]) for strategy in ("ddp", "fsdp"))
        num_parameters = sum(weight.numel() for weight in built(shape).parameters()) / 1e6
        say(f"{num_parameters:.0f} M: ddp {1000 * ddp:.0f} ms, fsdp {1000 * fsdp:.0f} ms, {fsdp / ddp:.2f} x")


def memory(strategy: str) -> None:
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
            peak[0] = max(peak[0], int(found[1]) / 1000 if found else 0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    if strategy == "imports":
        time.sleep(0.5)
    else:
        training = Training(strategy, "100M")
        at_start, peak[0] = peak[0], 0.0
        training.steps(3)
        say(f"  {strategy}: {at_start:.0f} MB while the model is built and divided")
    done.set()
    thread.join()
    largest = torch.tensor(peak[0])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    say(json.dumps({strategy: float(largest)}))


def save(folder: Path) -> None:
    training, rank = Training("fsdp", "33M"), dist.get_rank()
    saves = ShardedSaves(rank, 2, dist.new_group(backend="gloo"))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(1, 17):
        waits = (number - 1) // 4 % 2 == 1  # four saves of a kind, so that each waits for one of its own
        training.steps(50)
        if number % 4 == 1:
            saves.wait()
        began = time.monotonic()
        saves.wait()
        release(training.masked_lm)
        shards, state = copied({"": saved_weights(training.masked_lm.model)}, training.optimizer.state_dict(), rank)

        def write(write_shards: object, number: int = number, state: object = state) -> None:
            checkpoint.save(
                folder,
                Progress(step=number),
                write_model=lambda path: None,
                write_shards=write_shards,  # type: ignore[arg-type]
                state=state,  # type: ignore[arg-type]
                rank_states=[{}, {}],
                metrics={},
                attempt=1,
                keep_last=1,
            )

        saves.start(shards, write)
        if waits:
            saves.wait()
        seconds[waits].append(time.monotonic() - began)
    saves.wait()
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors")) / 1e6
    later, at_once = statistics.median(seconds[False]), statistics.median(seconds[True])
    say(f"{size:.0f} MB: asynchronous {later:.2f} s, synchronous {at_once:.2f} s, {later / at_once:.2f} x")


def summed(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def on_ranks(count: int, *words: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", __file__]
    done = subprocess.run([*command, "on-rank", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main(asked: list[str]) -> None:
    if asked[:1] == ["on-rank"]:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        {"cpu": cpu, "memory": memory, "save": save}[asked[1]](*map(Path if asked[1] == "save" else str, asked[2:]))
        dist.destroy_process_group()
        return
    if not asked or "cpu" in asked:
        print(on_ranks(2, "cpu"), end="")
    if not asked or "memory" in asked:
        printed = [on_ranks(4, "memory", kind) for kind in ("imports", "ddp", "fsdp")]
        print(*(line for text in printed for line in text.splitlines() if not line.startswith("{")), sep="\n")
        found = [next(iter(json.loads(text.splitlines()[-1]).values())) for text in printed]
        imports, ddp, fsdp = found
        above = (fsdp - imports) / (ddp - imports)
        print(f"100 M, 4 ranks: imports {imports:.0f}, ddp {ddp:.0f}, fsdp {fsdp:.0f} MB per rank: {above:.2f} x")
    if not asked or "save" in asked:
        with tempfile.TemporaryDirectory() as folder:
            print(on_ranks(2, "save", folder), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
