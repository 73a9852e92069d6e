"""Masked diffusion language modelling (LLaDA): a model that generates text by unmasking tokens in any order.

Training draws a probability for every sequence, masks each token with it, and divides every cross-entropy by it: in
expectation that is a bound on the negative log-likelihood (Nie et al. 2025, arXiv 2502.09992). Of prompts and answers
only the answer is masked. Evaluation estimates the same bound with less variance (see `forward_process`), compares it
with unigram and bigram models, and samples.

Shape suffixes: B batch, T positions, K masked positions of a whole batch.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import torch

from nbtools.data import data_files, prepared
from nbtools.errors import DataError
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.masked_diffusion import refuse_remote_code
from nbtools.rundir import media
from nbtools.training.engine.optimizer import Optimizer, autocast
from nbtools.training.engine.worker import Worker
from nbtools.training.masked_diffusion import baselines
from nbtools.training.masked_diffusion.dataset import DiffusionText, cached_data, open_cached, open_sequences
from nbtools.training.masked_diffusion.forward_process import EvaluationMasks, Noise, NoisedPairs, NoisedTraining
from nbtools.training.masked_diffusion.model import Denoiser, build_denoiser
from nbtools.training.masked_diffusion.sampling import rendered, unmask, unmasking_of
from nbtools.training.masked_diffusion.sequences import RaggedPairs
from nbtools.training.outputs.tally import Tally
from nbtools.training.text.causal_sampling import at_rest
from nbtools.training.text.tokenizers import load_tokenizer


def train(worker: Worker, config: MaskedDiffusionConfig) -> None:
    """Train from scratch or from a checkpoint, to the last step or a stop."""
    refuse_remote_code(config)
    text = open_data(worker, config)
    num_test = len(text.test) if config.test_fraction else 0  # a prepared folder may have a test part
    plan = worker.plan(len(text.train), len(text.evaluation), num_test, text.data)
    denoiser = worker.build(lambda: build_denoiser(config, text.tokenizer))
    model = worker.wrap(denoiser, find_unused_parameters=denoiser.has_unused_weights)
    worker.initial_state.load_weights(denoiser.model, text.tokenizer)
    optimizer = Optimizer(model, config, plan.total_steps, worker.device)
    evaluation = Evaluation(worker, config, text, denoiser)
    share = 0.0 if text.has_pairs else config.random_length_share
    noise = Noise(denoiser.mask_id, text.eos_id, config.seed, share)
    if isinstance(text.train, RaggedPairs) and text.train.padded_to is None:
        pairs = NoisedPairs(text.train, noise, config.sequence_length, packs=config.pad_to == "packed")
        worker.say(pairs.padding_note(plan.order))
        order = plan.order if pairs.packs else dataclasses.replace(plan.order, lengths=pairs.lengths)
        batches = worker.batches(pairs, order)
    else:
        batches = worker.batches(NoisedTraining(text.train, noise), plan.order)
    tokens_per_sample = float(text.train.lengths_N.mean())
    # Always the number of sequences, never that of masked tokens: exact over ranks and accumulated passes.
    num_sequences = config.gradient_accumulation_steps * config.batch_size
    tally = Tally("loss", "sequences", device=worker.device)
    num_parameters = denoiser.model.num_parameters()
    sizes = {"vocab_size": len(text.tokenizer), "tokens_per_sample": tokens_per_sample}
    sizes["flops_per_sample"] = denoiser.flops(tokens_per_sample, tokens_per_sample - float(text.train.starts_N.mean()))
    worker.begin(plan, optimizer, tally, num_parameters=num_parameters, hub_commits=text.commits, **sizes)

    model.train()
    for step in worker.steps(plan):
        for batch, is_last in worker.passes(batches):  # inputs_BT, positions_K, labels_K, weights_K, lengths_B
            with worker.forward(model, is_last=is_last):
                loss_sum = model(*batch)
            worker.backward(optimizer, loss_sum / num_sequences)
            tally.add(loss=loss_sum, sequences=config.batch_size)
        worker.update(optimizer, step)
        due = worker.advance(plan)

        row: dict[str, float] = {}
        if due.log:
            sums = tally.reduce(worker.sum)
            row = {"train/loss": sums["loss"] / max(sums["sequences"], 1), **optimizer.metrics()}
            row["train/tokens_per_s"] = worker.samples_per_s() * tokens_per_sample
            row["train/epoch"] = plan.epochs(worker.progress)
        if due.evaluation:
            row |= evaluation.measure()
            evaluation.show_samples()
        worker.end_step(row, plan.total_steps)

        if due.checkpoint:
            state, more = optimizer.state_dict(), functools.partial(denoiser.write_tokenizer, text.tokenizer)
            worker.save({"": denoiser.model}, state, tally.state_dict(), write_more=more)

    if (best := worker.begin_test(plan)) is not None:
        best.load_weights(denoiser.model)
        test = Evaluation(worker, config, dataclasses.replace(text, evaluation=text.test), denoiser)
        worker.end_test(test.measure())


class Evaluation:
    """The bound on held-out sequences, always with the same masks, and texts sampled from the model."""

    EDGES = (0.0, 0.12, 0.3, 0.5, 0.7, 0.94, 1.0)
    """Limits of the intervals of the share of masked tokens, each of which has its own loss."""

    def __init__(self, worker: Worker, config: MaskedDiffusionConfig, text: DiffusionText, denoiser: Denoiser) -> None:
        self.worker = worker
        self.config = config
        self.text = text
        self.denoiser = denoiser
        self.draws = EvaluationMasks.of(text.evaluation, config.eval_draws)
        # On the same masked positions as the model.
        self.baselines = worker.ranks.from_main(
            lambda: baselines.losses(text.train, text.evaluation, self.draws, len(text.tokenizer))
        )

    def measure(self) -> dict[str, float]:
        """Return the bound on the negative log-likelihood in nats per token, over all ranks, and of the baselines."""
        worker, config, draws, denoiser = self.worker, self.config, self.draws, self.denoiser
        num_levels = len(self.EDGES) - 1
        bound, losses, counts = 0.0, np.zeros(num_levels), np.zeros(num_levels)
        with worker.aside("evaluation"), at_rest(denoiser):
            for draws_B, tokens_BT, masked_BT, is_own in draws.batches(
                self.text.evaluation, config.batch_size, rank=worker.rank, world_size=worker.world_size
            ):
                inputs_BT = np.where(masked_BT, denoiser.mask_id, tokens_BT)
                lengths_B = self.text.evaluation.lengths_N[draws.rows_D[draws_B]]
                lengths_B = lengths_B[:0] if lengths_B.min() == tokens_BT.shape[1] else lengths_B
                parts = (inputs_BT, np.flatnonzero(masked_BT), tokens_BT[masked_BT], lengths_B)
                with autocast(worker.device, config.precision):
                    losses_K = denoiser.losses(*(torch.from_numpy(part).to(worker.device) for part in parts))
                if not is_own:
                    continue
                rows_K = np.nonzero(masked_BT)[0]
                sums_B = np.bincount(rows_K, losses_K.double().cpu().numpy(), minlength=len(draws_B))
                counts_B = draws.counts_D[draws_B]
                levels_B = np.searchsorted(self.EDGES, draws.shares_D[draws_B]) - 1
                bound += float((sums_B / counts_B).sum())
                losses += np.bincount(levels_B, sums_B, minlength=num_levels)
                counts += np.bincount(levels_B, counts_B, minlength=num_levels)
            bound, *totals = worker.sum([bound, *losses, *counts])
        by_level = [totals[i] / max(totals[num_levels + i], 1) for i in range(num_levels)]
        row = {"eval/loss": bound / len(draws.rows_D)}
        row |= dict(zip(("eval/unigram_loss", "eval/bigram_loss"), self.baselines, strict=True))
        # Intervals without a draw are left out: a short answer cannot have a small share masked.
        ends = {"eval/loss_few_masked": 0, "eval/loss_nearly_all_masked": num_levels - 1}
        row |= {name: by_level[level] for name, level in ends.items() if totals[num_levels + level]}
        middles = [(low + high) / 2 for low, high in zip(self.EDGES, self.EDGES[1:], strict=False)]
        share, lines = "share of masked tokens", {"nats per token": by_level}
        shown = media.series(f"Loss by {share}", middles, lines, x_label=share, y_label="loss")
        worker.show("loss_by_masking", shown)
        return row

    def show_samples(self) -> None:
        """Sample texts, always from the same random numbers, as media; the first one step by step."""
        if self.config.sample_texts:
            with self.worker.aside("evaluation"), at_rest(self.denoiser):
                self._sample()  # on all ranks, as the passes of a sharded model are collectives; rank 0 shows it

    def _sample(self) -> None:
        worker, config, denoiser = self.worker, self.config, self.denoiser
        tokenizer = self.text.tokenizer
        unmasking = unmasking_of(config, tokenizer, sampled_shape(config, self.text))
        evaluation, length = self.text.evaluation, unmasking.length
        fitting = np.flatnonzero(evaluation.starts_N + length <= config.sequence_length)[: config.sample_texts]
        rows: list[tuple[str, str, str]] = []
        for number, sample in enumerate(fitting):
            whole = evaluation.rows(np.array([sample]))[0]
            prompt = whole[: evaluation.starts_N[sample]]
            generator = torch.Generator(worker.device).manual_seed(config.seed + number)
            prompt_BP = torch.from_numpy(prompt)[None].to(worker.device)
            with autocast(worker.device, config.precision):
                states = unmask(denoiser.logits, prompt_BP, unmasking, mask_id=denoiser.mask_id, generator=generator)
                frames = [rendered(tokenizer, state[0, len(prompt) :], denoiser.mask_id) for state in states]
            if number == 0:
                picked = np.unique(np.linspace(0, len(frames) - 1, 65).astype(int))
                worker.show("unmasking", media.frames("Unmasking of one text", [frames[i] for i in picked]))
            true = rendered(tokenizer, torch.from_numpy(whole[len(prompt) :]))
            rows.append((rendered(tokenizer, prompt_BP[0]), frames[-1], true))
        if not rows:  # every prompt leaves fewer than sample_length tokens
            return
        if self.text.has_pairs:
            worker.show("samples", media.table("Answers", ("prompt", "sampled", "true"), rows))
        else:
            worker.show("samples", media.text("Sampled texts", "\n\n".join(row[1] for row in rows)))


def sampled_shape(config: MaskedDiffusionConfig, text: DiffusionText) -> tuple[int, int, int]:
    """Return length, steps and block length of samples; without values from the user, no more than answers need."""
    length, steps, block = config.sampling
    is_given = config.sample_length is not None or config.sample_steps is not None
    if isinstance(text.train, RaggedPairs) and text.train.padded_to is None and not is_given:
        length = min(length, int((text.train.lengths_N - text.train.starts_N).max()) + 8)
        block = min(block, length)
        length = steps = -(-length // block) * block
    return length, steps, block


def open_data(worker: Worker, config: MaskedDiffusionConfig) -> DiffusionText:
    """Tokenize the data on rank 0, or reuse an earlier run's, and open it; DataError if it is missing or malformed."""
    cache = worker.files.path.parent / ".cache"
    path = None if config.dataset is None else data_files.dataset_path(config.dataset, worker.project.root)
    if path is not None and prepared.is_prepared(path):
        text = open_sequences(path, config.sequence_length)
        worker.ranks.from_main(lambda: check_prepared(worker, config, text, path))
        return dataclasses.replace(text, data=worker.ranks.from_main(lambda: prepared.digest_of_prepared(path)))
    made = worker.ranks.from_main(lambda: cached_data(cache, config, worker.project.root, worker.say))
    return dataclasses.replace(open_cached(made.folder, config), commits=made.commits)


def check_prepared(worker: Worker, config: MaskedDiffusionConfig, text: DiffusionText, folder: Path) -> None:
    """Raise DataError unless a prepared folder has the tokens of the pretrained model; without one, its own apply."""
    metadata = prepared.read_prepared_metadata(folder)
    level = metadata.tokenizer
    if metadata.clean != config.clean:
        worker.say(f"note: the text is that of the prepared folder: clean={metadata.clean!r}, not {config.clean!r}")
    if bool(metadata.num_test_tokens) != bool(config.test_fraction):
        has = "has a test part" if metadata.num_test_tokens else "has no test part"
        worker.say(f"note: the prepared folder {has}; test_fraction={config.test_fraction} has no effect")
    if config.model_name is not None:
        tokenizer = load_tokenizer(config.model_name, trust_remote_code=config.trust_remote_code)
        if tokenizer.get_vocab() != text.tokenizer.get_vocab():
            raise DataError(
                f"dataset {config.dataset!r}: was prepared with --tokenizer {level}, whose ids differ from those "
                f"of {config.model_name}; prepare it again with --tokenizer {config.model_name}"
            )
    elif level != config.tokenizer:
        worker.say(f"note: the tokens are those of the prepared folder: {level}, not {config.tokenizer}")
