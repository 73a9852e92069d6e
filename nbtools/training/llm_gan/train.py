"""A generator and a discriminator (the judge), both causal language models: two warm-ups, then adversarial training.

First the generator learns to predict human texts. Then the discriminator learns to separate them from generated ones,
until its accuracy on held-out pairs suffices: a weak discriminator makes the generator worse. From then on every step
makes several updates of the discriminator on new generated texts, and one REINFORCE update of the generator with the
discriminator's rewards (after SeqGAN, Yu et al. 2017, arXiv 1609.05473, and ScratchGAN, de Masson d'Autume et al. 2019,
arXiv 1905.09922). Evaluation also measures a likelihood that neither model is trained on, the share of n-grams that are
copied from the training texts, and how much the generated texts repeat each other.

Shape suffixes: B batch, K draws of a step, P positions of a prompt, T positions of a text, U uniforms.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nbtools.data import hub
from nbtools.recipes import LLMGANConfig
from nbtools.rundir import media
from nbtools.training.engine.initial_state import InitialState
from nbtools.training.engine.optimizer import Optimizer, WeightCopy
from nbtools.training.engine.sampler import batches_of_rank, uniforms
from nbtools.training.engine.worker import Worker
from nbtools.training.llm_gan.dataset import text_data
from nbtools.training.llm_gan.discriminator import Discriminator, Pairs, TokenDiscriminator, build_token_discriminator
from nbtools.training.llm_gan.gan_data import GANData, TextDataset, as_text, markov_data
from nbtools.training.llm_gan.generator import Generator, build_generator
from nbtools.training.llm_gan.llm_judge import build_llm_judge
from nbtools.training.llm_gan.ngrams import self_bleu
from nbtools.training.llm_gan.pretrained import load_discriminator, load_generator
from nbtools.training.llm_gan.rollouts import GANRollouts, generating, texts_at_once
from nbtools.training.llm_gan.stages import Stage, Stages
from nbtools.training.outputs.tally import Tally
from nbtools.training.text.causal_sampling import at_rest
from nbtools.training.text.vocabulary import Floats, Tokens

_NUM_SHOWN = 8
_MOST_COMPARED = 1000
"""Texts whose self-BLEU is measured."""
_TEMPERATURES = (0.6, 0.8, 1.0, 1.2, 1.4)
"""Temperatures of the comparison of quality and diversity."""


def train(worker: Worker, config: LLMGANConfig) -> None:
    """Train from scratch or from a checkpoint, to the last step or a stop."""
    data = markov_data(config) if config.dataset is None else text_data(worker, config)
    plan = worker.plan(len(data.train), len(data.evaluation), len(data.test), data.data)
    generator, discriminator = worker.build(lambda: build_models(config, data))
    wrapped_generator, wrapped_discriminator = worker.wrap(generator), worker.wrap(discriminator)
    load_models(worker.initial_state, data, generator, discriminator)
    generator_optimizer, discriminator_optimizer = (
        Optimizer(model, config, plan.total_steps, worker.device, may_average=model is wrapped_generator)
        for model in (wrapped_generator, wrapped_discriminator)
    )
    state = worker.initial_state.state
    start = WeightCopy(generator_optimizer.model, generator_optimizer.weights) if config.kl_to_start else None
    if start is not None:
        start.load_state_dict(state.get("start", {}))
    stages = Stages(plan, state.get("stages"))
    rollouts = GANRollouts(config, generator, discriminator, worker.device)
    rollouts.baseline.load_state_dict(state.get("baseline"))
    evaluation = Evaluation(worker, config, data, generator, discriminator, start)
    num_uniforms = config.sequence_length + discriminator.num_uniforms
    batches = worker.batches(TextDataset(data.train, config.judge_steps + 1, num_uniforms, config.seed), plan.order)
    # The number of texts, not of tokens: exact over ranks and accumulated passes.
    num_texts = config.gradient_accumulation_steps * config.batch_size
    num_parameters = generator.model.num_parameters() + discriminator.model.num_parameters()
    optimizers = {"generator": generator_optimizer, "judge": discriminator_optimizer}
    derived = {"vocab_size": data.alphabet.vocab_size, "hub_commits": hub.commits_of(config.dataset)}
    worker.begin(plan, optimizers, rollouts.tally, num_parameters=num_parameters, **derived)
    if note := stages.warmup_note():
        worker.say(note)

    wrapped_generator.train()
    wrapped_discriminator.train()
    for step in worker.steps(plan):
        stage = stages.at(step)
        passes = [batch for batch, _ in worker.passes(batches)]
        for draw in stages.discriminator_draws(stage):
            worker.phase("forward")
            pairs = rollouts.discriminator_inputs(passes, draw, supervised=stage is Stage.DISCRIMINATOR)
            for number, inputs in enumerate(pairs, start=1):
                with worker.forward(wrapped_discriminator, is_last=number == len(passes)):
                    outputs = wrapped_discriminator(*inputs)
                worker.backward(discriminator_optimizer, outputs[0] / num_texts)
                rollouts.tally.add(judge_loss=outputs[0], right=outputs[1], pairs=config.batch_size)
            worker.update(discriminator_optimizer, step, stages.discriminator_learning_rate(stage))
            discriminator.update_baseline(worker.sum)
        if stages.trains_generator(stage):
            worker.phase("forward")
            texts = rollouts.rollout_inputs(passes) if stage is Stage.ADVERSARIAL else rollouts.warmup_inputs(passes)
            for number, text in enumerate(texts, start=1):
                with worker.forward(wrapped_generator, is_last=number == len(passes)):
                    loss, bonus = wrapped_generator(*text)
                worker.backward(generator_optimizer, (loss - bonus) / num_texts)
                if stage is Stage.ADVERSARIAL:
                    rollouts.tally.add(bonus=bonus)
                else:
                    rollouts.tally.add(loss=loss, tokens=(text[2] > 0).sum())
            worker.update(generator_optimizer, step, stages.generator_learning_rate(step))
            if stage is Stage.ADVERSARIAL:
                rollouts.baseline.update(worker.sum)
        due = worker.advance(plan)

        row: dict[str, float] = {}
        if due.log:
            trained = generator_optimizer if stages.trains_generator(stage) else discriminator_optimizer
            row = {**rollouts.metrics(rollouts.tally.reduce(worker.sum)), **trained.metrics()}
            row["train/samples_per_s"] = worker.samples_per_s()
            row["train/epoch"] = plan.epochs(worker.progress)
        if due.evaluation or stages.ends_warmup(step):
            row |= evaluation.measure()
            if note := stages.update(step, row["eval/judge_accuracy"]):
                worker.say(note)
            if stages.adversarial_since == step:  # the old moments belong to another loss
                generator_optimizer.forget_moments()
        worker.end_step(row, plan.total_steps)

        if due.checkpoint:
            state = {"generator": generator_optimizer.state_dict(), "judge": discriminator_optimizer.state_dict()}
            state |= {"stages": stages.state_dict(), "baseline": rollouts.baseline.state_dict()}
            state |= {"verdicts": discriminator.running_state(), "start": start.state_dict() if start else {}}
            models = {"generator": generator.model, "judge": discriminator.model}
            more = functools.partial(save_tokenizers, data, tuple(models))
            worker.save(models, state, rollouts.tally.state_dict(), write_more=more, stage=str(stage))

    if (best := worker.begin_test(plan)) is not None:
        load_models(best, data, generator, discriminator)
        tested = dataclasses.replace(data, evaluation=data.test)
        test = Evaluation(worker, config, tested, generator, discriminator, start)
        worker.end_test(test.measure())
        test.show_temperatures()


@dataclasses.dataclass(eq=False)
class Evaluation:
    """Metrics on held-out human texts and one generated text per prompt, always from the same random numbers."""

    worker: Worker
    config: LLMGANConfig
    data: GANData
    generator: Generator
    discriminator: Discriminator
    start: WeightCopy | None = None

    def __post_init__(self) -> None:
        config, data, discriminator = self.config, self.data, self.discriminator
        self._num_compared = min(config.eval_samples, len(data.evaluation), _MOST_COMPARED)
        self._human_self_bleu = math.nan
        samples_N = np.arange(config.eval_samples)
        num_uniforms = config.sequence_length + discriminator.num_uniforms
        self._uniforms_NU = uniforms(config.seed, "evaluation", 0, samples_N, num_uniforms)

    def measure(self, temperature: float | None = None) -> dict[str, float]:
        """Return the metrics of generator and discriminator over all ranks, and show some texts.

        With a `temperature`, they are those of the generator at it, and no text is shown.

        `eval/kl_to_start` is the KL divergence of the policy that writes from the one with the starting weights
        (Ziegler et al. 2019, arXiv 1909.08593), in nats per text: the mean over generated texts of the difference of
        their log-likelihoods.
        """
        sampled_at = self.config.temperature if temperature is None else temperature
        worker, config, data, texts = self.worker, self.config, self.data, self.data.evaluation
        ngrams = ("copied", "ngrams", "human_copied", "human_ngrams")
        tally = Tally("loss", "tokens", "reference", "texts", "right", "undecided", "kl", *ngrams, device=worker.device)
        seen: set[bytes] = set()
        compared: list[Tokens] = []
        with worker.aside("evaluation"), at_rest(self.generator):
            of_rank = math.ceil(config.eval_samples / worker.world_size)
            size = min(texts_at_once(config), max(config.batch_size, of_rank))
            num_chunks, num_parts = math.ceil(config.eval_samples / size), math.ceil(size / config.batch_size)
            for (chunk,), is_own in batches_of_rank(num_chunks, 1, worker.rank, worker.world_size):
                samples_B = np.arange(chunk * size, min((chunk + 1) * size, config.eval_samples))
                rows_B = samples_B % len(texts)
                prompts_BP, reals_BT = (
                    torch.from_numpy(part[rows_B].astype(np.int64)).to(worker.device)
                    for part in (texts.prompts_NP, texts.texts_NT)
                )
                uniforms_BU = torch.from_numpy(self._uniforms_NU[samples_B]).to(worker.device)
                with generating(config, worker.device):
                    losses_BT = self._losses(prompts_BP, reals_BT, num_parts, temperature or 1.0)
                    pairs = self.generator.pairs(prompts_BP, reals_BT, uniforms_BU, sampled_at)
                    outcomes_B, _ = self.discriminator.judge(pairs)
                    kl_BT = torch.zeros_like(losses_BT)
                    if self.start is not None:
                        kl_BT -= self._losses(prompts_BP, pairs.fakes_BT, num_parts, sampled_at)
                        self.start.exchange()
                        kl_BT += self._losses(prompts_BP, pairs.fakes_BT, num_parts, sampled_at)
                        self.start.exchange()
                if not is_own:
                    continue
                is_first_B = torch.from_numpy(samples_B < len(texts)).to(worker.device)  # no text is counted twice
                counted_BT = self.data.alphabet.mask(reals_BT) & is_first_B[:, None]
                written_NT = pairs.fakes_BT.cpu().numpy().astype(np.int32)
                reference_N = self.data.reference(written_NT)
                tally.add(loss=torch.where(counted_BT, losses_BT, 0.0).double().sum(), tokens=counted_BT.sum())
                tally.add(reference=float(reference_N.sum()), texts=len(samples_B))
                tally.add(kl=kl_BT.double().sum(), right=(outcomes_B > 0).sum(), undecided=(outcomes_B == 0).sum())
                human_NT = texts.texts_NT[rows_B[samples_B < len(texts)]]
                counts = *data.copies.count(written_NT), *data.copies.count(human_NT)
                tally.add(**dict(zip(ngrams, counts, strict=True)))
                seen.update(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in written_NT)
                compared.append(written_NT[samples_B < self._num_compared])
                if chunk == 0 and temperature is None:
                    self._show(pairs, outcomes_B, reference_N)
            sums = tally.reduce(worker.sum)
            gathered = worker.ranks.gather((seen, compared))
            num_different = worker.ranks.from_main(lambda: len(set().union(*(some for some, _ in gathered))))
            repeats: dict[str, float] = {}
            if self._num_compared > 1:
                written = [part for _, parts in gathered for part in parts]
                repeats = worker.ranks.from_main(lambda: self._self_bleu(np.concatenate(written)))
        return {
            "eval/loss": sums["loss"] / sums["tokens"],
            f"eval/{self.data.reference_name}_loss": sums["reference"] / sums["texts"],
            "eval/judge_accuracy": sums["right"] / sums["texts"],
            "eval/unique": num_different / sums["texts"],
            "eval/undecided": sums["undecided"] / sums["texts"],
            "eval/copy_rate": sums["copied"] / max(sums["ngrams"], 1),
            "eval/human_copy_rate": sums["human_copied"] / max(sums["human_ngrams"], 1),
            **({} if self.start is None else {"eval/kl_to_start": sums["kl"] / sums["texts"]}),
            **repeats,
        }

    def _losses(self, prompts_BP: Tensor, texts_BT: Tensor, num_parts: int, temperature: float) -> Tensor:
        """Return the losses of all tokens, of a batch at a time; a short last chunk has as many passes on all ranks."""
        both = (torch.split(part, self.config.batch_size) for part in (prompts_BP, texts_BT))
        parts = list(zip(*both, strict=True))
        parts += parts[-1:] * (num_parts - len(parts))
        losses = [self.generator.losses(prompts, texts, temperature) for prompts, texts in parts]
        return torch.cat(losses)[: len(texts_BT)]

    def show_temperatures(self) -> None:
        """Show quality against diversity over temperatures (Caccia et al. 2020, arXiv 1811.02549).

        The higher curve of two models is the worse one. Quality is the loss of generated texts under the reference
        model. Diversity is their self-BLEU, in the table also the loss of held-out texts at the temperature.
        """
        quality = f"eval/{self.data.reference_name}_loss"
        found = [(temperature, self.measure(temperature)) for temperature in _TEMPERATURES]
        names = [name for name in (quality, "eval/self_bleu", "eval/loss", "eval/unique") if name in found[0][1]]
        rows = [(temperature, *(f"{row[name]:.4f}" for name in names)) for temperature, row in found]
        title, columns = "Quality against diversity", ("temperature", *(name[5:] for name in names))
        self.worker.show("temperatures", media.table(title, columns, rows))
        if "eval/self_bleu" in names:
            x, y = zip(*sorted((row["eval/self_bleu"], row[quality]) for _, row in found), strict=True)
            labels = {"x_label": "self-BLEU: less is more diverse", "y_label": f"{quality[5:]}: less is better"}
            shown = media.series(f"{title}, at temperatures from 0.6 to 1.4", x, {"generator": y}, **labels)
            self.worker.show("quality_diversity", shown)

    def _self_bleu(self, written_NT: Tokens) -> dict[str, float]:
        """Return the self-BLEU of generated texts, and of as many human ones: it grows with the number of texts."""
        human_NT, alphabet = self.data.evaluation.texts_NT[: len(written_NT)], self.data.alphabet
        if math.isnan(self._human_self_bleu):
            self._human_self_bleu = self_bleu(human_NT, alphabet)
        return {"eval/self_bleu": self_bleu(written_NT, alphabet), "eval/human_self_bleu": self._human_self_bleu}

    def _show(self, pairs: Pairs, outcomes_B: Tensor, reference_B: Floats) -> None:
        """Show some generated texts beside the human ones to the same prompts, with the discriminator's choices."""
        words = {1: "the human one", -1: "the generated one", 0: "neither"}
        texts = zip(pairs.prompts_BP, pairs.fakes_BT, pairs.reals_BT, strict=True)
        rows: list[tuple[str, ...]] = []
        for row, outcome, loss in islice(zip(texts, outcomes_B, reference_B, strict=True), _NUM_SHOWN):
            shown = (as_text(tokens.tolist(), self.data.tokenizer) for tokens in row)
            rows.append((*shown, words[int(outcome)], f"{loss:.2f}"))
        reference = f"{self.data.reference_name} loss of generated"
        columns: tuple[str, ...] = ("prompt", "generated", "human", "judge takes for human", reference)
        if self.data.tokenizer is None:  # all prompts of the Markov chain are equal
            columns, rows = columns[1:], [row[1:] for row in rows]
        self.worker.show("samples", media.table("Generated and human texts", columns, rows))


def build_models(config: LLMGANConfig, data: GANData) -> tuple[Generator, Discriminator]:
    """Build generator and discriminator, or load the pretrained models that the config names."""
    alphabet = data.alphabet
    is_built = config.model_name is None
    generator = Generator(build_generator(config, alphabet) if is_built else load_generator(config), alphabet)
    if config.judging == "verdicts":
        return generator, build_llm_judge(config, data)
    if is_built:
        return generator, build_token_discriminator(config, alphabet)
    return generator, TokenDiscriminator(load_discriminator(config), alphabet)


def load_models(initial_state: InitialState, data: GANData, generator: Generator, discriminator: Discriminator) -> None:
    """Load both models' weights, or a file of the generator's; CheckpointError if they are of other models."""
    if initial_state.model is None:
        initial_state.load_weights(generator.model)
        return
    initial_state.load_weights(generator.model, data.tokenizer, part="generator")
    initial_state.load_weights(discriminator.model, part="judge")
    discriminator.load_running_state(initial_state.state.get("verdicts", {}))


def save_tokenizers(data: GANData, names: Sequence[str], folder: Path) -> None:
    """Write the tokenizer, if there is one, into the folder of each model."""
    if data.tokenizer is not None:
        for name in names:
            data.tokenizer.save_pretrained(folder / name)
