"""Sharding on CPUs, in parts that run alone: each prints its figures beside their goals.

    python tests/benchmarks/bench_sharding.py [step | memory | save | trainer] ...

- step: CPU seconds of both of two gloo ranks, steps of either strategy in turn in the same processes (goal: fsdp at
  most 2.2 x ddp at 4 M parameters, told at 50 M).
- memory: four ranks, 100 M parameters, the largest anonymous memory (`RssAnon`) of a rank above that of one that has
  only imported the same libraries (goal: at most 0.45 x ddp).
- save: two ranks, 400 MB of weights and moments every 50 steps, which are those of a model of 4 M parameters, so that
  they are short: seconds of the loop in save calls, the wait for the save before included (goal: at most 0.3 x a save
  that the loop waits for); and those of a save that ends a training.
- trainer: CPU time of a step of `mlm_pretraining` on two sharded ranks against `transformers.Trainer` with FSDP2 of
  accelerate (goal: at least 1.0 x its rate, losses equal).
"""

import contextlib
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import bench_hf_trainer
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import ModernBertConfig, ModernBertForMaskedLM

from nbtools.config import TrainConfig
from nbtools.run.checkpoints import Progress
from nbtools.training.engine import checkpoint
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.mlm_pretraining.train import MaskedLM
from nbtools.training.sharding.fsdp import Layout, release, shard, without_weights
from nbtools.training.sharding.sharded_checkpoint import ShardedSaves, copied
from nbtools.training.text.adapter import saved_weights

CPU = torch.device("cpu")
SHAPES = {"4M": (256, 5, 4000), "33M": (512, 11, 10_000), "50M": (512, 17, 10_000), "100M": (768, 16, 10_000)}
"""Width, layers and words."""
NUM_RANKS = {"memory": 4}
SAVE_EVERY = 50


def model_of(shape: str) -> ModernBertForMaskedLM:
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
    return ModernBertForMaskedLM(size)


class Training:
    """A model under one of the strategies, and its optimizer; batches of `batch_size` x `num_tokens`."""

    def __init__(self, strategy: str, shape: str, batch_size: int, num_tokens: int) -> None:
        torch.manual_seed(0)
        with without_weights() if strategy == "fsdp" and dist.get_rank() else contextlib.nullcontext():
            self.masked_lm = MaskedLM(model_of(shape))
        self.model: torch.nn.Module = self.masked_lm
        if strategy == "fsdp":
            shard(self.masked_lm, CPU, None, Layout(dist.get_world_size()))
        else:
            self.model = DistributedDataParallel(self.masked_lm, gradient_as_bucket_view=True)
        self.optimizer = Optimizer(self.model, TrainConfig(learning_rate=1e-3), 200, CPU)
        self.size = batch_size, num_tokens
        self.order = torch.Generator().manual_seed(dist.get_rank())
        self.done = 0

    def step(self) -> float:
        """Do a step on random tokens, and return the loss of this rank."""
        self.done += 1
        inputs = torch.randint(1, 100, self.size, generator=self.order)
        labels = (7 * inputs[:, :10] + 3) % 100  # can be learnt
        loss = self.model(inputs, torch.arange(10).expand(labels.shape), labels) / labels.numel()
        self.optimizer.backward(loss)
        self.optimizer.step(self.done)
        return float(loss.detach())

    def steps(self, count: int) -> float:
        """Return the CPU seconds of so many steps in this process."""
        began = time.process_time()
        for _ in range(count):
            self.step()
        return time.process_time() - began


class Peak:
    """The largest anonymous memory of this process so far, in MB."""

    def __init__(self) -> None:
        self.mb = 0.0
        threading.Thread(target=self._watch, daemon=True).start()
        time.sleep(0.1)

    def _watch(self) -> None:
        while True:
            self.mb = max(self.mb, anonymous_mb())
            time.sleep(0.002)


def anonymous_mb() -> float:
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0


# --- on the ranks -----------------------------------------------------------------------------------


def step() -> None:
    for shape, rounds, count in (("4M", 5, 5), ("50M", 3, 2)):
        trainings = {strategy: Training(strategy, shape, 8, 64) for strategy in ("ddp", "fsdp")}
        seconds: dict[str, list[float]] = {"ddp": [], "fsdp": []}
        for number in range(rounds + 1):
            for strategy, training in trainings.items():
                spent = summed(training.steps(count)) / count
                if number:  # the first round warms up
                    seconds[strategy].append(spent)
        ddp, fsdp = (statistics.median(seconds[strategy]) for strategy in ("ddp", "fsdp"))
        goal = " (goal <= 2.2)" if shape == "4M" else ""
        say(f"step, {shape}: ddp {1000 * ddp:.0f} ms CPU, fsdp {1000 * fsdp:.0f} ms CPU, {fsdp / ddp:.2f} x{goal}")


def memory(strategy: str) -> None:
    peak = Peak()
    if strategy != "imports":
        Training(strategy, "100M", 2, 32).steps(3)
    largest = torch.tensor(peak.mb)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    say(json.dumps(float(largest)))


def save(folder: str) -> None:
    training, cheap = (Training("fsdp", shape, 2, 32) for shape in ("33M", "4M"))
    training.step()  # from here on it has moments
    rank, done = dist.get_rank(), itertools.count(1)
    saves = ShardedSaves(rank, dist.new_group(backend="gloo"))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    stops: dict[bool, list[float]] = {False: [], True: []}

    def save_once(*, waits: bool) -> float:
        began = time.monotonic()
        saves.wait()
        release(training.masked_lm)
        weights = {"": saved_weights(training.masked_lm.model)}
        shards, state = copied(weights, training.optimizer.state_dict(), rank, saves.memory)

        def write(write_shards: object) -> None:
            checkpoint.save(
                Path(folder, "checkpoints"),
                Progress(step=next(done)),
                write_model=lambda path: None,
                write_shards=write_shards,  # type: ignore[arg-type]
                state=state,
                rank_states=[{}, {}],
                metrics={},
                attempt=1,
                keep_last=1,
            )

        saves.start(shards, write)
        if waits:
            saves.wait()
        return time.monotonic() - began

    save_once(waits=True)  # warms up
    for waits in (False, True, False, True):
        for _ in range(2):
            cheap.steps(SAVE_EVERY)
            seconds[waits].append(save_once(waits=waits))
        cheap.steps(SAVE_EVERY // 2)
        stops[waits].append(save_once(waits=True))
    size = sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors")) / 1e6
    later, at_once = (statistics.median(seconds[waits]) for waits in (False, True))
    ratio = f"{later / at_once:.2f} x (goal <= 0.3)"
    say(f"save, {size:.0f} MB: asynchronous {later:.2f} s, synchronous {at_once:.2f} s, {ratio}")
    later, at_once = (statistics.median(stops[waits]) for waits in (False, True))
    say(f"save at a stop: {later:.2f} s after asynchronous ones, {at_once:.2f} s after synchronous ones")


def summed(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


PARTS = {part.__name__: part for part in (step, memory, save)}


# --- at the top -------------------------------------------------------------------------------------


def on_ranks(part: str, *words: str) -> str:
    count = NUM_RANKS.get(part, 2)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", __file__]
    done = subprocess.run([*command, "on-rank", part, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    return done.stdout


def measure(part: str) -> None:
    if part == "trainer":
        bench_hf_trainer.main(4, num_ranks=2)
    elif part == "memory":
        imports, ddp, fsdp = (float(on_ranks(part, kind)) for kind in ("imports", "ddp", "fsdp"))
        ratio = f"{(fsdp - imports) / (ddp - imports):.2f} x (goal <= 0.45)"
        print(f"memory, 100 M, 4 ranks: imports {imports:.0f}, ddp {ddp:.0f}, fsdp {fsdp:.0f} MB per rank: {ratio}")
    elif part == "save":
        with tempfile.TemporaryDirectory() as folder:
            print(on_ranks(part, folder), end="")
    else:
        print(on_ranks(part), end="")


def main(asked: list[str]) -> None:
    if asked[:1] == ["on-rank"]:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        PARTS[asked[1]](*asked[2:])
        dist.destroy_process_group()
        return
    for part in asked or [*PARTS, "trainer"]:
        measure(part)


if __name__ == "__main__":
    main(sys.argv[1:])
