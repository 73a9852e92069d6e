"""Measures whether a low precision is faster or slower than fp32 on this machine."""

import timeit

import torch

from nbtools.training.engine.optimizer import autocast

_SIZE = 256
_REPEATS = 4
_TOLERATED = 1.25


def slowdown(device: torch.device, precision: str) -> float:
    """Return how much longer a matrix product takes in `precision` than in fp32; below 1 where it is faster.

    Takes milliseconds. CPUs without bf16 instructions emulate them; 9 times slower was measured.
    """
    matrix = torch.ones(_SIZE, _SIZE, device=device)
    return _least_s(matrix, precision) / max(_least_s(matrix, "fp32"), 1e-9)


def warning(device: torch.device, precision: str) -> str:
    """Return a warning if `precision` is slower than fp32 on `device`, else an empty text."""
    if precision == "fp32" or (factor := slowdown(device, precision)) <= _TOLERATED:
        return ""
    return (
        f"warning: {precision} is {factor:.1f} times slower than fp32 on this {device.type.upper()} "
        f"(a product of two {_SIZE} x {_SIZE} matrices): use --precision fp32, or set it in the script"
    )


def _least_s(matrix: torch.Tensor, precision: str) -> float:
    """Return the least of several measurements, since other processes share the machine; the first one warms up."""

    def multiply() -> None:
        matrix @ matrix
        if matrix.is_cuda:
            torch.cuda.synchronize(matrix.device)

    with torch.no_grad(), autocast(matrix.device, precision):
        return min(timeit.repeat(multiply, repeat=1 + _REPEATS, number=1)[1:])
