"""Generator against judge: the same gradients however the batch is divided, bit-exact resume, real learning."""

import copy
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Train
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from nbtools.data.llm_gan import markov
from nbtools.errors import ConfigError
from nbtools.project import Project
from nbtools.recipes import RECIPES, LLMGANConfig
from nbtools.recipes.llm_gan import load_stories
from nbtools.run.checkpoints import Checkpoint, checkpoints_in
from nbtools.rundir import media
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine import checkpoint
from nbtools.training.engine.sampler import uniforms
from nbtools.training.llm_gan.dataset import tokenize_stories
from nbtools.training.llm_gan.gan_data import TextDataset, markov_data
from nbtools.training.llm_gan.generator import Generator
from nbtools.training.llm_gan.llm_judge import LLMJudge
from nbtools.training.llm_gan.ngrams import self_bleu
from nbtools.training.llm_gan.rewards import Baseline
from nbtools.training.llm_gan.rollouts import GANRollouts
from nbtools.training.llm_gan.train import build_models
from nbtools.training.text.causal_sampling import write

import trainings
from trainings import ByHand, assert_same_checkpoints, gradients_of, rows

TINY = trainings.TINY["llm_gan"]
"""The generator learns in steps 1 and 2, the judge in 3 and 4, then the game begins."""


def tiny(**changes: Any) -> LLMGANConfig:
    return LLMGANConfig(**{**TINY, **changes})


# --- in one process -------------------------------------------------------------------------------


def test_a_run_leaves_rows_of_its_stages_samples_checkpoints_and_what_the_form_had_shown(
    trained: Train, cpu_project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(max_steps=None, epochs=1)
    files, derived = trainings.trained_as_shown(trained, config, cpu_project.root)
    assert derived["num_parameters"] == RECIPES["llm_gan"].num_parameters(config, derived["vocab_size"])
    seen = rows(files)
    assert [row["step"] for row in seen] == list(range(1, 13))
    learning = [{name for name in row if name in ("train/loss", "train/judge_loss", "train/reward")} for row in seen]
    game = {"train/judge_loss", "train/reward"}
    assert learning == [{"train/loss"}] * 2 + [{"train/judge_loss"}] * 2 + [game] * 8
    assert {"train/entropy", "train/undecided", "train/judge_accuracy", "train/grad_norm"} <= seen[-1].keys()
    evaluated = [row["step"] for row in seen if "eval/loss" in row]
    assert evaluated == [2, 3, 4, 6, 9, 12], "every three steps, and where a warm-up ends"
    names = {"eval/loss", "eval/oracle_loss", "eval/judge_accuracy", "eval/unique", "eval/undecided"}
    assert names <= seen[-1].keys()
    oracle = {row["step"]: row["eval/oracle_loss"] for row in seen if "eval/loss" in row}
    assert oracle[2] == oracle[3] == oracle[4] != oracle[6], "the judge's warm-up leaves the generator alone"
    assert "adversarial training starts after step 4" in capfd.readouterr().out
    shown = media.read(files.media, "samples")
    assert [item.step for item in shown] == evaluated
    assert len(shown[-1].rows) == 8
    assert all(len(row) == len(shown[-1].columns) for row in shown[-1].rows)
    assert all(0 <= int(symbol) < 8 for row in shown[-1].rows for text in row[:2] for symbol in text.split())


def test_generator_and_judge_are_loaded_apart_by_anybody_and_measure_as_was_said(
    trained: Train, cpu_project: Project
) -> None:
    config = tiny(save_dir="handed_over")
    files = trained(config)
    handed = {path.parent.name for path in (cpu_project.root / "handed_over" / "model").rglob("model.safetensors")}
    assert handed == {"generator", "judge"}
    last = checkpoints_in(files.checkpoints)[-1]
    data = markov_data(config)
    options = {"trust_remote_code": False}
    writer = AutoModelForCausalLM.from_pretrained(last.path / "model/generator", **options).eval()
    discriminator = AutoModelForTokenClassification.from_pretrained(last.path / "model/judge", **options).eval()
    reals = torch.from_numpy(data.evaluation.texts_NT.astype(np.int64))
    start = torch.ones(len(reals), 1, dtype=torch.long)
    with torch.no_grad():
        drawn = torch.from_numpy(uniforms(config.seed, "evaluation", 0, np.arange(30), 6))
        fakes = write(writer, start, drawn, data.alphabet)
        means = [
            discriminator(input_ids=torch.cat([start, texts], 1)).logits[:, 1:, 0].mean(1) for texts in (reals, fakes)
        ]
    truth = markov.random_chain(8).losses(fakes.numpy() - 3)
    loss = -float(log_likelihoods(last.path / "model/generator", reals, 1.0).mean())
    assert last.metrics["eval/loss"] == pytest.approx(loss, rel=1e-4)
    assert last.metrics["eval/oracle_loss"] == pytest.approx(float(truth.mean()), rel=1e-4)
    assert last.metrics["eval/judge_accuracy"] == pytest.approx(float((means[0] > means[1]).float().mean()))
    written, human = fakes.numpy().astype(np.int32), data.evaluation.texts_NT
    assert last.metrics["eval/self_bleu"] == pytest.approx(self_bleu(written, data.alphabet))
    assert last.metrics["eval/human_self_bleu"] == pytest.approx(self_bleu(human, data.alphabet))
    assert last.metrics["eval/unique"] == pytest.approx(len({tuple(text) for text in fakes.tolist()}) / 30)


@pytest.mark.promise("guide-G8")
@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits_in_every_stage(trained: Train) -> None:
    config = tiny(batch_size=4, gradient_accumulation_steps=2, dropout=0.2, log_every=4, epochs=1)
    straight = trained(config)
    seen = rows(straight)
    for middle, num_workers in ((1, 0), (3, 0), (4, 0), (6, 1)):  # in each stage, and where the game begins
        resumed = trained(config.replace(num_workers=num_workers), straight.checkpoint(middle))
        assert_same_checkpoints(straight.checkpoint(8), resumed.checkpoint(8))
        assert rows(resumed) == [row for row in seen if row["step"] > middle]
    state = checkpoint.load_state(straight.checkpoint(8))
    assert state["stages"]["game_since"] == 4
    assert len(state["generator"]["optimizer"]) > 4
    assert len(state["judge"]["optimizer"]) > 4
    assert (state["baseline"] != 0).any()


def test_a_frozen_generator_learns_nothing_in_the_game_and_the_judge_goes_on(trained: Train) -> None:
    files = trained(tiny(freeze_generator=True))
    made = [Checkpoint.read(files.checkpoint(step)).manifest["files"] for step in (2, 4, 8)]
    generators, judges = (
        [files_[f"model/{name}/model.safetensors"]["sha256"] for files_ in made] for name in ("generator", "judge")
    )
    assert len(set(generators)) == 1
    assert len(set(judges)) == 3
    assert "train/reward" not in rows(files)[-1]


def test_by_likelihood_the_generator_learns_as_in_its_warm_up_and_the_judge_does_not(trained: Train) -> None:
    files, warm = trained(tiny(objective="likelihood")), trained(tiny(generator_warmup_steps=8))
    for part, is_trained in (("generator", True), ("judge", False)):
        weights = [load_file(files.checkpoint(step) / f"model/{part}/model.safetensors") for step in (1, 8)]
        other = load_file(warm.checkpoint(8) / f"model/{part}/model.safetensors")
        for name, weight in weights[1].items():
            assert weight.equal(other[name])
            assert weight.equal(weights[0][name]) != is_trained, name
    assert not any("judge_loss" in name or "reward" in name for row in rows(files) for name in row)
    assert Checkpoint.read(files.checkpoint(8)).manifest["stage"] == "likelihood"


def log_likelihoods(folder: Path, texts_NT: torch.Tensor, temperature: float) -> torch.Tensor:
    """Of texts of the Markov chain under a saved generator, by its own class and without ours. Shape (N, T)."""
    writer = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).eval()
    with torch.no_grad():
        start = torch.ones(len(texts_NT), 1, dtype=torch.long)
        logits = writer(input_ids=torch.cat([start, texts_NT[:, :-1]], 1)).logits.double()
    logits[..., :3] = -torch.inf
    return (logits / temperature).log_softmax(-1).gather(2, texts_NT[..., None])[..., 0]


def test_the_divergence_from_the_start_is_that_of_the_distributions_of_all_texts(
    trained: Train, cpu_project: Project
) -> None:
    """Of four symbols and four places there are 256 texts: their sum is exact, and the metric its estimate."""
    few = {"num_symbols": 4, "sequence_length": 4, "temperature": 0.7, "checkpoint_every": 4, "eval_every": 8}
    first = trained(tiny(**few, objective="likelihood", max_steps=4)).checkpoint(4) / "model/generator"
    weights = load_file(first / "model.safetensors")
    torch.save(weights | {"lm_head.weight": weights["transformer.wte.weight"]}, cpu_project.root / "start.pt")
    config = tiny(**few, objective="likelihood", warmup_learning_rate=1e-2, eval_samples=2000)
    straight = trained(config, cpu_project.root / "start.pt")
    resumed = trained(config, straight.checkpoint(4))
    texts_NT, last = torch.cartesian_prod(*[torch.arange(3, 7)] * 4), straight.checkpoint(8) / "model/generator"
    own_N, start_N = (log_likelihoods(folder, texts_NT, 0.7).sum(1) for folder in (last, first))
    mean = float((own_N.exp() * (own_N - start_N)).sum())
    error = math.sqrt(float((own_N.exp() * (own_N - start_N - mean) ** 2).sum()) / 2000)
    found = [rows(files)[-1]["eval/kl_to_start"] for files in (straight, resumed)]
    assert found == [pytest.approx(mean, abs=4 * error)] * 2
    assert mean > 8 * error, "not by chance"


def test_a_run_ends_with_quality_against_diversity_over_temperatures(trained: Train) -> None:
    config = tiny(test_fraction=0.5)
    files = trained(config)
    (table,), (chart,) = (media.read(files.media, name) for name in ("temperatures", "quality_diversity"))
    assert table.columns == ("temperature", "oracle_loss", "self_bleu", "loss", "unique")
    shown = {float(row[0]): [float(cell) for cell in row[1:]] for row in table.rows}
    assert "step-000008" in media.read(files.media, "test")[0].title
    folder = files.checkpoint(8) / "model/generator"
    writer = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).eval()
    data, start = markov_data(config), torch.ones(30, 1, dtype=torch.long)
    drawn = torch.from_numpy(uniforms(config.seed, "evaluation", 0, np.arange(30), 6))
    fakes = write(writer, start, drawn, data.alphabet, temperature=1.4)
    loss = -float(log_likelihoods(folder, torch.from_numpy(data.test.texts_NT).long(), 1.4).mean())
    oracle = float(markov.random_chain(8).losses(fakes.numpy() - 3).mean())
    repeats = self_bleu(fakes.numpy().astype(np.int32), data.alphabet)
    assert shown[1.4][:3] == pytest.approx([oracle, repeats, loss], abs=1e-3)
    expected = sorted((repeats, oracle) for oracle, repeats, *_ in shown.values())
    for found, value in zip((chart.x, chart.lines["generator"]), zip(*expected, strict=True), strict=True):
        assert found == pytest.approx(value, abs=1e-4)


def test_what_a_judge_cannot_decide_never_moves_the_generator() -> None:
    """Not even where the usual reward is negative, and nothing would be a gain."""
    config = tiny(entropy_weight=0.0)
    data = markov_data(config)
    torch.manual_seed(0)
    generator, discriminator = build_models(config, data)
    rollouts = GANRollouts(config, generator, discriminator, torch.device("cpu"))
    batch = TextDataset(data.train, 3, 6, 0)[0, np.arange(8)]
    torch.nn.init.normal_(discriminator.model.classifier.weight)
    torch.nn.init.constant_(discriminator.model.classifier.bias, -3.0)
    rollouts.rollout_inputs([batch])
    rollouts.baseline.update(torch.Tensor.tolist)
    (sure,) = rollouts.rollout_inputs([batch])
    assert (sure[2] != 0).any()
    rollouts.baseline.update(torch.Tensor.tolist)
    for bias in (0.0, math.nan):
        torch.nn.init.zeros_(discriminator.model.classifier.weight)
        torch.nn.init.constant_(discriminator.model.classifier.bias, bias)
        moments = rollouts.baseline.state_dict()
        (inputs,) = rollouts.rollout_inputs([batch])
        assert (inputs[2] == 0).all()
        generator.zero_grad()
        generator(*inputs)[0].backward()
        assert not any(weight.grad.any() for weight in generator.parameters() if weight.grad is not None)
        rollouts.baseline.update(torch.Tensor.tolist)
        assert rollouts.baseline.state_dict().equal(Baseline.DECAY * moments), "nor the baseline"
    row = rollouts.metrics(rollouts.tally.reduce(torch.Tensor.tolist))
    assert row["train/undecided"] == pytest.approx(0.5)


def in_double(judging: str, texts_at_once: int | None = None) -> tuple[GANRollouts, tuple[torch.Tensor, ...]]:
    """Rollouts of new models whose sums cannot move a token, and one batch of 16 with two draws."""
    changes: dict[str, Any] = {"dataset": "topics", "vocab_size": 60, "prompt_length": 6, "max_judge_tokens": 5}
    changes |= {"min_chars": 40, "batch_size": 4, "gradient_accumulation_steps": 4, "judge_steps": 1}
    config = tiny(**changes, judging=judging, texts_at_once=texts_at_once)
    train, evaluation, _ = load_stories(config)
    data = tokenize_stories(config, train[:200], evaluation[:50])
    torch.manual_seed(0)
    generator, discriminator = (model.double() for model in build_models(config, data))
    num_uniforms = config.sequence_length + discriminator.num_uniforms
    rollouts = GANRollouts(config, generator, discriminator, torch.device("cpu"))
    return rollouts, TextDataset(data.train, 2, num_uniforms, 0)[0, np.arange(16)]


def passes_of(batch: tuple[torch.Tensor, ...], size: int) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(torch.split(part, size) for part in batch), strict=True))


@pytest.mark.promise("safety-own-numbers")
@pytest.mark.parametrize("judging", ["scores", "verdicts"])
@pytest.mark.parametrize("texts_at_once", [None, 5])
def test_passes_are_written_together_and_say_what_one_batch_says(judging: str, texts_at_once: int | None) -> None:
    rollouts, batch = in_double(judging)
    (pairs,) = rollouts.discriminator_inputs([batch], 0, supervised=False)
    (rewarded,) = rollouts.rollout_inputs([batch])
    divided, _ = in_double(judging, texts_at_once)
    reads: list[int] = []
    model = divided._generator.model
    model.register_forward_pre_hook(lambda _, __, inputs: reads.append(len(inputs["input_ids"])), with_kwargs=True)
    found = divided.discriminator_inputs(passes_of(batch, 4), 0, supervised=False)
    assert [len(part[0]) for part in found] == [4] * 4
    assert set(reads) == ({16} if texts_at_once is None else {5, 1})
    assert len(reads) <= TINY["sequence_length"] * (1 if texts_at_once is None else 4), "one token of all at a time"
    for one, part in zip(pairs, zip(*found, strict=True), strict=True):
        assert torch.cat(part).equal(one)
    texts = divided.rollout_inputs(passes_of(batch, 4))
    for one, part in zip(rewarded[:4], zip(*(text[:4] for text in texts), strict=True), strict=True):
        assert torch.cat(part).allclose(one, atol=1e-12)
    assert texts[0][4] == rewarded[4]


def test_too_little_memory_for_all_texts_names_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts, batch = in_double("scores")

    def no_memory(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(rollouts._generator, "pairs", no_memory)
    said = r"texts_at_once=None: the GPU has too little memory to write and judge 16 texts together; lower it, .* to 8"
    with pytest.raises(ConfigError, match=said):
        rollouts.rollout_inputs([batch])


@pytest.mark.promise("safety-policy")
@pytest.mark.parametrize("recomputes", [False, True])
def test_sampled_texts_and_verdicts_are_learnt_as_they_were_sampled(
    trained: Train, monkeypatch: pytest.MonkeyPatch, recomputes: bool
) -> None:
    """The loss of what a model wrote is that of the policy that wrote it, which has no dropout: the ratio is 1."""
    found: dict[tuple[type, bool], list[bool]] = {}
    is_sampled = {Generator: lambda inputs: inputs[4] == 0.9, LLMJudge: lambda inputs: bool((inputs[2] >= 0).all())}
    for kind in is_sampled:

        def both(self: torch.nn.Module, *inputs: Any, forward: Any = kind.forward, kind: type = kind) -> torch.Tensor:
            with torch.no_grad():
                at_rest = forward(copy.deepcopy(self).eval(), *inputs)[0]
            loss: torch.Tensor = forward(self, *inputs)
            is_same = bool(loss[0].detach().isclose(at_rest, rtol=1e-5, atol=1e-6))
            found.setdefault((kind, is_sampled[kind](inputs)), []).append(is_same)
            assert recomputes == any(
                getattr(part, "gradient_checkpointing", 0) * part.training for part in self.modules()
            )
            return loss

        monkeypatch.setattr(kind, "forward", both)
    texts = {"dataset": "topics", "judging": "verdicts", "prompt_length": 8, "max_judge_tokens": 4}
    trained(tiny(**texts, dropout=0.4, temperature=0.9, gradient_checkpointing=recomputes, max_steps=6))
    assert {key: all(same) for key, same in found.items()} == {  # with dropout, a loss may be the same by chance
        (kind, is_own): is_own for kind in is_sampled for is_own in (False, True)
    }


def test_every_weight_learns_in_half_precision_as_in_full(trained: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast keeps a weight's half that was made without gradients: one context must not see writing and learning."""
    saved = trained(tiny()).checkpoint(6)
    go_on = functools.partial(trained, resume_from=saved)
    config = tiny(max_steps=7)
    whole, _ = gradients_of(go_on, config, monkeypatch)
    for precision in ("bf16", "fp16"):
        half, _ = gradients_of(go_on, config.replace(precision=precision, gradient_clip=0), monkeypatch)
        assert len(half) == len(whole) > 8
        assert all(gradient.abs().sum() > 0 for gradient in half), precision


def test_the_generators_weights_alone_can_be_gone_on_from(trained: Train, cpu_project: Project) -> None:
    saved = trained(tiny()).checkpoint(8)
    writer = AutoModelForCausalLM.from_pretrained(saved / "model/generator", trust_remote_code=False)
    weights = {f"module.{name}": weight for name, weight in writer.state_dict().items()}
    torch.save({"model_state_dict": weights, "epoch": 3}, cpu_project.root / "generator_epoch_3.pt")
    files = trained(tiny(max_steps=4), cpu_project.root / "generator_epoch_3.pt")
    assert rows(files)[0]["train/loss"] < rows(trained(tiny(max_steps=1)))[0]["train/loss"]


# --- learning -------------------------------------------------------------------------------------


def assert_target(files: RunDir, game_steps: int) -> int:
    """A judge of 80 % first, then less loss under the chain's own likelihood; return the last step before the game."""
    seen = {row["step"]: row for row in rows(files) if "eval/oracle_loss" in row}
    last = max(seen)
    since: int = checkpoint.load_state(files.checkpoint(last))["stages"]["game_since"]
    before, after = seen[since], seen[last]
    assert last - since <= game_steps
    assert before["eval/judge_accuracy"] >= 0.8
    assert after["eval/oracle_loss"] <= before["eval/oracle_loss"] - 0.3
    assert after["eval/oracle_loss"] > 1.9, "not by repeating what is probable: the chain's own sequences have 2.0"
    assert after["eval/loss"] <= before["eval/loss"] + 0.05
    assert after["eval/unique"] >= 0.9
    return since


@pytest.mark.seeds
@pytest.mark.parametrize("seed", [0, 1])
def test_the_game_makes_the_generator_better_under_a_truth_that_neither_side_knows(start: ByHand, seed: int) -> None:
    max_steps = (200, 270)[seed]
    finished = start.demo("llm_gan", checkpoint_every=10, keep_last=100, seed=seed, max_steps=max_steps)
    since = assert_target(finished.files, 160)
    # The control goes on from the same checkpoint, with a generator that learns nothing.
    middle = finished.files.checkpoint(since)
    only_judge = {"seed": seed, "max_steps": since + 20, "freeze_generator": True}
    frozen = start.demo("llm_gan", "--resume-from", middle, **only_judge)
    oracle = [row["eval/oracle_loss"] for row in rows(frozen.files) if "eval/oracle_loss" in row]
    before = next(row["eval/oracle_loss"] for row in rows(finished.files) if row["step"] == since)
    assert oracle
    assert min(oracle) > before - 0.05
