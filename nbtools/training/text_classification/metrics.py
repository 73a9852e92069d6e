"""Scores of predicted sets of codes: accuracy, precision, recall, F1 and exact sets, averaged over rows.

With a row's true set T and predicted set P: accuracy |T ∩ P| / max(|T|, |P|), precision |T ∩ P| / |P|, recall
|T ∩ P| / |T|, F1 2 |T ∩ P| / (|T| + |P|), exact [T = P]. These are OccCANINE's, which also looks at the first digits of
HISCO's codes: "83110" (blacksmith) for "83120" (hammersmith) is right to three digits.

Shape suffixes: B batch, C codes, D prefixes of codes, U codes that no training row has.
"""

import numpy as np
import torch
from torch.nn.functional import one_hot

from nbtools.data.text_classification.codes import HISCO_BLOCK, HISCO_SPECIAL, CodeSystem

SCORES = ("accuracy", "exact", "precision", "recall", "f1")


def score(
    predicted_BC: torch.Tensor, true_BC: torch.Tensor, unseen_BU: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Return the sum over rows of each of `SCORES`. Both sets are given as 1 or 0 per code and are not empty.

    `unseen_BU` are true codes that cannot be predicted.
    """
    predicted_BC, true_BC = predicted_BC.double(), true_BC.double()
    if unseen_BU is not None:
        predicted_BC = torch.cat([predicted_BC, torch.zeros_like(unseen_BU)], dim=1)
        true_BC = torch.cat([true_BC, unseen_BU], dim=1)
    both_B = (predicted_BC * true_BC).sum(1)
    num_predicted_B, num_true_B = predicted_BC.sum(1), true_BC.sum(1)
    by_row = {
        "accuracy": both_B / torch.maximum(num_predicted_B, num_true_B),
        "exact": (predicted_BC == true_BC).all(1),
        "precision": both_B / num_predicted_B,
        "recall": both_B / num_true_B,
        "f1": 2 * both_B / (num_predicted_B + num_true_B),
    }
    return {name: values_B.sum() for name, values_B in by_row.items()}


def prefixes(system: CodeSystem) -> dict[int, torch.Tensor]:
    """Return for 1 to 4 digits the prefix of each HISCO code, one-hot; empty for other systems. Shapes (C, D)."""
    if system.formatter != "hisco":
        return {}
    found = {}
    for digits in range(1, HISCO_BLOCK):
        cut = [code if code in HISCO_SPECIAL else code[:digits] for code in system.codes]
        _, numbers_C = np.unique(cut, return_inverse=True)
        found[digits] = one_hot(torch.from_numpy(numbers_C)).float()
    return found


def prefix_sets(sets_BC: torch.Tensor, of_CD: torch.Tensor) -> torch.Tensor:
    """Return the sets of prefixes of sets of codes. Shape (B, D)."""
    return ((sets_BC.float() @ of_CD) > 0).long()
