"""One training step of a recipe against a hand-written minimal DDP loop of the same math, in one process group.

    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_training_step.py mlm_pretraining [rounds]
    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_training_step.py masked_diffusion [rounds]
    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_training_step.py text_classification [rounds]
    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_training_step.py algorithm_distillation [rounds]
    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_training_step.py llm_gan [rounds]

Both train the model of the preset cpu_demo on the same data, with clipping and AdamW, alternating in blocks of steps.
Goal: the recipe's loop reaches at least 0.98 of the minimal loop's rate. Of llm_gan the game is measured, three steps
of the judge and one of the generator, without the warm-ups.
"""

import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from rounds import Cost, print_costs
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nbtools import recipes
from nbtools.config import TrainConfig
from nbtools.recipes.built_models import modernbert_settings
from nbtools.recipes.llm_gan import model_settings, num_positions
from nbtools.recipes.text_classification import load_samples
from nbtools.rundir.rundir import RunDir
from nbtools.training.algorithm_distillation.dataset import Windows, open_histories
from nbtools.training.algorithm_distillation.model import build_action_transformer
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.sampler import SampleOrder, load
from nbtools.training.engine.worker import Worker, run
from nbtools.training.llm_gan.gan_data import markov_data
from nbtools.training.masked_diffusion.dataset import open_sequences
from nbtools.training.mlm_pretraining.dataset import open_tokenized
from nbtools.training.mlm_pretraining.masking import MaskedTraining, Masking
from nbtools.training.text_classification import train
from nbtools.training.text_classification.dataset import Augmentation, CharacterDataset, LengthOrder
from nbtools.training.text_classification.model import build_classifier

GOAL = 0.98
BLOCK = 10
Loop = Callable[[], float]
"""Does one step and returns its loss."""
Batch = tuple[torch.Tensor, ...]


def main(key: str, rounds: int = 12) -> None:
    """Run the recipe's own `train`, and the peers between its steps."""
    torch.set_num_threads(1)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    recipe = recipes.recipe_named(key)
    preset, _ = recipe.preset("cpu_demo")
    never = 10**6
    config = preset.replace(
        max_steps=BLOCK * (rounds + 1),
        epochs=never,
        log_every=BLOCK,
        eval_every=never,
        checkpoint_every=never,
        **CHANGES.get(key, {}),
    )
    with tempfile.TemporaryDirectory() as folder:
        # Every rank its own, as nobody reads it; rank 0's path is the one that is shared.
        os.environ["NBTOOLS_ROOT"] = folder
        (Path(folder) / "runs").mkdir()
        os.environ["NBTOOLS_RUN_DIR"] = str(RunDir.create(Path(folder) / "runs", "bench").path)
        peers = Peers(rounds, LOOPS[key])
        real = Worker.end_step

        def end_step(worker: Worker, *arguments: object) -> None:
            real(worker, *arguments)  # type: ignore[arg-type]
            peers.between_steps(worker, config)

        Worker.end_step = end_step  # type: ignore[method-assign]
        run(importlib.import_module(f"{recipe.module}.train").train, Flags(config))
        Worker.end_step = real  # type: ignore[method-assign]


class Peers:
    """The hand-written loop, run in blocks between blocks of the recipe's steps."""

    def __init__(self, rounds: int, make: "Callable[[Any, Worker], Loop]") -> None:
        self.rounds = rounds
        self.make = make
        self.times: dict[str, list[Cost]] = {"recipe": [], "minimal loop": []}
        self.loop: Loop | None = None
        self.mark: tuple[float, float] | None = None

    def between_steps(self, worker: Worker, config: TrainConfig) -> None:
        """After each block of the recipe, do a block with the peer."""
        if worker.progress.step % BLOCK:
            return
        self.loop = self.loop or self.make(config, worker)
        if self.mark is not None:
            self.add("recipe", self.mark)
        mark = start()
        for _ in range(BLOCK):
            loss = self.loop()
        assert loss == loss
        if self.mark is not None:
            self.add("minimal loop", mark)
        if len(self.times["recipe"]) == self.rounds and worker.is_main:
            self.report(worker.world_size)
        self.mark = start()

    def add(self, name: str, mark: tuple[float, float]) -> None:
        wall, cpu = time.perf_counter() - mark[0], time.process_time() - mark[1]
        self.times[name].append(Cost(wall / BLOCK, cpu / BLOCK))

    def report(self, world_size: int) -> None:
        """Print times per step and ratios of rates, paired by round."""
        print(f"{world_size} ranks, {self.rounds} rounds of {BLOCK} steps")
        print_costs(self.times)
        pairs = zip(self.times["minimal loop"], self.times["recipe"], strict=True)
        ratio = statistics.median(peer[1] / own[1] for peer, own in pairs)
        goal = f"(goal >= {GOAL}): {'reached' if ratio >= GOAL else 'MISSED'}"
        print(f"recipe is {ratio:.3f} x as fast as the minimal loop, by CPU time {goal}", flush=True)


def start() -> tuple[float, float]:
    dist.barrier()
    return time.perf_counter(), time.process_time()


# --- what one would write by hand -------------------------------------------------------------------


def minimal_loop(
    model: nn.Module, config: TrainConfig, beta: float, batch_loss: Callable[[nn.Module], torch.Tensor]
) -> Loop:
    """DDP, AdamW, a scheduler, clipping, and nothing else.

    Args:
        model: is wrapped.
        config: has the learning rate and the clipping.
        beta: AdamW's second one.
        batch_loss: takes the wrapped model and gives the loss of the next batch.
    """
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=config.learning_rate, betas=(0.9, beta), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def step() -> float:
        loss = batch_loss(wrapped)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), config.gradient_clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def cached(worker: Worker) -> Path:
    """The folder in which the recipe has left its tokens."""
    return next((worker.files.path.parent / ".cache").iterdir())


def mlm_pretraining(config: recipes.MLMPretrainingConfig, worker: Worker) -> Loop:
    """transformers' own model and loss."""
    text = open_tokenized(cached(worker), config.sequence_length)
    settings = modernbert_settings(config, len(text.tokenizer))
    order = SampleOrder(len(text.train), config.batch_size, rank=worker.rank, world_size=worker.world_size)
    masking = Masking.of(text, config.mask_probability, config.seed)
    batches: Iterator[Batch] = load(MaskedTraining(text.train, masking), order)

    def batch_loss(model: nn.Module) -> torch.Tensor:
        inputs_BT, positions_BK, labels_BK = next(batches)
        labels_BT = torch.full_like(inputs_BT, -100).scatter(1, positions_BK, labels_BK)
        loss: torch.Tensor = model(input_ids=inputs_BT, labels=labels_BT).loss
        return loss

    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings, sparse_prediction=True))
    return minimal_loop(model, config, 0.98, batch_loss)


class Diffusion(nn.Module):
    """transformers' own model, and the loss written out."""

    def __init__(self, model: transformers.ModernBertForMaskedLM, mask_id: int) -> None:
        super().__init__()
        self.model, self.mask_id = model, mask_id

    def forward(self, tokens_BT: torch.Tensor, masked_BT: torch.Tensor, p_B1: torch.Tensor) -> torch.Tensor:
        inputs_BT = torch.where(masked_BT, self.mask_id, tokens_BT)
        hidden_KH = self.model.model(input_ids=inputs_BT)[0][masked_BT]
        logits_KV = self.model.decoder(self.model.head(hidden_KH))
        logits_KV[:, self.mask_id] = -torch.inf
        losses_K = nn.functional.cross_entropy(logits_KV, tokens_BT[masked_BT], reduction="none")
        return (losses_K / p_B1.expand_as(tokens_BT)[masked_BT]).sum() / tokens_BT.numel()


def masked_diffusion(config: recipes.MaskedDiffusionConfig, worker: Worker) -> Loop:
    """Masks drawn with torch.rand."""
    text = open_sequences(cached(worker), config.sequence_length)
    settings = modernbert_settings(config, len(text.tokenizer)) | {"pad_token_id": None}
    order = iter(SampleOrder(len(text.train), config.batch_size, rank=worker.rank, world_size=worker.world_size))

    def batch_loss(model: nn.Module) -> torch.Tensor:
        _, samples_B = next(order)
        tokens_BT = torch.from_numpy(text.train.tokens_NT[samples_B].astype(np.int64))
        p_B1 = 0.999 * torch.rand(len(tokens_BT), 1) + 0.001
        loss: torch.Tensor = model(tokens_BT, torch.rand(tokens_BT.shape) < p_B1, p_B1)
        return loss

    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings))
    return minimal_loop(Diffusion(model, text.tokenizer.mask_token_id), config, 0.98, batch_loss)


def classification(config: recipes.TextClassificationConfig, worker: Worker) -> Loop:
    """The same model, over the same batches."""
    samples = load_samples(config)
    classifier = build_classifier(config, samples.system, train.code_shares(samples))
    augmentation = Augmentation(config.seed, config.augmentation, config.unknown_lang)
    dataset = CharacterDataset(
        samples.train, samples.train_rows, augmentation, config.sequence_length, samples.system.max_codes
    )
    order = SampleOrder(
        len(samples.train_rows), config.batch_size, rank=worker.rank, world_size=worker.world_size, seed=config.seed
    )
    batches = iter(torch.utils.data.DataLoader(dataset, sampler=LengthOrder(order, dataset), batch_size=None))

    def batch_loss(model: nn.Module) -> torch.Tensor:
        inputs_BT, labels_BK = next(batches)
        loss: torch.Tensor = classifier.combine_losses(model(inputs_BT, labels_BK)) / config.batch_size
        return loss

    return minimal_loop(classifier, config, 0.999, batch_loss)


def distillation(config: recipes.AlgorithmDistillationConfig, worker: Worker) -> Loop:
    """The same model, over the same windows."""
    histories = open_histories(worker, config)
    windows = Windows(histories.train_HL4, config.horizon, config.sequence_length)
    order = SampleOrder(
        len(windows), config.batch_size, rank=worker.rank, world_size=worker.world_size, seed=config.seed
    )
    batches = iter(torch.utils.data.DataLoader(windows, sampler=order, batch_size=None))

    def batch_loss(model: nn.Module) -> torch.Tensor:
        tokens_BT4, actions_BT = next(batches)
        loss: torch.Tensor = model(tokens_BT4, actions_BT) / actions_BT.numel()
        return loss

    return minimal_loop(build_action_transformer(config, histories.test_goals_G2), config, 0.99, batch_loss)


def adversarial(config: recipes.LLMGANConfig, worker: Worker) -> Loop:
    """Two models in DDP, texts drawn with torch.multinomial and kept keys and values, REINFORCE over a running mean."""
    data = markov_data(config)
    texts_NT = torch.from_numpy(data.train.texts_NT.astype(np.int64))
    settings = model_settings(config, data.alphabet.vocab_size, num_positions(config))
    writer = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings))
    discriminator = transformers.GPT2ForTokenClassification(transformers.GPT2Config(**settings, num_labels=1))  # type: ignore[call-arg]
    wrapped = [DistributedDataParallel(model) for model in (writer, discriminator)]
    rates = (config.learning_rate, config.judge_learning_rate)
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.5, 0.999), fused=True)
        for model, rate in zip(wrapped, rates, strict=True)
    ]
    batch_size, length = config.batch_size, config.sequence_length
    start_B1 = torch.ones(batch_size, 1, dtype=torch.long)
    usual_T = torch.zeros(length)

    def possible(logits: torch.Tensor) -> torch.Tensor:
        logits[..., :3] = -1e9
        return logits

    @torch.no_grad()
    def written() -> torch.Tensor:
        tokens_B1, cache, parts = start_B1, None, []
        for _ in range(length):
            output = writer(input_ids=tokens_B1, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            tokens_B1 = torch.multinomial(possible(output.logits[:, -1]).softmax(-1), 1)
            parts.append(tokens_B1)
        return torch.cat(parts, dim=1)

    def update(number: int, loss: torch.Tensor) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped[number].parameters(), config.gradient_clip)
        optimizers[number].step()
        optimizers[number].zero_grad()

    def inputs(texts_BT: torch.Tensor) -> torch.Tensor:
        return torch.cat([start_B1.repeat(len(texts_BT) // batch_size, 1), texts_BT], dim=1)

    def step() -> float:
        nonlocal usual_T
        for _ in range(config.judge_steps):
            pairs = torch.cat([texts_NT[torch.randint(len(texts_NT), (batch_size,))], written()])
            scores = wrapped[1](input_ids=inputs(pairs), use_cache=False).logits[:, 1:, 0]
            human = torch.zeros_like(scores)
            human[:batch_size] = 1
            update(1, nn.functional.binary_cross_entropy_with_logits(scores, human))
        fakes_BT = written()
        with torch.no_grad():  # the human texts, too: a tie pays nothing
            pairs = torch.cat([texts_NT[torch.randint(len(texts_NT), (batch_size,))], fakes_BT])
            scores = discriminator(input_ids=inputs(pairs), use_cache=False).logits[:, 1:, 0]
            decided_B = scores[:batch_size].mean(1) != scores[batch_size:].mean(1)
            returns_BT = 2 * torch.sigmoid(scores[batch_size:]) - 1
            for place in range(length - 2, -1, -1):
                returns_BT[:, place] += config.credit * returns_BT[:, place + 1]
            weights_BT = (returns_BT - usual_T) * decided_B[:, None]
            mean_T = returns_BT.mean(0)
            dist.all_reduce(mean_T)
            usual_T = 0.9 * usual_T + 0.1 * mean_T / worker.world_size
        logits_BTV = possible(wrapped[0](input_ids=inputs(fakes_BT)[:, :-1], use_cache=False).logits)
        logs_BTV = logits_BTV.log_softmax(-1)
        losses_BT = -logs_BTV.gather(2, fakes_BT[..., None])[..., 0] * weights_BT
        entropies_BT = -(logs_BTV.exp() * logs_BTV).sum(-1)
        loss = (losses_BT - config.entropy_weight * entropies_BT).mean()
        update(0, loss)
        return float(loss.detach())

    return step


CHANGES: dict[str, dict[str, Any]] = {
    "llm_gan": {"generator_warmup_steps": 0, "judge_warmup_steps": 0, "judge_accuracy": 0.0}
}
"""What a benchmark changes in the preset."""
LOOPS: dict[str, Callable[[Any, Worker], Loop]] = {
    "mlm_pretraining": mlm_pretraining,
    "masked_diffusion": masked_diffusion,
    "text_classification": classification,
    "algorithm_distillation": distillation,
    "llm_gan": adversarial,
}


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:]))
