"""Pieces of an optimizer step, shared by the loops of all recipes."""

import contextlib
import math
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from nbtools.config import TrainConfig


def accumulating(model: torch.nn.Module, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
    """Around forward and backward: only the last pass of a step sends gradients to the other ranks."""
    if is_last or not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model.no_sync()


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Around the forward pass: bf16 where asked for; weights and optimizer stay fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def adamw(model: torch.nn.Module, config: TrainConfig, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.AdamW:
    """Make AdamW with weight decay on matrices only."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradient_clip: float) -> torch.Tensor:
    """Clip, step and clear the gradients; returns the gradient norm before clipping, without waiting for it."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clip or math.inf)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def learning_rate(config: TrainConfig, step: int, total_steps: int) -> float:
    """Learning rate of the optimizer step `step` (counted from 1): linear warm-up, then the decay asked for."""
    warmup = round(config.warmup_ratio * total_steps)
    if step <= warmup:
        return config.learning_rate * step / warmup
    done = (step - warmup) / (total_steps - warmup + 1)
    if config.lr_schedule == "linear":
        return config.learning_rate * (1 - done)
    if config.lr_schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate


def set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, step: int, total_steps: int) -> float:
    """Set and return the learning rate of the optimizer step `step`."""
    rate = learning_rate(config, step, total_steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate
