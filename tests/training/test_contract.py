"""What every recipe keeps: a batch may be divided in any way, and a resumed run ends with the same bits."""

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Train
from safetensors.torch import load_file

from nbtools.cli.commands import main as nbtools
from nbtools.config import TrainConfig
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.checkpoints import Checkpoint
from nbtools.rundir import media
from nbtools.rundir.json_files import read_json
from nbtools.rundir.media import MediaItem
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.initial_state import InitialState
from nbtools.training.engine.plan import Plan
from nbtools.training.engine.worker import Worker
from nbtools.training.process.vote import Vote

import trainings
from trainings import ByHand, assert_same_checkpoints, gradients_of, rows


@dataclass(frozen=True)
class Case:
    """A recipe, and what its runs are compared by."""

    key: str
    metrics: tuple[str, ...]
    """Metrics that a divided batch leaves alike, within `tolerance`."""
    tolerance: float = 1e-5
    step: dict[str, Any] = field(default_factory=lambda: {"max_steps": 1})
    """What makes the run short whose last gradients are compared."""
    changes: dict[str, Any] = field(default_factory=dict)
    middle: int = 5
    """The step to resume from; within an epoch, and between two rows of metrics."""

    def config(self, **changes: Any) -> TrainConfig:
        return RECIPES[self.key].config_class(**{**trainings.TINY[self.key], **self.changes, **changes})


DIFFUSION = ("train/loss", "eval/loss", "eval/unigram_loss", "eval/bigram_loss")
SCORES = ("train/loss", "train/padding", "eval/loss", "eval/flat_loss", "eval/majority_accuracy")
RETURNS = ("train/loss", "eval/loss", "eval/return_first", "eval/return_last", "eval/return_best")
GAME = ("train/judge_loss", "train/reward", "eval/loss", "eval/oracle_loss", "eval/judge_accuracy", "eval/unique")
GAME += ("eval/copy_rate", "eval/self_bleu", "eval/kl_to_start")
BOTH_GENERATOR_STEPS = {"generator_warmup_steps": 1, "judge_warmup_steps": 1, "max_steps": 4}
"""The last gradients are those of the second step in which both are trained: all that was before has to agree."""
BINNED = [f"{part}/{name}" for part in ("eval", "test") for name in ("ece", "ece_uncalibrated", "coverage")]
BINNED += ["eval/accepted_exact", "test/accepted_exact"]
"""Metrics that jump where a probability passes the edge of a bin, or the threshold."""

CASES = {
    "mlm_pretraining": Case(
        "mlm_pretraining", ("train/loss", "eval/loss", "eval/accuracy"), changes={"eval_samples": 5}
    ),
    "masked_diffusion": Case("masked_diffusion", DIFFUSION),
    "masked_diffusion, pairs": Case("masked_diffusion", DIFFUSION, changes={"dataset": "pairs.jsonl"}),
    "masked_diffusion, packed pairs": Case(
        "masked_diffusion", DIFFUSION, changes={"dataset": "pairs.jsonl", "pad_to": "packed"}
    ),
    "text_classification": Case("text_classification", SCORES, tolerance=1e-4, changes={"eval_samples": 20}),
    "algorithm_distillation": Case("algorithm_distillation", RETURNS, changes={"eval_samples": 5}),
    "llm_gan": Case("llm_gan", GAME, 1e-3, BOTH_GENERATOR_STEPS, middle=6),
}
CASES |= {
    f"{key}, lora": dataclasses.replace(
        CASES[key],
        metrics=tuple(name.replace("oracle", "ngram") for name in CASES[key].metrics),
        changes={**CASES[key].changes, **trainings.ADAPTED[key], "adapter": "lora", "lora_rank": 4},
    )
    for key in trainings.ADAPTED
}
SHARDED = {name: case for name, case in CASES.items() if "pairs" not in name}
SHARDED |= {
    f"{key}, named": dataclasses.replace(CASES[key], changes={**CASES[key].changes, **trainings.ADAPTED[key]})
    for key in ("mlm_pretraining", "masked_diffusion")
}
VERDICTS: dict[str, Any] = {"dataset": "topics", "vocab_size": 100, "prompt_length": 12}
VERDICTS |= {"judging": "verdicts", "max_judge_tokens": 6}
SHARDED |= {
    "masked_diffusion, guided pairs": Case(
        "masked_diffusion", DIFFUSION, changes={"dataset": "pairs.jsonl", "guidance": 1.0}
    ),
    "llm_gan, verdicts": Case("llm_gan", GAME, changes=VERDICTS),
}
UNEVEN: dict[str, dict[str, Any]] = {
    "mlm_pretraining": {"eval_samples": 5, "batch_size": 1},
    "masked_diffusion": {"eval_draws": 9},
    "text_classification": {"eval_samples": 9},
    "algorithm_distillation": {"eval_samples": 5, "eval_batch_size": 1, "eval_rollouts": 1},
    "llm_gan": {"eval_samples": 33},
}
"""Evaluations in which one of two ranks has a batch more than the other, by recipe."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Each recipe, with its data in the project."""
    case = (CASES | SHARDED)[request.param]
    trainings.write_inputs(case.key, cpu_project)
    if "model_name" in case.changes:
        monkeypatch.chdir(cpu_project.root)
        trainings.write_base(case.key, cpu_project)
    return case


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """Weights in all files of a folder, by subfolder and name."""
    return {
        f"{path.parent.relative_to(folder)}/{name}": weight
        for path in folder.rglob("*.safetensors")
        for name, weight in load_file(path).items()
    }


def items(files: RunDir, after: int) -> dict[str, list[MediaItem]]:
    """Samples, tables and charts of the steps after that one, without the time of day."""
    return {
        name: [dataclasses.replace(item, time=0) for item in media.read(files.media, name) if item.step > after]
        for name in media.names(files.media)
    }


@pytest.mark.promise("guide-L1", "guide-L9", "guide-A6", "guide-A8", "guide-O11", "guide-G4", "safety-test")
def test_ranks_and_accumulated_passes_do_the_step_of_the_joined_batch(
    case: Case, start: ByHand, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = case.config(batch_size=16, test_fraction=0.5, **case.step)
    accumulated = whole.replace(batch_size=4, gradient_accumulation_steps=4)
    divided = whole.replace(batch_size=4, gradient_accumulation_steps=2)
    run, of_ranks = start.gradients(divided, 2)
    (joined, joined_rows), (passes, passes_rows) = (
        gradients_of(trained, config, monkeypatch) for config in (whole, accumulated)
    )
    trainings.assert_same_gradients(joined[-len(of_ranks) :], of_ranks)
    trainings.assert_same_gradients(joined, passes)
    names = [*case.metrics, *(name.replace("eval/", "test/") for name in case.metrics)]
    expected = {name: {**joined_rows[-2], **joined_rows[-1]}[name] for name in names}
    for evaluated, tested in (passes_rows[-2:], rows(run.files)[-2:]):
        found = {name: {**evaluated, **tested}[name] for name in names}
        assert found == pytest.approx(expected, rel=case.tolerance)
    waits = [row["train/peer_wait"] for row in rows(run.files, without=()) if "train/data_wait" in row]
    assert waits and all(0 < wait < 1 for wait in waits)


HALF = [{"precision": "bf16"}, {"precision": "fp16"}]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "masked_diffusion": [
        *(*HALF, {"gradient_checkpointing": True}, {"tokenizer": "words"}, {"eos_last": True, "temperature": 0.0}),
        {"remasking": "random", "temperature": 0.0, "sample_block_length": 4, "sample_steps": 4, "suppress_eos": True},
        {"dataset": None, "min_words": 5, "vocab_size": 128},
    ],
    "text_classification": [{"precision": "bf16"}],
    "algorithm_distillation": [*HALF, {"gradient_checkpointing": True}, {"source_algorithm": "q_learning"}],
    "llm_gan": [
        *(*HALF, {"gradient_checkpointing": True, "dropout": 0.1}, {"judge_steps": 1, "lr_schedule": "cosine"}),
        {"temperature": 0.7, "discount": 1.0, "entropy_weight": 0.0},
        *({**VERDICTS, **more} for more in (HALF[0], {"gradient_checkpointing": True}, {"dropout": 0.1})),
        {**VERDICTS, "temperature": 0.8},
    ],
}


@pytest.mark.parametrize(("key", "changes"), [(key, each) for key in SETTINGS for each in SETTINGS[key]])
def test_every_setting_trains(key: str, changes: dict[str, Any], trained: Train, cpu_project: Project) -> None:
    trainings.write_inputs(key, cpu_project)
    seen = rows(trained(CASES[key].config(**changes, max_steps=6)))
    losses = [value for row in seen for name, value in row.items() if "loss" in name or "reward" in name]
    assert "eval/loss" in seen[-1] and all(isinstance(loss, float) and math.isfinite(loss) for loss in losses)


@pytest.mark.promise("safety-adapter")
@pytest.mark.parametrize(
    "case",
    [
        # Among the fast tests each recipe with a model made here, and one adapter.
        pytest.param(name, marks=[] if name in (*RECIPES, "llm_gan, lora", "llm_gan, verdicts") else pytest.mark.slow)
        for name in SHARDED
    ],
    indirect=True,
)
def test_two_ranks_train_sharded_as_whole(case: Case, start: ByHand, cpu_project: Project) -> None:
    """Every rank runs every block equally often, in the same order, where evaluations and rollouts have uneven parts:
    the passes of a sharded model are collectives. The sharded run also resumes to the bit.

    `outputs/model`, an adapter alone if there is one, and the export, where it is merged, are those of the whole run.
    """
    few = {**case.step, "max_steps": 4, "eval_every": 4, "checkpoint_every": 2}
    values = {"batch_size": 4, "dropout": 0.0, "test_fraction": 0.5, "collective_timeout_min": 1, **few}
    config, base = case.config(**{**values, **UNEVEN[case.key]}), cpu_project.root / "base"
    if base.is_dir():
        (base / "modeling_llada.py").write_text("# never run")
    whole = start.forked(config, more=trainings.SAME_ADAPTER).files
    sharded = start.forked(config.replace(strategy="fsdp"), more=trainings.SAME_ADAPTER, timeout_s=120).files
    assert not any("train/peer_wait" in row for row in rows(sharded, without=())), "forward passes are collectives"
    for row, expected in zip(*(rows(files, (*trainings.CLOCKED, *BINNED)) for files in (sharded, whole)), strict=True):
        assert row == pytest.approx(expected, rel=1e-3)
    resumed = start.forked(config.replace(strategy="fsdp"), "--resume-from", sharded.checkpoint(2)).files
    assert_same_checkpoints(sharded.checkpoint(4), resumed.checkpoint(4))
    for files in (whole, sharded):
        assert nbtools(["export", files.id, "-o", str(cpu_project.root / files.id)]) == 0
    folders = [(files.outputs / "model", cpu_project.root / files.id) for files in (sharded, whole)]
    for found, expected in zip(*(map(weights_in, pair) for pair in folders), strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.allclose(found[name], weight, atol=1e-3, rtol=1e-2) for name, weight in expected.items())
    settings = [json.loads(next(folder.rglob("config.json")).read_text()) for folder, _ in folders]
    fitted = [each.pop("calibration", {}) for each in settings]
    assert settings[0] == settings[1] and fitted[0].keys() == fitted[1].keys()
    if base.is_dir() and "lora_rank" not in case.changes:
        assert weights_in(sharded.outputs / "model").keys() == weights_in(base).keys()
    if base.is_dir() and case.key == "masked_diffusion":  # what LLaDA's own code needs
        assert settings[0]["auto_map"] == json.loads((base / "config.json").read_text())["auto_map"]
        for name in ("modeling_llada.py", "tokenizer.json"):
            assert (cpu_project.root / sharded.id / name).read_bytes() == (base / name).read_bytes()


QUIETER: dict[str, dict[str, Any]] = {
    "masked_diffusion": {"sample_texts": 0},
    "algorithm_distillation": {"eval_rollouts": 1, "eval_every": 1, "eval_batch_size": 1},
    "llm_gan": {"eval_every": 6},
}
"""Fields of what is evaluated and shown, by recipe."""


@pytest.mark.parametrize("key", QUIETER)
def test_what_is_evaluated_and_shown_does_not_change_what_is_learnt(
    key: str, trained: Train, cpu_project: Project
) -> None:
    trainings.write_inputs(key, cpu_project)
    stages = {"generator_warmup_steps": 3, "judge_warmup_steps": 3} if key == "llm_gan" else {}  # evaluated either way
    last = 8 if key == "llm_gan" else 6
    config = CASES[key].config(dropout=0.2, max_steps=last, checkpoint_every=last, **stages)
    weights = [weights_in(trained(config.replace(**more)).checkpoint(last)) for more in ({}, QUIETER[key], {"seed": 1})]
    same = [all(torch.equal(weights[0][name], other[name]) for name in weights[0]) for other in weights[1:]]
    assert same == [True, False]


def make_best(patch: pytest.MonkeyPatch, best: int) -> None:
    """Make the evaluation after one step the best one."""
    real = Worker.end_step

    def end_step(worker: Worker, values: dict[str, float], total_steps: int) -> None:
        if "eval/loss" in values:
            loss = float(worker.progress.step != best)
            values = {**values, "eval/loss": loss, "eval/return_last": -loss}
        real(worker, values, total_steps)

    patch.setattr(Worker, "end_step", end_step)


@pytest.mark.promise("safety-test")
@pytest.mark.parametrize("case", [name for name in CASES if "pairs" not in name], indirect=True)
def test_the_best_kept_checkpoint_is_tested_once_at_the_end(
    case: Case, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = {"judge_accuracy": 0.0, "generator_warmup_steps": 0, "judge_warmup_steps": 0}
    one_stage = stages if case.key == "llm_gan" else {}
    config = case.config(test_fraction=0.5, lr_schedule="constant", warmup_ratio=0.0, max_steps=6, **one_stage)
    tests = []
    for best, last in ((3, 6), (3, 3), (6, 6)):
        with monkeypatch.context() as patch:
            make_best(patch, best)
            files = trained(config.replace(max_steps=last))
        *earlier, tested = rows(files)
        assert tested["step"] == last
        only_sometimes = {"eval/return_last", "eval/accepted_exact"}
        evaluated = {name for name in earlier[-1] if name.startswith("eval/")} - only_sometimes
        names = {name for name in tested if name.startswith("test/")}
        assert evaluated <= {name.replace("test/", "eval/") for name in names}
        assert not any(name.startswith("test/") for row in earlier for name in row)
        (table,) = media.read(files.media, "test")
        assert f"step-{best:06}" in table.title
        tests.append({name: tested[name] for name in names})
    assert tests[0] == tests[1], "the weights of step 3, not the last ones"
    assert tests[0] != tests[2]


@pytest.mark.promise("safety-test")
def test_the_best_checkpoint_of_a_gan_is_one_of_adversarial_training(
    trained: Train, cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_best(monkeypatch, 3)  # of the judge's warm-up
    files = trained(CASES["llm_gan"].config(test_fraction=0.5, max_steps=6))
    assert [Checkpoint.read(files.checkpoint(step)).manifest["stage"] for step in (3, 6)] == [
        "judge warm-up",
        "adversarial",
    ]
    (table,) = media.read(files.media, "test")
    assert "step-000006" in table.title


@pytest.mark.promise("safety-test")
@pytest.mark.parametrize("case", RECIPES, indirect=True)
def test_a_run_recorded_before_the_test_is_resumed_to_the_bit_without_one(
    case: Case, trained: Train, start: ByHand
) -> None:
    """So is the whole run once more, in another process."""
    config = case.config(test_fraction=0.0, dropout=0.2, max_steps=6, ema_decay=0.5)
    again = start.forked(config, nproc=1).files
    straight = trained(config)
    recorded = type(config).recorded(config.model_dump(exclude={"test_fraction"}))
    resumed = trained(recorded, straight.checkpoint(3))
    for repeated in (resumed, again):
        assert_same_checkpoints(straight.checkpoint(6), repeated.checkpoint(6))
    assert rows(resumed) == [row for row in rows(straight) if row["step"] > 3]
    assert rows(again) == rows(straight)
    assert "test/" not in resumed.metrics.read_text()


@pytest.mark.promise("safety-test")
def test_a_stopped_training_is_not_tested_and_a_resumed_one_at_its_own_end(
    trained: Train, texts: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CASES["mlm_pretraining"].config(test_fraction=0.5)

    def stop(worker: Worker) -> bool:
        worker.vote.is_agreed = worker.progress.step == 2
        return worker.vote.is_agreed

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "stop_agreed", stop)
        stopped = trained(config)
    assert "test/" not in stopped.metrics.read_text()
    resumed = trained(config, stopped.checkpoint(3))
    assert [row["step"] for row in rows(resumed) if "test/loss" in row] == [6]
    derived = json.loads(resumed.config.read_text())["derived"]
    assert derived["num_test_samples"] > 0
    assert derived["checkpoint_chosen_by"] == "evaluation: lowest eval/loss"


@pytest.mark.promise("safety-test")
def test_a_damaged_best_checkpoint_is_passed_over_and_without_one_the_last_weights_are_tested(
    trained: Train, texts: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CASES["mlm_pretraining"].config(test_fraction=0.5)
    real = Worker.begin_test

    def titles(damaged: Sequence[int]) -> list[str]:
        def begin_test(worker: Worker, plan: Plan) -> InitialState | None:
            for step in damaged:
                (worker.files.checkpoint(step) / "state.pt").write_bytes(b"torn")
            return real(worker, plan)

        monkeypatch.setattr(Worker, "begin_test", begin_test)
        return [item.title for item in media.read(trained(config).media, "test")]

    (whole,) = titles([])
    better, other = (6, 3) if "step-000006" in whole else (3, 6)
    assert f"step-{other:06}" in titles([better])[0]
    assert "the last weights" in titles([3, 6])[0]


@pytest.mark.promise("safety-test")
def test_the_model_is_in_outputs_before_the_test_and_a_stop_after_the_last_step_leaves_it_out(
    trained: Train, texts: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CASES["mlm_pretraining"].config(test_fraction=0.5)
    real, seen = Worker.end_test, []

    def end_test(worker: Worker, values: Mapping[str, float]) -> None:
        seen.append([path.name for path in (worker.files.outputs / "model").iterdir()])
        real(worker, values)

    monkeypatch.setattr(Worker, "end_test", end_test)
    assert "test/loss" in trained(config).metrics.read_text()
    assert "model.safetensors" in seen[0]

    def asked_too_late(vote: Vote) -> bool:
        vote.stop.requested = True
        return False

    monkeypatch.setattr(Vote, "agreed", asked_too_late)
    files = trained(config)
    assert "test/" not in files.metrics.read_text()
    assert (read_json(files.finished) or {})["why"] == "completed"
    assert (files.outputs / "model" / "model.safetensors").is_file()


@pytest.mark.promise("fault-26", "fault-27")
@pytest.mark.slow
def test_two_ranks_resumed_in_the_middle_of_an_epoch_end_with_the_same_bits(
    case: Case, start: ByHand, trained: Train, cpu_project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    """Caches are gone, and a process of each rank reads ahead: neither changes anything."""
    values = {"batch_size": 2, "gradient_accumulation_steps": 2, "dropout": 0.2, "max_steps": 8, "log_every": 4}
    config = case.config(**values, test_fraction=0.5, ema_decay=0.9).replace(checkpoint_every=case.middle)
    straight = start.forked(config)
    saved = straight.files.checkpoint(case.middle)
    shutil.rmtree(cpu_project.runs / ".cache", ignore_errors=True)
    resumed = start.forked(config, "--resume-from", saved, "--num-workers", "1")
    assert_same_checkpoints(straight.files.checkpoint(8), resumed.files.checkpoint(8))
    later = [row for row in rows(straight.files) if row["step"] > case.middle]
    assert rows(resumed.files) == later
    assert items(resumed.files, case.middle) == items(straight.files, case.middle)
    # One process with the joined batch takes the same samples.
    alone = rows(trained(config.replace(batch_size=4, dropout=0.0), Path(saved)))
    assert [(row["step"], row["samples"]) for row in alone] == [(row["step"], row["samples"]) for row in later]
    assert "2 processes until now, 1 from here on" in capfd.readouterr().out
