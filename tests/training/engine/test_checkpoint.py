"""Checkpoints: whole or absent, every byte checked, nothing executed, the run goes on without a disk."""

import ctypes
import gc
import hashlib
import math
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from file_size import file_size_limit
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import ModernBertConfig, ModernBertForMaskedLM

from nbtools.config import TrainConfig
from nbtools.errors import CheckpointError
from nbtools.run.checkpoints import best_of, checkpoints_in, newest_verified
from nbtools.rundir import json_files
from nbtools.rundir.json_files import write_json
from nbtools.training.engine import checkpoint
from nbtools.training.engine.checkpoint import Progress
from nbtools.training.engine.initial_state import InitialState
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.process import random_state

from trainings import assert_equal


@pytest.fixture(scope="module")
def model() -> ModernBertForMaskedLM:
    return tiny_model()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "checkpoints"
    path.mkdir(parents=True)
    return path


def tiny_model(**changes: int) -> ModernBertForMaskedLM:
    settings = {
        "vocab_size": 50,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "pad_token_id": 0,
        "cls_token_id": 1,
        "bos_token_id": 1,
        "sep_token_id": 2,
        "eos_token_id": 2,
    }
    return ModernBertForMaskedLM(ModernBertConfig(**{**settings, **changes}))


def save(folder: Path, model: ModernBertForMaskedLM, step: int, **changes: Any) -> Path:
    arguments: dict[str, Any] = {
        "write_model": model.save_pretrained,
        "state": {"optimizer": {0: {"exp_avg": torch.arange(4.0)}}, "effective_batch": 8},
        "rank_states": [{"random": random_state.random_state()}, {"random": random_state.random_state()}],
        "metrics": {"eval/loss": 2.5},
        "attempt": 1,
        "keep_last": 3,
    }
    return checkpoint.save(folder, Progress(step=step, epoch=1, position=8, samples=80), **{**arguments, **changes})


# --- writing --------------------------------------------------------------------------------------


def test_a_checkpoint_has_the_promised_files_and_verifies(folder: Path, model: ModernBertForMaskedLM) -> None:
    path = save(folder, model, 200, metrics={"eval/loss": 2.5, "a/b": math.inf})
    assert path == folder / "step-000200"
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert names >= {"manifest.json", "state.pt", "rank-0.pt", "rank-1.pt", "model/model.safetensors"}
    (listed,) = checkpoints_in(folder)
    listed.verify()
    assert names == {*listed.manifest["files"], "manifest.json"}
    assert listed.metrics == {"eval/loss": 2.5, "a/b": math.inf}
    said = {"epoch": 1, "samples": 80, "attempt": 1, "world_size": 2, "format": 1}
    said["metrics"] = {"eval/loss": 2.5, "a/b": "Infinity"}  # strict JSON
    assert listed.manifest.items() >= said.items()
    assert [entry.name for entry in folder.iterdir()] == ["step-000200"]


def test_what_was_saved_is_what_is_loaded(folder: Path, model: ModernBertForMaskedLM) -> None:
    path = save(folder, model, 200)
    state = checkpoint.load_state(path)
    assert Progress(**state["progress"]) == Progress(step=200, epoch=1, position=8, samples=80)
    assert torch.equal(state["optimizer"][0]["exp_avg"], torch.arange(4.0))
    other = tiny_model()
    checkpoint.load_weights(other, path / "model")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name
    published = ModernBertForMaskedLM.from_pretrained(path / "model")
    assert torch.equal(published.decoder.weight, model.decoder.weight)


def test_only_the_newest_are_kept(folder: Path, model: ModernBertForMaskedLM) -> None:
    for step in (2, 4, 10, 100):
        save(folder, model, step, keep_last=2)
    for thread in threading.enumerate():
        if thread.name == "prune":  # removes beside the training
            thread.join()
    assert sorted(entry.name for entry in folder.iterdir()) == ["step-000010", "step-000100"]


def test_a_recipe_may_prefer_another_metric_and_the_greater_value(folder: Path, model: ModernBertForMaskedLM) -> None:
    for step, accuracy in ((2, 0.5), (4, 0.9), (6, 0.7), (8, math.inf)):
        metrics = {"eval/loss": float(step), "eval/accuracy": accuracy}
        best = {"keep_best": 1, "best_by": "eval/accuracy", "lower_is_better": False}
        save(folder, model, step, metrics=metrics, keep_last=1, **best)
    kept = checkpoints_in(folder)
    assert [listed.step for listed in kept] == [4, 8]
    assert [listed.step for listed in best_of(kept)] == [4], "all readers see which one is meant"


def test_the_best_is_one_of_the_stage_that_the_training_is_in(folder: Path, model: ModernBertForMaskedLM) -> None:
    for step, loss, stage in ((2, 1.0, "warm-up"), (4, 4.0, "adversarial"), (6, 3.0, "adversarial")):
        save(folder, model, step, metrics={"eval/loss": loss}, keep_last=9, stage=stage)
    assert [found.step for found in best_of(checkpoints_in(folder), 9)] == [6, 4]
    assert [found.step for found in best_of(checkpoints_in(folder)[:1])] == [2]


LOSSES = st.none() | st.sampled_from([math.nan, math.inf, -math.inf]) | st.integers(0, 5).map(float)


@examples(150)
@given(
    saved=st.dictionaries(st.integers(1, 30), st.tuples(LOSSES, st.booleans()), min_size=1, max_size=8),
    later=st.integers(0, 3),
    keep_last=st.integers(1, 4),
    keep_best=st.integers(0, 3),
)
def test_pruning_keeps_the_newest_and_the_best_and_never_loses_the_last_that_verifies(
    tmp_path_factory: pytest.TempPathFactory,
    saved: dict[int, tuple[float | None, bool]],
    later: int,
    keep_last: int,
    keep_best: int,
) -> None:
    folder = tmp_path_factory.mktemp("pruned")
    steps = sorted(saved)
    written = steps[max(0, len(steps) - 1 - later)]  # what was saved just now; later ones are an older attempt's
    for step, (loss, is_damaged) in saved.items():
        content = b"damaged" if is_damaged and step != written else b"state"
        made(folder, step, {} if loss is None else {"eval/loss": loss}, content)
    newest_before, _ = newest_verified(folder)
    checkpoint.prune(folder, written, keep_last, keep_best)
    left = [listed.step for listed in checkpoints_in(folder)]
    older = [step for step in steps if step <= written]
    measured = [(loss, -step) for step in older if (loss := saved[step][0]) is not None and math.isfinite(loss)]
    best = {-step for _, step in sorted(measured)[:keep_best]}
    assert set(left) == {*older[-keep_last:], *best, *(step for step in steps if step > written)}
    assert newest_verified(folder)[0] == newest_before
    assert newest_before is not None
    checkpoint.prune(folder, written, keep_last, keep_best)
    assert [listed.step for listed in checkpoints_in(folder)] == left


def made(folder: Path, step: int, metrics: dict[str, float], content: bytes) -> None:
    """A checkpoint without torch; it verifies if its content is `state`."""
    path = folder / f"step-{step:06d}"
    path.mkdir()
    (path / "state.pt").write_bytes(content)
    files = {"state.pt": {"bytes": len(b"state"), "sha256": hashlib.sha256(b"state").hexdigest()}}
    said = {name: json_files.strict_number(value) for name, value in metrics.items()}
    write_json(path / "manifest.json", {"step": step, "time": 1.0, "metrics": said, "files": files})


def test_saving_a_step_again_replaces_it(folder: Path, model: ModernBertForMaskedLM) -> None:
    save(folder, model, 5)
    (folder / "step-000005" / "state.pt").write_bytes(b"damaged")
    save(folder, model, 5, metrics={"eval/loss": 1.0})
    (listed,) = checkpoints_in(folder)
    listed.verify()
    assert listed.metrics == {"eval/loss": 1.0}
    assert [entry.name for entry in folder.iterdir()] == ["step-000005"]


@pytest.mark.promise("fault-9")
@pytest.mark.parametrize("limit", [500, 2_000, 100_000])  # hits config.json, the weights, state.pt
def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(
    folder: Path, model: ModernBertForMaskedLM, limit: int
) -> None:
    save(folder, model, 5, keep_last=1)
    with pytest.raises(OSError), file_size_limit(limit):
        save(folder, model, 6, keep_last=1, state={"big": torch.zeros(100_000)})
    (listed,) = checkpoints_in(folder)
    assert listed.step == 5
    listed.verify()
    assert [entry.name for entry in folder.iterdir()] == ["step-000005"]


def test_a_tokenizer_on_a_full_disk_is_an_error_of_the_disk(folder: Path) -> None:
    vocabulary = {str(number): number for number in range(9999)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="0"))  # its errors are bare Exceptions
    with pytest.raises(OSError, match="os error"), file_size_limit(100_000):
        save(folder, tiny_model(), 5, write_model=lambda at: tokenizer.save(str(at / "tokenizer.json")))
    assert list(folder.iterdir()) == []


def test_an_error_that_is_not_the_disk_s_is_not_taken_for_one(folder: Path) -> None:
    def broken(folder: Path) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        save(folder, tiny_model(), 5, write_model=broken)
    assert list(folder.iterdir()) == []


def test_leftovers_of_a_killed_save_are_swept(folder: Path, model: ModernBertForMaskedLM) -> None:
    save(folder, model, 5)
    (folder / ".step-000006.tmp" / "model").mkdir(parents=True)
    (folder / ".step-000006.tmp" / "state.pt").write_bytes(b"half")
    assert [listed.step for listed in checkpoints_in(folder)] == [5]
    checkpoint.remove_leftovers(folder)
    assert [entry.name for entry in folder.iterdir()] == ["step-000005"]


# --- reading --------------------------------------------------------------------------------------


def test_a_missing_checkpoint_is_a_clear_error(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        checkpoint.open_verified(folder / "step-000200")


def test_a_resumed_optimizer_has_its_moments_and_the_config_s_settings() -> None:
    def optimizer(model: torch.nn.Module, weight_decay: float) -> Optimizer:
        return Optimizer(model, TrainConfig(weight_decay=weight_decay), 10, torch.device("cpu"))

    tiny = torch.nn.Linear(3, 2)
    first = optimizer(tiny, 0.1)
    first.backward(tiny(torch.ones(3)).sum())
    first.step(1)
    second = optimizer(tiny, 0.5)
    second.load_state_dict(first.state_dict())
    assert second.adamw.param_groups[0]["weight_decay"] == 0.5
    assert torch.equal(second.adamw.state[tiny.weight]["exp_avg"], first.adamw.state[tiny.weight]["exp_avg"])
    assert second.adamw.state[tiny.weight]["step"] == 1
    with pytest.raises(CheckpointError, match="the optimizer state is of 2 weights, the model has 1"):
        optimizer(torch.nn.Linear(2, 2, bias=False), 0.1).load_state_dict(first.state_dict())


def anonymous_mb() -> float:
    """Memory that this process has to itself, without pages of mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / 1e6


def test_a_resume_holds_one_copy_of_the_optimizer_and_none_of_its_file(folder: Path) -> None:
    layer = torch.nn.Linear(3072, 3072, bias=False)  # above 32 MiB malloc never hands out memory that was freed
    first, second = (Optimizer(layer, TrainConfig(), 10, torch.device("cpu")) for _ in range(2))
    first.backward(layer(torch.ones(3072)).sum())
    first.step(1)
    write: dict[str, Any] = {"write_model": lambda path: save_file({"w": layer.weight}, path / "model.safetensors")}
    path = checkpoint.save(
        folder, Progress(1), state=first.state_dict(), rank_states=[], metrics={}, attempt=1, keep_last=1, **write
    )
    moments_mb = 2 * layer.weight.nbytes / 1e6
    gc.collect()  # what earlier tests left is not returned in the middle
    ctypes.CDLL(None).malloc_trim(0)
    before = anonymous_mb()
    checkpoint.open_verified(path)
    initial = InitialState(checkpoint.load_state(path))
    assert anonymous_mb() - before < 0.25 * moments_mb
    second.load_state_dict(initial.state)
    assert 0.75 * moments_mb < anonymous_mb() - before < 1.25 * moments_mb
    initial.release()
    assert initial.state == {}
    (path / "state.pt").write_bytes(b"")  # nothing reads the file any more
    assert_equal(second.state_dict(), first.state_dict())


def test_random_numbers_go_on_where_they_stopped(folder: Path, model: ModernBertForMaskedLM) -> None:
    random_state.seed(7)
    np.random.standard_normal()  # leaves a cached second number behind
    path = save(folder, model, 5)

    def draw() -> list[float]:
        return [random.random(), float(np.random.standard_normal()), float(np.random.rand()), float(torch.rand(()))]

    expected = draw()
    random_state.seed(8)
    random_state.set_random_state(checkpoint.load_state(path, "rank-1.pt")["random"])
    assert draw() == expected


def test_a_rank_on_the_cpu_makes_no_context_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a machine with GPUs, none of them in use
    saved = random_state.random_state()
    assert "cuda" not in saved
    random_state.set_random_state({**saved, "cuda": torch.zeros(1)})
    assert not torch.cuda.is_initialized()


# --- progress -------------------------------------------------------------------------------------


def test_progress_counts_to_the_end_of_the_last_epoch_and_goes_on_with_another_batch() -> None:
    progress = Progress()
    assert progress.steps_left(8, 50, epochs=3) == 18
    ends = [progress.advance(8, 50) for _ in range(18)]
    assert [step for step, ended in enumerate(ends, start=1) if ended] == [6, 12, 18]
    assert progress == Progress(step=18, epoch=3, position=0, samples=144)
    assert progress.steps_left(8, 50, epochs=3) == 0
    progress = Progress(step=2, epoch=0, position=16, samples=16)
    assert progress.steps_left(4, 50, epochs=1) == 8
    assert progress.steps_left(40, 50, epochs=2) == 1
    assert progress.settle(40, 50)
    assert (progress.epoch, progress.position) == (1, 0)
