"""Tokenising a text with a pretrained tokenizer: one text per call, nbtools, and `datasets.map`. Goals: 1.6 and 1.0.

    python tests/benchmarks/bench_tokenisation.py [rounds] [megabytes]

Two threads, or two processes with one each. The tokenizer is a byte-level one of 8,000 tokens, as RoBERTa's, built on
the text that ships with Python; documents are sections of that text. Every way reads the documents from memory and
leaves the ids on disk. Rounds are interleaved; the figures are medians of wall time and of CPU time with child
processes. All have to write the same ids.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NUM_THREADS = 2
os.environ["RAYON_NUM_THREADS"] = str(NUM_THREADS)

import datasets  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from rounds import cpu_medians, interleaved  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import BPE  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel  # noqa: E402
from tokenizers.trainers import BpeTrainer  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from nbtools.data import corpus  # noqa: E402
from nbtools.training.text.disk_buffer import save_pieces  # noqa: E402
from nbtools.training.text.tokenizers import encode_all, encoder  # noqa: E402

GOAL_TODAY, GOAL_MAP = 1.6, 1.0
SECTION = 2000
Ids = npt.NDArray[np.int32]


def built(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer of the texts."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=8000, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def main(num_rounds: int = 5, megabytes: int = 8) -> int:
    """Print a table; 0 if the goals are reached."""
    sections = [section for _, text in corpus.python_topics() for section in corpus._sections([text], SECTION)]
    tokenizer = built(sections)
    repeats = -(-megabytes * 10**6 // sum(map(len, sections)))
    documents = [f"{number} {section}" for number in range(repeats) for section in sections]
    table = datasets.Dataset.from_dict({"text": documents})
    datasets.disable_progress_bars()
    one = encoder(tokenizer, "model", "tokens")  # the call of transformers
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ids.npy"

        def written(pieces: object) -> Ids:
            save_pieces(file, (np.array(ids, np.int32) for ids in pieces), np.int32)  # type: ignore[attr-defined]
            return np.load(file)  # type: ignore[no-any-return]

        def mapped() -> Ids:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # two processes with one thread each
            made = table.map(
                lambda rows: {"ids": tokenizer(rows["text"], add_special_tokens=False)["input_ids"]},
                batched=True,
                num_proc=NUM_THREADS,
                remove_columns=["text"],
                cache_file_name=str(Path(folder) / f"{time.monotonic_ns()}.arrow"),
                new_fingerprint=str(time.monotonic_ns()),
            )
            del os.environ["TOKENIZERS_PARALLELISM"]
            return np.concatenate([column.values.to_numpy() for column in made.data.column("ids").chunks])

        ways: dict[str, Callable[[], Ids]] = {
            "one text per call": lambda: written(map(one, documents)),
            "nbtools": lambda: written(encode_all(documents, tokenizer, "model")),
            "datasets.map": mapped,
        }
        costs, ids = interleaved(ways, num_rounds)
    cpus, mine = cpu_medians(costs), ids["nbtools"]
    same = all(np.array_equal(mine, each) for each in ids.values())
    print(f"{num_rounds} rounds, {len(documents):,} documents, {sum(map(len, documents)):,} characters, medians")
    ratios = {}
    for name, each in costs.items():
        wall = statistics.median(cost.wall_s for cost in each)
        pairs = zip(each, costs["nbtools"], strict=True)
        ratios[name] = statistics.median(cost.wall_s / ours.wall_s for cost, ours in pairs)
        rates = f"{len(mine) / wall:>12,.0f} tokens/s{ratios[name]:>7.2f} x ours"
        print(f"{name:<20}{wall:>8.2f} s{cpus[name]:>8.2f} CPU s{rates}")
    reached = same and ratios["one text per call"] >= GOAL_TODAY and ratios["datasets.map"] >= GOAL_MAP
    print(f"the same ids: {same}; goals >= {GOAL_TODAY} and {GOAL_MAP} x: {'reached' if reached else 'MISSED'}")
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
