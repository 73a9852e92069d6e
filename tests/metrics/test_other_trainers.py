"""Trainers and loggers of other libraries, executed with them; with the callback of nbtools/metrics/README.md."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nbtools.metrics
from nbtools.launcher.launch import launch
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState

README = Path(nbtools.metrics.__file__).with_name("README.md")

TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(x)[:, 0], labels)}

torch.manual_seed(0)
data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(32)]
arguments = TrainingArguments("out", max_steps=6, logging_steps=2, eval_strategy="steps", eval_steps=3, use_cpu=True,
    report_to=[], save_strategy="no", per_device_train_batch_size=4, disable_tqdm=True, prediction_loss_only=True)
trainer = Trainer(Net(), arguments, train_dataset=data, eval_dataset=data, callbacks=[RunCallback()])
trainer.train()
"""
LIGHTNING = """
import lightning as L
import torch

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=4)
trainer = L.Trainer(max_steps=6, log_every_n_steps=2, val_check_interval=3, accelerator="cpu",
    enable_checkpointing=False, enable_progress_bar=False, devices=2, strategy="ddp")
trainer.fit(Net(), data, data)
"""

RICH = """
import logging
from rich.logging import RichHandler

logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler()])
for step in (10, 20):
    loss = 2 - step / 20 * 1.5 + 0.25 * (step == 10)
    logging.info(f"epoch 1 step {step}/20 loss {loss} learning_rate 0.00{step} pupil_agreement 0.{step} kd {loss / 10}")
"""


@pytest.fixture
def launched(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Launch a program, and wait for its end."""
    monkeypatch.chdir(cpu_project.root)

    def start(text: str, **settings: Any) -> Run:
        (cpu_project.root / "train.py").write_text(text)
        run = launch(cpu_project.root / "train.py", gpus=(), **settings)
        assert run.wait(200, check=False) is RunState.SUCCEEDED, run.log()
        return run

    return start


@pytest.mark.slow
def test_the_callback_writes_the_rows_of_transformers_trainer(launched: Callable[..., Run]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (callback,) = (code for code in blocks if "class RunCallback" in code)
    run = launched(callback + TRANSFORMERS, torchrun=False)
    assert run.files.metrics.exists()
    history = run.history
    assert history["train/loss"].steps.tolist() == [2, 4, 6]
    assert history["eval/loss"].steps.tolist() == [3, 6]
    assert {"train/learning_rate", "train/grad_norm"} <= set(history)


@pytest.mark.slow
@pytest.mark.needs("lightning")
def test_the_rows_of_lightnings_trainer_need_no_logger_of_ours(launched: Callable[..., Run]) -> None:
    history = launched(LIGHTNING, nproc_per_node=2).history
    assert history["train/loss"].steps.tolist() == [1, 3, 5]
    assert history["eval/loss"].steps.tolist() == [2]


@pytest.mark.needs("rich")
def test_richs_lines_are_not_cut_to_the_width_of_no_terminal(launched: Callable[..., Run]) -> None:
    rows = launched(RICH, torchrun=False).history
    assert (list(rows["train/loss"].steps), list(rows["train/loss"].values)) == ([10, 20], [1.5, 0.5])
    assert list(rows["kd"].values) == [0.15, 0.05]
