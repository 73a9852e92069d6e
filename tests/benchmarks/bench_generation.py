"""Writing the texts of an optimizer step together, against `generate` of transformers.

    python tests/benchmarks/bench_generation.py [rounds]

32 texts of 128 tokens by the model of the LLM GAN's preset cpu_demo, made long enough; rounds interleaved, on one
thread. Goal: no slower than transformers' own `generate`.
"""

import sys

import torch
from rounds import cpu_medians, interleaved
from transformers import GPT2LMHeadModel
from transformers.utils import logging

from nbtools.recipes import LLMGANConfig, recipe_named
from nbtools.training.llm_gan.generator import build_generator
from nbtools.training.text.causal_sampling import write
from nbtools.training.text.vocabulary import Alphabet, padded_inputs

GOAL = 1.0
NUM_TOKENS = 128
BATCH_SIZE = 32
PROMPT_LENGTH = 8
VOCAB_SIZE = 2000


def generated(model: GPT2LMHeadModel, prompts_BP: torch.Tensor, alphabet: Alphabet) -> torch.Tensor:
    """What transformers brings."""
    seen = padded_inputs(prompts_BP, alphabet.pad_id)["attention_mask"]
    written = model.generate(
        prompts_BP,
        attention_mask=seen,
        do_sample=True,
        top_k=0,
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        pad_token_id=alphabet.pad_id,
    )
    return written[:, prompts_BP.shape[1] :]


def main(num_rounds: int = 5) -> int:
    """Print a table; 0 if the goal is reached."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    preset, _ = recipe_named("llm_gan").preset("cpu_demo")
    assert isinstance(preset, LLMGANConfig)
    config = preset.replace(dataset="topics", sequence_length=NUM_TOKENS, prompt_length=PROMPT_LENGTH)
    alphabet = Alphabet(VOCAB_SIZE, 0, None, (0,))
    model = build_generator(config, alphabet)
    prompts_BP = torch.randint(1, VOCAB_SIZE, (BATCH_SIZE, PROMPT_LENGTH))
    prompts_BP[::2, : PROMPT_LENGTH // 2] = alphabet.pad_id
    uniforms_BT = torch.rand(BATCH_SIZE, NUM_TOKENS, dtype=torch.float64)
    ways = {
        "nbtools, together": lambda: write(model, prompts_BP, uniforms_BT, alphabet),
        "transformers generate": lambda: generated(model, prompts_BP, alphabet),
    }
    costs, _ = interleaved(ways, num_rounds)
    medians = cpu_medians(costs)
    mine = medians["nbtools, together"]
    print(f"{num_rounds} rounds of {BATCH_SIZE} texts of {NUM_TOKENS} tokens, medians of CPU seconds")
    for name, median in medians.items():
        rate = BATCH_SIZE * NUM_TOKENS / median
        print(f"{name:<24}{median:>8.3f} s{rate:>10,.0f} tokens/s{median / mine:>8.2f} x ours")
    ratio = medians["transformers generate"] / mine
    print(f"goal: >= {GOAL} x: {'reached' if ratio >= GOAL else 'MISSED'} ({ratio:.2f})")
    return int(ratio < GOAL)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
