"""Decoding the codes of 64 texts with kept keys and values, against reading all symbols again. Goal: at least 3 x.

    python tests/benchmarks/bench_decoding.py [rounds]

The model of the preset cpu_demo of text_classification with OccCANINE's five codes of five symbols; both ways decode
from the same hidden states of 64 characters, rounds interleaved, on one thread, and have to find the same codes.
"""

import sys
from functools import partial

import torch
from rounds import cpu_medians, interleaved

from nbtools.data.text_classification.codes import CodeSystem
from nbtools.recipes import TextClassificationConfig, recipe_named
from nbtools.training.text_classification import model as model_module
from nbtools.training.text_classification.incremental_decoder import IncrementalDecoder
from nbtools.training.text_classification.model import build_classifier

GOAL = 3.0
BATCH_SIZE = 64
NUM_CODES = 1919


class ReadingAgain:
    """Instead of `IncrementalDecoder`: reads all symbols and the whole memory at every step."""

    def __init__(self, decoder: torch.nn.TransformerDecoder, *memory_and_mask: torch.Tensor) -> None:
        self.decoder = decoder
        self.memory, self.mask, _ = memory_and_mask
        self.read: list[torch.Tensor] = []

    def step(self, hidden_BH: torch.Tensor) -> torch.Tensor:
        """Return the decoded state of the last symbol."""
        self.read.append(hidden_BH)
        length = len(self.read)
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden_BLH = torch.stack(self.read, dim=1)
        decoded_BLH: torch.Tensor = self.decoder(
            hidden_BLH, self.memory, tgt_mask=causal, memory_key_padding_mask=self.mask, tgt_is_causal=True
        )
        return decoded_BLH[:, -1]


def main(num_rounds: int = 5) -> int:
    """Print a table; 0 if the goal is reached."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    preset, _ = recipe_named("text_classification").preset("cpu_demo")
    assert isinstance(preset, TextClassificationConfig)
    config = preset.replace(max_codes=5)
    codes = [f"{number:05}" for number in range(0, 50 * NUM_CODES, 50)]
    system = CodeSystem.of("hisco", codes, config.max_codes)
    classifier = build_classifier(config, system, torch.full((len(codes),), 0.1))
    classifier.eval()  # type: ignore[no-untyped-call]
    classifier.speller.weight.data.normal_()  # any code may come
    inputs_BT = torch.randint(97, 123, (BATCH_SIZE, config.sequence_length))
    with torch.no_grad():
        memory_BTH, mask_BT, _ = classifier.encode(inputs_BT)

    def decoded(decoder: type) -> torch.Tensor:
        setattr(model_module, "IncrementalDecoder", decoder)  # noqa: B010
        return classifier.decode(memory_BTH, mask_BT)[0]

    ways = {"nbtools, kept": partial(decoded, IncrementalDecoder), "reading all again": partial(decoded, ReadingAgain)}
    costs, found = interleaved(ways, num_rounds)
    medians = cpu_medians(costs)
    mine, plain = medians.values()
    print(f"{num_rounds} rounds of {BATCH_SIZE} texts, {config.max_codes} codes each, medians of CPU seconds")
    for name, median in medians.items():
        print(f"{name:<20}{median:>8.3f} s{median / mine:>8.2f} x ours")
    same = bool(torch.equal(*found.values()))
    reached = same and plain / mine >= GOAL
    print(f"the same codes: {same}; goal: >= {GOAL} x: {'reached' if reached else 'MISSED'} ({plain / mine:.2f})")
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
