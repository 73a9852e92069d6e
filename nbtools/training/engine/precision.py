"""The precision of a training: what `auto` is, TF32, and the measured rate of matrix products on this device."""

import timeit

import torch

from nbtools.training.engine.optimizer import TYPES
from nbtools.training.process.ranks import Ranks

_WIDTHS = {"cpu": 256, "cuda": 4096}
"""Width of the square matrices that are multiplied: small ones leave most of a GPU idle."""
_REPEATS = 4
_TOLERATED = 1.25


def resolved(asked: str, ranks: Ranks) -> str:
    """Return what `auto` is, bf16 if the GPUs of all ranks compute in it, else fp32; every rank calls it."""
    if asked != "auto":
        return asked
    return "bf16" if ranks.sum([_has_bf16(ranks.device)])[0] == ranks.world_size else "fp32"


def set_tf32(device: torch.device, precision: str) -> None:
    """Let a GPU round the operands of fp32 products to TF32's 10 bits, in every precision but `fp32`."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "fp32"


def _has_bf16(device: torch.device) -> bool:
    """Whether a device is a GPU with instructions for bf16: compute capability 8.0 or above."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def matmul_rate(device: torch.device, precision: str) -> float:
    """Measure products of square matrices in FLOP/s, in milliseconds: 4,096 wide on GPUs, 256 wide on CPUs.

    Both factors are in the precision already: a step casts a weight once and multiplies it with many tokens. The
    fastest of several measurements counts, since other processes share the machine; the first one warms up.
    """
    width, generator = _WIDTHS[device.type], torch.Generator(device).manual_seed(0)  # leaves the training's own alone
    matrix = torch.randn(width, width, device=device, generator=generator).to(TYPES.get(precision, torch.float32))

    def multiply() -> None:
        matrix @ matrix
        if matrix.is_cuda:
            torch.cuda.synchronize(device)

    return 2.0 * width**3 / max(min(timeit.repeat(multiply, repeat=1 + _REPEATS, number=1)[1:]), 1e-9)


def slowdown(device: torch.device, precision: str) -> float:
    """Return how much longer a matrix product takes in `precision` than in fp32; below 1 where it is faster.

    CPUs without bf16 instructions emulate them; 9 times slower was measured.
    """
    return matmul_rate(device, "fp32") / matmul_rate(device, precision)


def warning(device: torch.device, precision: str) -> str:
    """Return a warning if `precision` is slower than fp32 on `device`, else an empty text."""
    if precision not in TYPES or (precision == "bf16" and _has_bf16(device)):
        return ""
    if (factor := slowdown(device, precision)) <= _TOLERATED:
        return ""
    width = _WIDTHS[device.type]
    return (
        f"warning: {precision} is {factor:.1f} times slower than fp32 on this {device.type.upper()} "
        f"(a product of two {width} x {width} matrices): use --precision fp32, or set it in the script"
    )
