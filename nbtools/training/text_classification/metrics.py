"""Scores of predicted sets of codes: accuracy, precision, recall, F1 and exact sets, averaged over rows.

With a row's true set T and predicted set P: accuracy |T ∩ P| / max(|T|, |P|), precision |T ∩ P| / |P|, recall
|T ∩ P| / |T|, F1 2 |T ∩ P| / (|T| + |P|), exact [T = P]. These are OccCANINE's, which also looks at the first digits of
HISCO's codes: "83110" (blacksmith) for "83120" (hammersmith) is right to three digits.

Shape suffixes: B batch, C codes, D prefixes of codes.
"""

import torch

from nbtools.data.text_classification.codes import HISCO_BLOCK, HISCO_SPECIAL, CodeSystem

SCORES = ("accuracy", "precision", "recall", "f1", "exact")


def score(predicted_BC: torch.Tensor, true_BC: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of each of `SCORES`. Both sets are given as 1 or 0 per code and are not empty."""
    predicted_BC, true_BC = predicted_BC.double(), true_BC.double()
    both_B = (predicted_BC * true_BC).sum(1)
    num_predicted_B, num_true_B = predicted_BC.sum(1), true_BC.sum(1)
    each = (
        both_B / torch.maximum(num_predicted_B, num_true_B),
        both_B / num_predicted_B,
        both_B / num_true_B,
        2 * both_B / (num_predicted_B + num_true_B),
        (predicted_BC == true_BC).all(1).double(),
    )
    return torch.stack(each).sum(1)


def prefixes(system: CodeSystem) -> dict[int, torch.Tensor]:
    """Return for 1 to 4 digits the prefix of each HISCO code, one-hot; empty for other systems. Shapes (C, D)."""
    if system.formatter != "hisco":
        return {}
    found = {}
    for digits in range(1, HISCO_BLOCK):
        cut = [code if code in HISCO_SPECIAL else code[:digits] for code in system.codes]
        place = {prefix: number for number, prefix in enumerate(sorted(set(cut)))}
        of_CD = torch.zeros(len(cut), len(place))
        of_CD[torch.arange(len(cut)), torch.tensor([place[prefix] for prefix in cut])] = 1
        found[digits] = of_CD
    return found


def prefix_sets(sets_BC: torch.Tensor, of_CD: torch.Tensor) -> torch.Tensor:
    """Return the sets of prefixes of sets of codes. Shape (B, D)."""
    return ((sets_BC.float() @ of_CD) > 0).long()
