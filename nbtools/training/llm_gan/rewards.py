"""The generator's reward per token, by a discriminator's answers, and from it return, baseline and advantage.

Shape suffixes: B batch, T positions.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def token_rewards(scores_BT: Tensor, mask_BT: Tensor, decided_B: Tensor) -> Tensor:
    """Return 2 sigmoid(D) - 1 at every token with the score D; 0 off the mask, and in undecided pairs. Shape (B, T)."""
    return torch.where(mask_BT & decided_B[:, None], 2 * torch.sigmoid(scores_BT) - 1, 0.0)


def verdict_rewards(outcomes_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Return 1 on the last token of a text that fooled the judge (outcome -1), -1 of another one (1). Shape (B, T)."""
    lasts_B = mask_BT.sum(1) - 1
    rewards_BT = torch.zeros(mask_BT.shape, device=mask_BT.device)
    rewards_BT[torch.arange(len(lasts_B), device=lasts_B.device), lasts_B] = -outcomes_B.float()
    return rewards_BT


def returns(rewards_BT: Tensor, discount: float) -> Tensor:
    """Return the discounted return of each token: G_t, the sum over k >= 0 of discount^k r_(t+k). Shape (B, T)."""
    returns_BT = rewards_BT.clone()
    for place in range(rewards_BT.shape[1] - 2, -1, -1):
        returns_BT[:, place] += discount * returns_BT[:, place + 1]
    return returns_BT


class Baseline:
    """The expected return of a token, given its position and the reward of the previous token.

    A token discriminator scores prefixes, so tokens after a low-scored prefix get low scores too. The baseline is
    linear in the reward of the previous token, y = a + b x, fitted per position to running moments over past steps and
    all ranks (least squares). Neither that reward nor the past depends on the token, so the gradient is unbiased
    (Williams 1992), and a step's gradient does not depend on how its batch is divided.
    """

    DECAY = 0.9
    """Weight of the earlier moments at each update."""
    _LEAST_VARIANCE = 1e-6

    def __init__(self, length: int) -> None:
        # Counts, and sums of x, y, x x, x y.
        self._moments_MT = torch.zeros(5, length, dtype=torch.float64)
        self._added_MT = torch.zeros_like(self._moments_MT)

    def advantages(self, rewards_BT: Tensor, returns_BT: Tensor) -> Tensor:
        """Return return - baseline; 0 at positions without past data. Shape (B, T)."""
        counts_T, *sums = self._moments_MT
        mean_x_T, mean_y_T, mean_xx_T, mean_xy_T = (sums_T / counts_T.clamp(min=1e-12) for sums_T in sums)
        variance_T = mean_xx_T - mean_x_T**2
        is_line_T = variance_T > self._LEAST_VARIANCE
        slope_T = torch.where(is_line_T, (mean_xy_T - mean_x_T * mean_y_T) / variance_T, 0.0)
        known = torch.stack([slope_T, mean_y_T - slope_T * mean_x_T, (counts_T > 0).double()])
        slope_T, offset_T, is_known_T = known.to(returns_BT.device, returns_BT.dtype)
        advantages_BT: Tensor = (returns_BT - offset_T - slope_T * _before(rewards_BT)) * is_known_T
        return advantages_BT

    def add(self, rewards_BT: Tensor, returns_BT: Tensor, counted_BT: Tensor) -> None:
        """Add the tokens of a pass for the next `update`."""
        x_BT, y_BT = _before(rewards_BT).double(), returns_BT.double()
        parts = torch.stack([torch.ones_like(x_BT), x_BT, y_BT, x_BT * x_BT, x_BT * y_BT])
        added_MT = torch.where(counted_BT, parts, 0.0).sum(1)
        self._added_MT = self._added_MT.to(added_MT.device) + added_MT

    def update(self, total: Callable[[Tensor], list[float]]) -> None:
        """Update the moments with the passes of a step; `total` sums a flat tensor over all ranks.

        Sums that are not finite, of a step that is skipped, change nothing.
        """
        added_MT = torch.tensor(total(self._added_MT.flatten()), dtype=torch.float64).view_as(self._moments_MT)
        if torch.isfinite(added_MT).all():
            self._moments_MT = self.DECAY * self._moments_MT + added_MT
        self._added_MT = torch.zeros_like(self._moments_MT)

    def state_dict(self) -> Tensor:
        """Return the moments, for a checkpoint."""
        return self._moments_MT

    def load_state_dict(self, state: Tensor | None) -> None:
        """Restore what `state_dict` returned, unless the length of texts has changed; None changes nothing."""
        if state is not None and state.shape == self._moments_MT.shape:
            self._moments_MT = state.clone()


def _before(rewards_BT: Tensor) -> Tensor:
    """Return the reward of the previous token; 0 at the first position. Shape (B, T)."""
    return torch.cat([torch.zeros_like(rewards_BT[:, :1]), rewards_BT[:, :-1]], dim=1)
