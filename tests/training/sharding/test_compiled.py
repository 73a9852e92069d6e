"""compile=True with strategy="fsdp": each block is compiled by itself, and the losses are those of eager DDP."""

import re
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CanineConfig, CanineModel

from nbtools.config import TrainConfig
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.training.engine import optimizer as optimizer_module
from nbtools.training.engine.optimizer import compile_forward
from nbtools.training.sharding.fsdp import blocks_of
from nbtools.training.sharding.stored_tensors import stored_tensors

from trainings import (
    ADAPTED,
    FLOAT64,
    SAME_ADAPTER,
    TINY,
    ByHand,
    assert_same_checkpoints,
    rows,
    write_base,
    write_inputs,
)

AOT_EAGER = "import nbtools.training.engine.optimizer as compiling\ncompiling.COMPILER = 'aot_eager'\n"
"""Before a script starts: all of the compilation but the C++ compiler."""
ADAPTER = "masked_diffusion, an adapter of a LLaDA"


def config_of(name: str, steps: int, **changes: Any) -> TrainConfig:
    key = name.partition(",")[0]
    values = {**TINY[key], "num_layers": 2, "batch_size": 4, "gradient_accumulation_steps": 2, "dropout": 0.0}
    values |= {"max_steps": steps, "epochs": 1000, "eval_every": steps // 2, "checkpoint_every": steps // 2}
    values |= {**ADAPTED[key], "adapter": "lora"} if name == ADAPTER else {}
    return RECIPES[key].config_class(**{**values, "checkpoint_epochs": False, **changes})


def graphs_said(log: str) -> list[int]:
    """How many graphs there are after each step that has made some, none of which was broken."""
    return [int(count) for count in re.findall(r"compiled by step \d+ in [\d.]+ s: (\d+) graphs?, 0 graph breaks", log)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nproc", "steps", "more", "tolerance"),
    [*((name, 1, 8, FLOAT64, 1e-9) for name in RECIPES), (ADAPTER, 2, 20, SAME_ADAPTER, 1e-5)],
    ids=[*RECIPES, ADAPTER],
)
def test_losses_of_compiled_shards_are_those_of_eager_ddp(
    start: ByHand,
    cpu_project: Project,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    nproc: int,
    steps: int,
    more: str,
    tolerance: float,
) -> None:
    """Activations are recomputed, passes accumulated, and evaluations and texts of other lengths compile nothing.

    Every rank compiles: two do with the adapter, one is enough to see the graphs of the others.
    """
    key = name.partition(",")[0]
    write_inputs(key, cpu_project)
    monkeypatch.chdir(cpu_project.root)
    if name == ADAPTER:
        write_base(key, cpu_project)
    config = config_of(name, steps)
    whole = start.forked(config, nproc=nproc, more=more).files
    sharded = config.replace(strategy="fsdp", compile=True, gradient_checkpointing=True)
    compiled = start.forked(sharded, nproc=nproc, more=more + AOT_EAGER, timeout_s=600).files
    log = compiled.log.read_text()
    assert 0 < graphs_said(log)[-1] <= 6
    assert "recompile_limit" not in log
    for row, expected in zip(rows(compiled), rows(whole), strict=True):
        assert row == pytest.approx(expected, rel=1e-3)
        losses = {each: expected[each] for each in expected if each.startswith("train/") and "loss" in each}
        assert {each: row[each] for each in losses} == pytest.approx(losses, rel=tolerance)
    for folder in sorted({path.parent for path in (whole.outputs / "model").rglob("*.safetensors")}):
        own = compiled.outputs / folder.relative_to(whole.outputs)
        names = [stored_tensors(each.glob("*.safetensors")).keys() for each in (own, folder)]
        assert names[0] == names[1]


@pytest.mark.slow
def test_a_compiler_for_the_processor_takes_the_same_steps_and_resumes_to_the_bit(
    start: ByHand, texts: Project
) -> None:
    config = config_of("mlm_pretraining", 20, num_layers=1)
    whole = start.forked(config, nproc=1).files
    sharded = config.replace(strategy="fsdp", compile=True)
    straight = start.forked(sharded, nproc=1, timeout_s=600).files
    assert graphs_said(straight.log.read_text())
    losses = [[row["train/loss"] for row in rows(files)] for files in (straight, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    resumed = start.forked(sharded, "--resume-from", straight.checkpoint(10), nproc=1).files
    assert_same_checkpoints(straight.checkpoint(20), resumed.checkpoint(20))


def test_blocks_share_a_graph_for_all_lengths_and_passes_without_gradients_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Block(nn.Linear):
        kind = "one"

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden + super().forward(hidden) * len(self.kind)

    graphs: list[torch.fx.GraphModule] = []
    said: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(optimizer_module, "COMPILER", keep)
    monkeypatch.setattr(torch._dynamo.convert_frame.log, "warning", lambda text, *values: said.append(text % values))
    blocks = [Block(4, 4) for _ in range(12)]
    for block in blocks:
        compile_forward(block, only_training=True)
        assert [*block.state_dict()] == ["weight", "bias"]
    for length in range(2, 8):
        with torch.no_grad():
            blocks[0](torch.ones(2, length, 4))
    assert not graphs
    for length in range(2, 8):
        for block in blocks:
            block(torch.ones(2, length, 4))
    assert len(graphs) == 2, "of the first length, and of all"
    assert not said
    for number, block in enumerate(blocks):
        block.kind = "k" * number
        hidden = torch.rand(2, 3, 4)
        assert torch.equal(block(hidden), Block.forward(block, hidden)), "uncompiled, beyond the limit of torch"
    assert any("hit config.recompile_limit (8)" in line and "kind" in line for line in said)


def test_attention_that_loops_over_parts_of_a_text_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be compiled for each length."""
    monkeypatch.setattr(optimizer_module, "COMPILER", "eager")
    model = CanineModel(CanineConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2))
    blocks = blocks_of(model)
    for block in blocks:
        compile_forward(block, only_training=True)
    assert ["forward" in vars(block) for block in blocks] == [False, True, True, True], "only the first one does"
