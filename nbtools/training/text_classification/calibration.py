"""Calibration of predictions: temperature and bias, calibration error, and coverage against accuracy.

A prediction is right if its set of codes is the true one, and its probability p is calibrated if a share p of all
predictions with it is right. What is fitted here is stored in the config of a saved model, as `calibration`.

Shapes: N predictions, M bins. Whether a prediction is right is 1 or 0.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import CanineConfig, PretrainedConfig

from nbtools.rundir import media
from nbtools.rundir.media import MediaItem

TARGET = 0.95
"""Share of right predictions among accepted ones for which the threshold is chosen."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A temperature and bias of the logit of p, and the least calibrated probability that is accepted."""

    temperature: float = 1.0
    bias: float = 0.0
    threshold: float = 0.0

    @classmethod
    def fit(cls, p_N: Floats, is_right_N: Floats) -> "Calibration":
        """Fit to predictions with their uncalibrated probabilities.

        Temperature T and bias b minimise the negative log-likelihood of right and wrong under sigmoid(logit(p) / T + b)
        (Platt scaling: Guo et al. 2017, arXiv 1706.04599, section 4.1). The two classes are the decoded set and all
        others together; T alone leaves a calibration error of 0.14 in the demo, because a set's probability is too low
        on both sides of 0.5. So that few predictions give no certainty, the targets 1 and 0 of n right and m wrong ones
        are (n + 1) / (n + 2) and 1 / (m + 2) (Platt 1999); T is between 1/20 and 20.

        The threshold is the lowest from which on a share of at least `TARGET` is right; where there is none, it is 1,
        which accepts none.
        """
        if not len(p_N):
            return cls()
        num_right = is_right_N.sum()
        targets_N = np.where(is_right_N, (num_right + 1) / (num_right + 2), 1 / (len(p_N) - num_right + 2))
        logits_N, targets_N = torch.from_numpy(_logits(p_N)), torch.from_numpy(targets_N)
        fitted = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # logarithm of T, b
        optimizer = torch.optim.LBFGS([fitted], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            scaled_N = logits_N / fitted[0].clamp(-3, 3).exp() + fitted[1]
            value = binary_cross_entropy_with_logits(scaled_N, targets_N)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]
        log_temperature, bias = fitted.detach().tolist()
        scaled = cls(float(np.exp(np.clip(log_temperature, -3, 3))), bias)
        p_N, _, accuracy_N = selective_accuracy(scaled(p_N), is_right_N)
        reached = np.flatnonzero(accuracy_N >= TARGET)
        return replace(scaled, threshold=float(p_N[reached[-1]]) if len(reached) else 1.0)

    def __call__(self, p_N: Floats) -> Floats:
        """Return calibrated probabilities."""
        scaled_N: Floats = 1 / (1 + np.exp(-_logits(p_N) / self.temperature - self.bias))
        return scaled_N

    @classmethod
    def of(cls, source: PretrainedConfig | Path | None) -> "Calibration":
        """Return that of a config or a folder with a saved model; one that changes nothing if it has none."""
        config = CanineConfig.from_pretrained(source, trust_remote_code=False) if isinstance(source, Path) else source
        return cls(**getattr(config, "calibration", {}))


def calibration_error(p_N: Floats, is_right_N: Floats, num_bins: int = 15) -> float:
    """Return the expected calibration error, between 0 and 1.

    That is sum over bins of n_m / N x |share of right ones - mean probability|, with M bins of equal width: Guo et al.
    2017, equation 3 (Naeini et al. 2015). It is biased upwards where bins hold few predictions.
    """
    bins_N = np.clip(np.ceil(p_N * num_bins).astype(int) - 1, 0, num_bins - 1)  # (0, 1/M], (1/M, 2/M], …
    gaps_M = np.bincount(bins_N, weights=is_right_N - p_N, minlength=num_bins)
    return float(np.abs(gaps_M).sum() / max(len(p_N), 1))


def selective_accuracy(p_N: Floats, is_right_N: Floats) -> tuple[Floats, Floats, Floats]:
    """Return for each distinct p, descending: p, the share of predictions with at least p, and of right ones in those.

    The curve of coverage against accuracy (1 - selective risk): Geifman and El-Yaniv 2017, arXiv 1705.08500, section 2.
    """
    order_N = np.argsort(-p_N, kind="stable")
    p_N, right_N = p_N[order_N], np.cumsum(is_right_N[order_N])
    last = np.flatnonzero(np.append(p_N[1:] != p_N[:-1], len(p_N) > 0))  # equal ones are accepted together
    return p_N[last], (last + 1) / len(p_N), right_N[last] / (last + 1)


def coverage_chart(fitted: Calibration, p_N: Floats, is_right_N: Floats) -> MediaItem:
    """Return accuracy and threshold against coverage as a chart of at most 100 points, from uncalibrated p."""
    p_N, coverage_N, accuracy_N = selective_accuracy(fitted(p_N), is_right_N)
    shown = np.unique(np.linspace(0, len(p_N) - 1, 100).astype(int))
    lines = {"exact sets": accuracy_N[shown].tolist(), "threshold": p_N[shown].tolist()}
    values = ", ".join(f"{name} {value:.3f}" for name, value in asdict(fitted).items())
    title = f"Accepted predictions ({values})"
    return media.series(title, coverage_N[shown].tolist(), lines, x_label="share of texts accepted", y_label="share")


def _logits(p_N: Floats) -> Floats:
    p_N = np.clip(p_N.astype(np.float64), 1e-7, 1 - 1e-7)  # single precision rounds to 0 and 1
    logits_N: Floats = np.log(p_N) - np.log1p(-p_N)
    return logits_N
