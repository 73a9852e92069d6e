"""Calibration of predictions: temperature and bias, calibration error, and coverage against accuracy.

A prediction is right if its set of codes is the true one, and its probability p is calibrated if a share p of all
predictions with it is right. What is fitted here is stored in the config of a saved model, as `calibration`.

Shapes: N predictions, M bins. All are in double precision; whether a prediction is right is 1 or 0.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import CanineConfig, PretrainedConfig

from nbtools.rundir import media
from nbtools.rundir.media import MediaItem

TARGET = 0.95
"""Share of right predictions among accepted ones for which the threshold is chosen."""
_STEEPEST = 20.0
_EPSILON = 1e-7
"""Distance of p from 0 and 1, to which single precision rounds."""


@dataclass(frozen=True)
class Calibration:
    """A temperature and bias of the logit of p, and the least calibrated probability that is accepted."""

    temperature: float = 1.0
    bias: float = 0.0
    threshold: float = 0.0

    @classmethod
    def fit(cls, p_N: Tensor, is_right_N: Tensor) -> "Calibration":
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
        targets_N = torch.where(is_right_N > 0, (num_right + 1) / (num_right + 2), 1 / (len(p_N) - num_right + 2))
        slope_and_bias = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([slope_and_bias], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            slope, bias = slope_and_bias
            scaled_N = p_N.logit(_EPSILON) * slope.clamp(1 / _STEEPEST, _STEEPEST) + bias
            value = binary_cross_entropy_with_logits(scaled_N, targets_N)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]
        slope, bias = slope_and_bias.tolist()
        scaled = cls(1 / min(max(slope, 1 / _STEEPEST), _STEEPEST), bias)
        p_N, _, accuracy_N = selective_accuracy(scaled(p_N), is_right_N)
        enough_N = p_N[accuracy_N >= TARGET].tolist()
        return replace(scaled, threshold=enough_N[-1] if enough_N else 1.0)

    def __call__(self, p_N: Tensor) -> Tensor:
        """Return calibrated probabilities."""
        return torch.sigmoid(p_N.logit(_EPSILON) / self.temperature + self.bias)

    @classmethod
    def of(cls, source: PretrainedConfig | Path) -> "Calibration":
        """Return that of a config or a folder with a saved model; one that changes nothing if it has none."""
        config = CanineConfig.from_pretrained(source, trust_remote_code=False) if isinstance(source, Path) else source
        return cls(**getattr(config, "calibration", {}))


def calibration_error(p_N: Tensor, is_right_N: Tensor, num_bins: int = 15) -> float:
    """Return the expected calibration error, between 0 and 1.

    That is sum over bins of n_m / N x |share of right ones - mean probability|, with M bins of equal width: Guo et al.
    2017, equation 3 (Naeini et al. 2015). It is biased upwards where bins hold few predictions.
    """
    bins_N = (p_N * num_bins).ceil().long().sub(1).clamp(0, num_bins - 1)  # (0, 1/M], (1/M, 2/M], …
    gaps_M = torch.bincount(bins_N, is_right_N - p_N)
    return float(gaps_M.abs().sum() / max(len(p_N), 1))


def selective_accuracy(p_N: Tensor, is_right_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each distinct p, descending: p, the share of predictions with at least p, and of right ones in those.

    The curve of coverage against accuracy (1 - selective risk): Geifman and El-Yaniv 2017, arXiv 1705.08500, section 2.
    """
    distinct, places_N, counts = torch.unique(p_N, return_inverse=True, return_counts=True)  # ascending
    num_right = torch.bincount(places_N, is_right_N, len(distinct)).flip(0).cumsum(0)
    num_accepted = counts.flip(0).cumsum(0)
    return distinct.flip(0), num_accepted / max(len(p_N), 1), num_right / num_accepted


def coverage_chart(fitted: Calibration, p_N: Tensor, is_right_N: Tensor) -> MediaItem:
    """Return accuracy and threshold against coverage as a chart of at most 100 points, from uncalibrated p."""
    curve = torch.stack(selective_accuracy(fitted(p_N), is_right_N))
    shown = torch.linspace(0, curve.shape[1] - 1, min(curve.shape[1], 100)).long()
    thresholds, coverage, accuracy = curve[:, shown].tolist()
    values = ", ".join(f"{name} {value:.3f}" for name, value in asdict(fitted).items())
    lines = {"exact sets": accuracy, "threshold": thresholds}
    return media.series(
        f"Accepted predictions ({values})", coverage, lines, x_label="share of texts accepted", y_label="share"
    )
