"""Scores of predicted sets of codes: accuracy, precision, recall, F1 and exact sets, averaged over rows.

With a row's true set T and predicted set P: accuracy |T ∩ P| / max(|T|, |P|), precision |T ∩ P| / |P|, recall
|T ∩ P| / |T|, F1 2 |T ∩ P| / (|T| + |P|), exact [T = P]. These are OccCANINE's, which also looks at the first digits of
HISCO's codes: "83110" (blacksmith) for "83120" (hammersmith) is right to three digits. One exception: OccCANINE's first
digit of the special codes "-1", "-2", "-3" is "-" for all of them, and here each stays a code of its own.

Shape suffixes: B batch, C codes, D prefixes of codes, P parts of the texts, S scores, U codes that no training row has.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nbtools.data.text_classification.codes import HISCO_BLOCK, HISCO_SPECIAL, CodeSystem
from nbtools.rundir import media
from nbtools.rundir.media import MediaItem

SCORES = ("accuracy", "exact", "precision", "recall", "f1")


class ScoreTable:
    """The mean scores of parts of the held-out texts, such as the texts of a language, over all ranks."""

    def __init__(self, parts: Sequence[str], device: torch.device) -> None:
        self.parts = tuple(parts)
        self._sums_PS = torch.zeros(len(parts), 1 + len(SCORES), dtype=torch.float64, device=device)

    def add(self, part: str, scores_BS: Tensor, weights_BP: Tensor | None = None) -> None:
        """Add rows to a part, or with `weights_BP` to that part and the following ones."""
        values_BS = torch.cat([torch.ones_like(scores_BS[:, :1]), scores_BS], dim=1)
        weights_BP = values_BS[:, :1] if weights_BP is None else weights_BP
        first = self.parts.index(part)
        self._sums_PS[first : first + weights_BP.shape[1]] += weights_BP.T @ values_BS

    def reduce(self, total: Callable[[Tensor], list[float]]) -> dict[str, dict[str, float]]:
        """Return the number of `texts` and the mean scores of each part; every rank calls it."""
        sums_PS = np.reshape(total(self._sums_PS.flatten()), self._sums_PS.shape)
        counts_P1 = sums_PS[:, :1]
        means_PS = np.concatenate([counts_P1, sums_PS[:, 1:] / np.maximum(counts_P1, 1e-12)], axis=1)
        return {
            part: dict(zip(("texts", *SCORES), row_S.tolist(), strict=True))
            for part, row_S in zip(self.parts, means_PS, strict=True)
        }


def table_of(means: dict[str, dict[str, float]]) -> MediaItem:
    """Return what `ScoreTable.reduce` returned as a table to show."""
    rows = [
        (part, f"{row['texts']:,.0f}", *(f"{row[name]:.3f}" for name in SCORES))
        for part, row in means.items()
        if row["texts"]
    ]
    return media.table("Scores of parts of the held-out texts", ("part", "texts", *SCORES), rows)


def score(predicted_BC: Tensor, true_BC: Tensor, unseen_BU: Tensor | None = None) -> Tensor:
    """Return the `SCORES` of each row, shape (B, S). Both sets are given as 1 or 0 per code and are not empty.

    `unseen_BU` are true codes that cannot be predicted.
    """
    predicted_BC, true_BC = predicted_BC.double(), true_BC.double()
    if unseen_BU is not None:
        predicted_BC = torch.cat([predicted_BC, torch.zeros_like(unseen_BU)], dim=1)
        true_BC = torch.cat([true_BC, unseen_BU], dim=1)
    both_B = (predicted_BC * true_BC).sum(1)
    num_predicted_B, num_true_B = predicted_BC.sum(1), true_BC.sum(1)
    accuracy_B = both_B / torch.maximum(num_predicted_B, num_true_B)
    exact_B = (predicted_BC == true_BC).all(1).double()
    f1_B = 2 * both_B / (num_predicted_B + num_true_B)
    return torch.stack([accuracy_B, exact_B, both_B / num_predicted_B, both_B / num_true_B, f1_B], dim=1)


def prefixes(system: CodeSystem) -> dict[int, Tensor]:
    """Return for 1 to 4 digits the prefix of each HISCO code, one-hot; empty for other systems. Shapes (C, D)."""
    if system.formatter != "hisco":
        return {}
    found = {}
    for digits in range(1, HISCO_BLOCK):
        cut = [code if code in HISCO_SPECIAL else code[:digits] for code in system.codes]
        _, numbers_C = np.unique(cut, return_inverse=True)
        found[digits] = one_hot(torch.from_numpy(numbers_C)).float()
    return found


def prefix_sets(sets_BC: Tensor, of_CD: Tensor) -> Tensor:
    """Return the sets of prefixes of sets of codes. Shape (B, D)."""
    return ((sets_BC.float() @ of_CD) > 0).long()
