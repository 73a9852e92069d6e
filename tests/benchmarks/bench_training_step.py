"""One training step of the recipe against a hand-written minimal DDP loop of the same math, in one process group.

    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_training_step.py [rounds]

Both train the same model on the same batches with bf16 off, clipping, AdamW and a metric row every ten steps' worth of
losses; they alternate in blocks of steps. Goal: the recipe's loop reaches at least 0.98 of the minimal loop's rate.
For information: the same minimal loop with the head at all positions, as the model comes.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import ModernBertConfig, ModernBertForMaskedLM

from nbtools import recipes
from nbtools.recipes import MLMPretrainingConfig
from nbtools.recipes.modernbert import modernbert_settings
from nbtools.rundir import RunDir
from nbtools.training import mlm_pretraining
from nbtools.training.data import SampleOrder, load
from nbtools.training.flags import Flags
from nbtools.training.masking import MaskedTraining, Masking
from nbtools.training.text import TokenizedText, open_tokenized
from nbtools.training.worker import Worker, run

GOAL = 0.98
BLOCK = 10
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def main(rounds: int = 12) -> None:
    """Run the recipe's own `train`, and the peers between its steps."""
    torch.set_num_threads(1)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    preset, _ = recipes.RECIPES["mlm_pretraining"].preset("cpu_demo")
    assert isinstance(preset, MLMPretrainingConfig)
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
        run(mlm_pretraining.train, Flags(config))
        Worker.end_step, Worker.start_clock = real_end, real_start  # type: ignore[method-assign]


class Peers:
    """The hand-written loops, run in blocks between blocks of the recipe's steps."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.times: dict[str, list[tuple[float, float]]] = {"recipe": [], "minimal loop": [], "minimal, whole head": []}
        self.steps: dict[str, Callable[[], float]] = {}
        self.mark: tuple[float, float] | None = None

    def between_steps(self, worker: Worker, config: MLMPretrainingConfig) -> None:
        """After each block of the recipe, do a block with each peer."""
        if worker.progress.step % BLOCK:
            return
        if not self.steps:
            cache = worker.files.path.parent / ".cache"
            text = open_tokenized(next(cache.iterdir()), config.sequence_length)
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


def minimal_loop(
    config: MLMPretrainingConfig, text: TokenizedText, rank: int, world_size: int, *, sparse: bool
) -> Callable[[], float]:
    """What one would write by hand: transformers' own model and loss, DDP, AdamW."""
    settings = modernbert_settings(config, len(text.tokenizer))
    model = DistributedDataParallel(ModernBertForMaskedLM(ModernBertConfig(**settings, sparse_prediction=sparse)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    order = SampleOrder(len(text.train_NT), config.batch_size, rank=rank, world_size=world_size)
    masking = Masking.of(text, config.mask_probability, config.seed)
    batches: Iterator[Batch] = load(MaskedTraining(text.train_NT, masking), order)

    def step() -> float:
        inputs_BT, positions_BK, labels_BK = next(batches)
        labels_BT = torch.full_like(inputs_BT, -100).scatter(1, positions_BK, labels_BK)
        loss = model(input_ids=inputs_BT, labels=labels_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
