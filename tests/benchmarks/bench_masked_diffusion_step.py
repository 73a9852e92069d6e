"""One training step of masked_diffusion against a hand-written minimal DDP loop of the same math, in one process group.

    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_masked_diffusion_step.py [rounds]

Both train the same model on the same text with a probability of masking per sequence, 1/p weights, clipping and AdamW;
they alternate in blocks of steps. The peer draws its masks with torch.rand, as one would, and has its head at the
masked positions only. Goal: the recipe's loop reaches at least 0.98 of the minimal loop's rate. For information: the
same minimal loop with the head at all positions, as the model comes.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import ModernBertConfig, ModernBertForMaskedLM

from nbtools import recipes
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.modernbert import modernbert_settings
from nbtools.rundir import RunDir
from nbtools.training import masked_diffusion
from nbtools.training.data import SampleOrder
from nbtools.training.flags import Flags
from nbtools.training.preparation import DiffusionText, open_text
from nbtools.training.worker import Worker, run

GOAL = 0.98
BLOCK = 10


def main(rounds: int = 12) -> None:
    """Run the recipe's own `train`, and the peers between its steps."""
    torch.set_num_threads(1)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    preset, _ = recipes.RECIPES["masked_diffusion"].preset("cpu_demo")
    assert isinstance(preset, MaskedDiffusionConfig)
    never = 10**6
    config = preset.replace(
        max_steps=BLOCK * (rounds + 1), epochs=never, log_every=BLOCK, eval_every=never, checkpoint_every=never
    )
    with tempfile.TemporaryDirectory() as folder:
        # Every rank its own, as nobody reads it; rank 0's path is the one that is shared.
        os.environ["NBTOOLS_ROOT"] = folder
        (Path(folder) / "runs").mkdir()
        os.environ["NBTOOLS_RUN_DIR"] = str(RunDir.create(Path(folder) / "runs", "bench").path)
        peers = Peers(rounds)
        real_start, real_end = Worker.start_clock, Worker.end_step

        def end_step(worker: Worker, *arguments: object) -> None:
            real_end(worker, *arguments)  # type: ignore[arg-type]
            peers.between_steps(worker, config)

        Worker.end_step = end_step  # type: ignore[method-assign]
        run(masked_diffusion.train, Flags(config))
        Worker.end_step, Worker.start_clock = real_end, real_start  # type: ignore[method-assign]


class Peers:
    """The hand-written loops, run in blocks between blocks of the recipe's steps."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.times: dict[str, list[tuple[float, float]]] = {"recipe": [], "minimal loop": [], "minimal, whole head": []}
        self.steps: dict[str, Callable[[], float]] = {}
        self.mark: tuple[float, float] | None = None

    def between_steps(self, worker: Worker, config: MaskedDiffusionConfig) -> None:
        """After each block of the recipe, do a block with each peer."""
        if worker.progress.step % BLOCK:
            return
        if not self.steps:
            cache = worker.files.path.parent / ".cache"
            text = open_text(next(cache.iterdir()), config.sequence_length)
            for name, sparse in (("minimal loop", True), ("minimal, whole head", False)):
                self.steps[name] = minimal_loop(config, text, worker.rank, worker.world_size, sparse=sparse)
        if self.mark is not None:
            self.add("recipe", self.mark)
        warm = self.mark is not None
        for name in sorted(self.steps, reverse=worker.progress.step // BLOCK % 2 == 0):
            mark = start()
            for _ in range(BLOCK):
                loss = self.steps[name]()
            assert loss == loss
            if warm:
                self.add(name, mark)
        if len(self.times["recipe"]) == self.rounds and worker.is_main:
            self.report(worker.world_size)
        self.mark = start()

    def add(self, name: str, mark: tuple[float, float]) -> None:
        wall, cpu = time.perf_counter() - mark[0], time.process_time() - mark[1]
        self.times[name].append((wall / BLOCK, cpu / BLOCK))

    def report(self, world_size: int) -> None:
        """Print times per step and ratios of rates, paired by round."""
        print(f"{world_size} ranks, {self.rounds} rounds of {BLOCK} steps")
        for name, rows in self.times.items():
            wall, cpu = ([row[column] * 1e3 for row in rows] for column in range(2))
            print(
                f"{name:<22} CPU median {statistics.median(cpu):7.2f} ms  least {min(cpu):7.2f} ms  "
                f"wall median {statistics.median(wall):7.2f} ms"
            )
        for name in ("minimal loop", "minimal, whole head"):
            pairs = zip(self.times[name], self.times["recipe"], strict=True)
            ratio = statistics.median(peer[1] / own[1] for peer, own in pairs)
            goal = f" (goal >= {GOAL}): {'reached' if ratio >= GOAL else 'MISSED'}" if name == "minimal loop" else ""
            print(f"recipe is {ratio:.3f} x as fast as {name}, by CPU time{goal}", flush=True)


def start() -> tuple[float, float]:
    dist.barrier()
    return time.perf_counter(), time.process_time()


class Minimal(nn.Module):
    """transformers' own model, and the loss written out."""

    def __init__(self, model: ModernBertForMaskedLM, mask_id: int, *, sparse: bool) -> None:
        super().__init__()
        self.model, self.mask_id, self.sparse = model, mask_id, sparse

    def forward(self, tokens_BT: torch.Tensor, masked_BT: torch.Tensor, p_B1: torch.Tensor) -> torch.Tensor:
        inputs_BT = torch.where(masked_BT, self.mask_id, tokens_BT)
        if self.sparse:
            hidden_KH = self.model.model(input_ids=inputs_BT)[0][masked_BT]
            logits_KV = self.model.decoder(self.model.head(hidden_KH))
        else:
            logits_KV = self.model(input_ids=inputs_BT).logits[masked_BT]
        logits_KV[:, self.mask_id] = -torch.inf
        losses_K = nn.functional.cross_entropy(logits_KV, tokens_BT[masked_BT], reduction="none")
        return (losses_K / p_B1.expand_as(tokens_BT)[masked_BT]).sum() / tokens_BT.numel()


def minimal_loop(
    config: MaskedDiffusionConfig, text: DiffusionText, rank: int, world_size: int, *, sparse: bool
) -> Callable[[], float]:
    """What one would write by hand: DDP, AdamW, a scheduler."""
    settings = modernbert_settings(config, len(text.tokenizer)) | {"pad_token_id": None}
    model = ModernBertForMaskedLM(ModernBertConfig(**settings))
    wrapped = DistributedDataParallel(Minimal(model, text.tokenizer.mask_token_id, sparse=sparse))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    order = iter(SampleOrder(len(text.train), config.batch_size, rank=rank, world_size=world_size))

    def step() -> float:
        _, samples_B = next(order)
        tokens_BT = torch.from_numpy(text.train.tokens_NT[samples_B].astype(np.int64))
        p_B1 = 0.999 * torch.rand(len(tokens_BT), 1) + 0.001
        loss = wrapped(tokens_BT, torch.rand(tokens_BT.shape) < p_B1, p_B1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), config.gradient_clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
