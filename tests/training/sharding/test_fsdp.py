"""strategy="fsdp": the same training as DDP, checkpoints in shards, and errors before the first step."""

import errno
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from fixture_types import Train
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from nbtools.errors import ConfigError
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.checkpoints import Checkpoint, newest_verified
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.worker import Worker
from nbtools.training.sharding import fsdp, sharded_checkpoint, stored_tensors
from nbtools.training.sharding.fsdp import Layout, blocks_of, shard
from nbtools.training.sharding.stored_tensors import StoredRows, write_rows
from nbtools.training.text.adapter import save_model
from nbtools.training.text.tokenizers import word_tokenizer

from trainings import FLOAT64, TINY, ByHand, Planted, assert_same_checkpoints, rows

CHUNKS = """
from nbtools.training.text import chunked_logits
chunked_logits.LARGEST_CHUNK = 100
"""
"""Before a script starts: the loss is computed for a few positions at a time."""
EACH_PASS = "\nfrom nbtools.training.sharding import fsdp\nfsdp.num_trainable_parameters = lambda config: 10**15\n"
"""Before a script starts: whole gradients do not fit."""


def config(**changes: Any) -> MLMPretrainingConfig:
    values = {**TINY["mlm_pretraining"], "num_layers": 2, "strategy": "fsdp", "batch_size": 4, **changes}
    return MLMPretrainingConfig(**values)


@pytest.fixture(autouse=True)
def _inputs(texts: Project) -> Iterator[None]:
    yield
    if dist.is_initialized():  # after a training that failed in this process
        dist.destroy_process_group()


def losses(files: RunDir, after: int = 0) -> list[float]:
    return [row["train/loss"] for row in rows(files) if row["step"] > after]


# --- the same training ----------------------------------------------------------------------------


@pytest.mark.slow
def test_losses_of_replicas_reduced_per_step_or_in_each_pass_are_those_of_ddp(start: ByHand) -> None:
    values = {"max_steps": 12, "epochs": 100, "gradient_accumulation_steps": 2, "dropout": 0.1, "batch_size": 2}
    values |= {"eval_every": 12, "checkpoint_every": 12, "checkpoint_epochs": False}
    whole = losses(start.forked(config(**values, strategy="ddp"), more=FLOAT64, nproc=4, per_node=2).files)
    assert len(whole) == 12
    for more in ("", EACH_PASS):
        sharded = config(**values, gradient_checkpointing=True)
        files = start.forked(sharded, more=FLOAT64 + more + CHUNKS, nproc=4, per_node=2).files
        assert "among 2 ranks, on each of 2 nodes" in files.log.read_text()
        assert losses(files) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(("usable", "each_step"), [(0.8, 1), (0.0, 3)])
def test_gradients_are_reduced_once_per_step_where_whole_ones_fit(
    trained: Train, monkeypatch: pytest.MonkeyPatch, usable: float, each_step: int
) -> None:
    calls: list[int] = []
    real = _fsdp_param_group.foreach_reduce
    monkeypatch.setattr(_fsdp_param_group, "foreach_reduce", lambda *args: (calls.append(1), real(*args))[1])
    monkeypatch.setattr(fsdp, "_USABLE", usable)
    divided = losses(trained(config(batch_size=2, gradient_accumulation_steps=3, dropout=0.0)))
    assert len(calls) == len(divided) * each_step * 3, "two blocks, and the rest"
    assert divided == pytest.approx(losses(trained(config(batch_size=6, dropout=0.0))), rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_sharded_fp32_weights(trained: Train, precision: str) -> None:
    sharded, whole = (
        trained(config(precision=precision, strategy=strategy, learning_rate=1e-3)) for strategy in ("fsdp", "ddp")
    )
    assert losses(sharded) == pytest.approx(losses(whole), rel=0.03)
    weights = stored_tensors.stored_tensors((sharded.checkpoint(6) / "model").glob("*.safetensors"))
    assert {stored[...].dtype for stored in weights.values()} == {torch.float32}


def test_config_of_shards_names_their_type_in_a_forward_pass_too(trained: Train, tmp_path: Path) -> None:
    """The thread that saves writes config.json while the next forward pass has the weights gathered in bf16."""
    files = trained(config(precision="bf16"))
    gathered = transformers.ModernBertForMaskedLM.from_pretrained(files.outputs / "model").bfloat16()
    save_model(gathered, tmp_path / "model", torch.float32)
    assert not list((tmp_path / "model").glob("*.safetensors"))
    for folder in (files.checkpoint(3) / "model", files.outputs / "model", tmp_path / "model"):
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.promise("fault-26", "fault-27")
@pytest.mark.slow
def test_shards_resume_on_any_number_of_ranks_and_under_ddp(start: ByHand) -> None:
    values = {"dropout": 0.2, "max_steps": 6, "ema_decay": 0.9}
    straight = start.forked(config(**values)).files
    resumed = start.forked(config(**values), "--resume-from", straight.checkpoint(3)).files
    assert_same_checkpoints(straight.checkpoint(6), resumed.checkpoint(6))

    straight = start.forked(config(batch_size=3, ema_decay=0.9), nproc=4, per_node=2, more=FLOAT64).files
    saved = straight.checkpoint(3)
    assert len([*saved.rglob("shard-*")]) == 4, "weights and moments of one replica"
    for world_size, batch_size, strategy in ((1, 12, "fsdp"), (3, 4, "fsdp"), (2, 6, "ddp")):
        other = config(batch_size=batch_size, strategy=strategy, ema_decay=0.9)
        files = start.forked(other, "--resume-from", saved, nproc=world_size, more=FLOAT64).files
        assert losses(files) == pytest.approx(losses(straight, after=3), rel=1e-6)
    whole = start.forked(config(batch_size=6, strategy="ddp"), more=FLOAT64).files
    on_nodes = config(batch_size=3)
    files = start.forked(on_nodes, "--resume-from", whole.checkpoint(3), nproc=4, per_node=2, more=FLOAT64).files
    assert losses(files) == pytest.approx(losses(whole, after=3), rel=1e-6)


def test_the_reader_of_torch_takes_the_shards(tmp_path: Path) -> None:
    whole = {"a": torch.randn(5, 3), "b": torch.randn(4).bfloat16(), "c": torch.arange(3)}
    for rank, rows_of_rank in enumerate((slice(0, 3), slice(3, None))):
        parts = {name: StoredRows(tensor[rows_of_rank], 3 * rank) for name, tensor in whole.items()}
        write_rows(tmp_path / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors", parts)
    found = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(found, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    own = stored_tensors.stored_tensors(tmp_path.glob("*.safetensors"))
    for name, tensor in whole.items():
        assert torch.equal(found[name], tensor), name
        assert torch.equal(own[name][...], tensor), name
        assert torch.equal(own[name][2:4], tensor[2:4]), name


@pytest.mark.promise("fault-18")
def test_a_pickle_in_the_place_of_metadata_is_never_opened(trained: Train, tmp_path: Path) -> None:
    saved = trained(config()).checkpoint(3)
    for folder in (saved, saved / "model", saved / "optimizer"):
        (folder / ".metadata").write_bytes(pickle.dumps(Planted(tmp_path / "ran")))
    assert losses(trained(config(), saved))
    assert not (tmp_path / "ran").exists()


@pytest.mark.promise("fault-16", "fault-17")
@pytest.mark.parametrize("damage", ["missing", "cut", "of another run"])
def test_a_broken_shard_is_refused_and_the_older_checkpoint_verifies(trained: Train, damage: str) -> None:
    files = trained(config())
    (shard_path,) = (files.checkpoint(6) / "optimizer").iterdir()
    if damage == "missing":
        shard_path.unlink()
    elif damage == "cut":
        shard_path.write_bytes(shard_path.read_bytes()[:-8])
    else:
        shard_path.write_bytes((files.checkpoint(3) / "optimizer" / shard_path.name).read_bytes())
    with pytest.raises(SystemExit, match=r"CheckpointError: .*shard-00001"):
        trained(config(), files.checkpoint(6))
    found, _ = newest_verified(files.checkpoints)
    assert found is not None
    assert found.step == 3


@pytest.mark.promise("fault-9")
def test_a_failed_write_keeps_the_older_checkpoint_and_the_training(
    trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, said = write_rows, []

    def full(path: Path, tensors: Any) -> Any:
        if ".step-000006" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, tensors)

    monkeypatch.setattr(sharded_checkpoint, "write_rows", full)
    monkeypatch.setattr(Worker, "say", lambda worker, text: said.append(text))
    files = trained(config(max_steps=9, test_fraction=0.5))
    assert [Checkpoint.read(path).step for path in sorted(files.checkpoints.glob("step-*"))] == [3, 9]
    assert any("no checkpoint at step 6: [Errno 28] No space left" in text for text in said)


# --- pretrained models ----------------------------------------------------------------------------


def save_model_of(folder: Path, kind: str = "bert", **more: Any) -> None:
    word_tokenizer([f"w{number}" for number in range(40)], 60).save_pretrained(folder)
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    settings = transformers.AutoConfig.for_model(kind, vocab_size=60, **small, **more)
    transformers.AutoModelForMaskedLM.from_config(settings).save_pretrained(folder)


def test_head_that_reads_the_table_of_tokens_trains_as_under_ddp(
    trained: Train, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model_of(project.root / "deberta", "deberta-v2", legacy=False, tie_word_embeddings=False)
    monkeypatch.chdir(project.root)
    values = {"model_name": "deberta", "dropout": 0.0}
    whole, sharded = (losses(trained(config(strategy=strategy, **values))) for strategy in ("ddp", "fsdp"))
    assert sharded == pytest.approx(whole, rel=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.promise("safety-adapter")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_adapter_continues_from_ddp_to_fsdp_and_back(
    trained: Train, project: Project, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    save_model_of(project.root / "bert")
    monkeypatch.chdir(project.root)
    values = {"model_name": "bert", "dropout": 0.0, "adapter": "lora", "precision": precision, "max_steps": 9}
    values |= {"ema_decay": 0.5}
    whole = trained(config(strategy="ddp", **values))
    sharded = trained(config(gradient_checkpointing=True, **values), whole.checkpoint(3))
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    assert losses(sharded) == pytest.approx(losses(whole, after=3), rel=tolerance)
    back = trained(config(strategy="ddp", **values), sharded.checkpoint(6))
    assert losses(back) == pytest.approx(losses(sharded, after=6), rel=tolerance)
    shards = stored_tensors.stored_tensors((sharded.checkpoint(6) / "model").glob("shard-*"))
    assert shards and all(".lora_" in name for name in shards)
    (published,) = (sharded.outputs / "model").glob("*.safetensors")
    assert published.name == "adapter_model.safetensors"


# --- errors ---------------------------------------------------------------------------------------


def test_a_model_without_blocks_or_with_a_single_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="strategy='fsdp': Linear has no list of equal layers"):
        blocks_of(nn.Linear(2, 2))
    single = nn.Module()
    single.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ConfigError, match="scale is a single number"):
        shard(single, torch.device("cpu"), None, Layout(1))
