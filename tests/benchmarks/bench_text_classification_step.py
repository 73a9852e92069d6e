"""One training step of text_classification against a hand-written minimal DDP loop of the same math.

    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_text_classification_step.py [rounds]

Both train the same model on the same batches with clipping and AdamW; they alternate in blocks
of steps in one process group. Goal: the recipe's loop reaches at least 0.98 of the minimal loop's rate.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nbtools import recipes
from nbtools.recipes import TextClassificationConfig
from nbtools.rundir import RunDir
from nbtools.samples import read_samples
from nbtools.training import text_classification
from nbtools.training.characters import Augmentation, CharacterDataset, LengthOrder
from nbtools.training.data import SampleOrder
from nbtools.training.flags import Flags
from nbtools.training.mixer import build
from nbtools.training.worker import Worker, run

GOAL = 0.98
BLOCK = 10


def main(rounds: int = 12) -> None:
    """Run the recipe's own `train`, and the peer between its steps."""
    torch.set_num_threads(1)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    preset, _ = recipes.RECIPES["text_classification"].preset("cpu_demo")
    assert isinstance(preset, TextClassificationConfig)
    never = 10**6
    config = preset.replace(
        max_steps=BLOCK * (rounds + 1), epochs=never, log_every=BLOCK, eval_every=never, checkpoint_every=never
    )
    with tempfile.TemporaryDirectory() as folder:
        # Every rank its own, as nobody reads it; rank 0's path is the one that is shared.
        os.environ["NBTOOLS_ROOT"] = folder
        (Path(folder) / "runs").mkdir()
        os.environ["NBTOOLS_RUN_DIR"] = str(RunDir.create(Path(folder) / "runs", "bench").path)
        peer = Peer(rounds)
        real = Worker.end_step

        def end_step(worker: Worker, *arguments: object) -> None:
            real(worker, *arguments)  # type: ignore[arg-type]
            peer.between_steps(worker, config)

        Worker.end_step = end_step  # type: ignore[method-assign]
        run(text_classification.train, Flags(config))
        Worker.end_step = real  # type: ignore[method-assign]


class Peer:
    """The hand-written loop, run in blocks between blocks of the recipe's steps."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.times: dict[str, list[tuple[float, float]]] = {"recipe": [], "minimal loop": []}
        self.step: Callable[[], float] | None = None
        self.mark: tuple[float, float] | None = None

    def between_steps(self, worker: Worker, config: TextClassificationConfig) -> None:
        """After each block of the recipe, do a block with the peer."""
        if worker.progress.step % BLOCK or len(self.times["recipe"]) == self.rounds:
            return
        self.step = self.step or minimal_loop(config, worker.rank, worker.world_size)
        is_warm = self.mark is not None
        if self.mark is not None:
            self.add("recipe", self.mark)
        mark = start()
        for _ in range(BLOCK):
            loss = self.step()
        assert loss == loss
        if is_warm:
            self.add("minimal loop", mark)
        if len(self.times["recipe"]) == self.rounds and worker.is_main:
            self.report(worker.world_size)
        self.mark = start()

    def add(self, name: str, mark: tuple[float, float]) -> None:
        wall, cpu = time.perf_counter() - mark[0], time.process_time() - mark[1]
        self.times[name].append((wall / BLOCK, cpu / BLOCK))

    def report(self, world_size: int) -> None:
        """Print times per step and the ratio of rates, paired by round."""
        print(f"{world_size} ranks, {self.rounds} rounds of {BLOCK} steps")
        for name, rows in self.times.items():
            wall, cpu = ([row[column] * 1e3 for row in rows] for column in range(2))
            print(
                f"{name:<14} CPU median {statistics.median(cpu):7.2f} ms  least {min(cpu):7.2f} ms  "
                f"wall median {statistics.median(wall):7.2f} ms"
            )
        pairs = zip(self.times["minimal loop"], self.times["recipe"], strict=True)
        ratio = statistics.median(peer[1] / own[1] for peer, own in pairs)
        verdict = "reached" if ratio >= GOAL else "MISSED"
        print(
            f"recipe is {ratio:.3f} x as fast as the minimal loop, by CPU time (goal >= {GOAL}): {verdict}", flush=True
        )


def start() -> tuple[float, float]:
    if dist.is_initialized():
        dist.barrier()
    return time.perf_counter(), time.process_time()


def minimal_loop(config: TextClassificationConfig, rank: int, world_size: int) -> Callable[[], float]:
    """What one would write by hand: the model, DDP, AdamW, and a data loader over the same batches."""
    samples = read_samples(config)
    system = samples.system
    mixer = build(config, system, text_classification.shares(samples))
    model = DistributedDataParallel(mixer) if world_size > 1 else mixer
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    augmentation = Augmentation(config.seed, config.augmentation, config.unknown_lang)
    dataset = CharacterDataset(
        samples.train, samples.train_rows, augmentation, config.sequence_length, system.max_codes
    )
    order = SampleOrder(len(samples.train_rows), config.batch_size, rank=rank, world_size=world_size, seed=config.seed)
    loader = torch.utils.data.DataLoader(dataset, sampler=LengthOrder(order, dataset), batch_size=None)
    batches = iter(loader)

    def step() -> float:
        inputs_BT, labels_BK = next(batches)
        loss = mixer.mix(model(inputs_BT, labels_BK)) / config.batch_size
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
