"""Writing the texts of an optimizer step together, against passes of 4, `generate` and the same without a cache.

    python tests/benchmarks/bench_generation.py [rounds]

32 texts of 128 tokens by the model of the LLM GAN's preset cpu_demo, made long enough; rounds interleaved, on one
thread. Goals: at least 4 times as fast as passes of 4 texts, 3 times as fast as without a cache of keys and values,
which computes every position anew for each token, and no slower than transformers' own `generate`. All but `generate`,
which draws from numbers of its own, have to write the same tokens.
"""

import sys
from collections.abc import Callable

import torch
from rounds import cpu_medians, interleaved
from transformers import GPT2LMHeadModel
from transformers.utils import logging

from nbtools.recipes import LLMGANConfig, recipe_named
from nbtools.training.llm_gan.generator import build_generator
from nbtools.training.text.causal_sampling import at_rest, drawn, write
from nbtools.training.text.vocabulary import Alphabet, padded_inputs

GOALS = {"passes of 4 texts": 4.0, "without a cache": 3.0, "transformers generate": 1.0}
NUM_TOKENS = 128
BATCH_SIZE = 32
PASS_SIZE = 4
PROMPT_LENGTH = 8
VOCAB_SIZE = 2000
Write = Callable[[], torch.Tensor]


def without_cache(
    model: GPT2LMHeadModel, prompts_BP: torch.Tensor, uniforms_BT: torch.Tensor, alphabet: Alphabet
) -> torch.Tensor:
    """The same, reading all that was written before each token."""
    texts_BT = prompts_BP
    with at_rest(model):
        for place in range(uniforms_BT.shape[1]):
            inputs = padded_inputs(texts_BT, alphabet.pad_id)
            logits_BV = model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1].float()
            tokens_B = drawn(alphabet.without_banned(logits_BV), uniforms_BT[:, place])
            texts_BT = torch.cat([texts_BT, tokens_B[:, None]], dim=1)
    return texts_BT[:, prompts_BP.shape[1] :]


def in_passes(
    model: GPT2LMHeadModel, prompts_BP: torch.Tensor, uniforms_BT: torch.Tensor, alphabet: Alphabet
) -> torch.Tensor:
    """The same, a few texts at a time."""
    passes = zip(torch.split(prompts_BP, PASS_SIZE), torch.split(uniforms_BT, PASS_SIZE), strict=True)
    return torch.cat([write(model, prompts, uniforms, alphabet) for prompts, uniforms in passes])


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
    ways: dict[str, Write] = {
        "nbtools, together": lambda: write(model, prompts_BP, uniforms_BT, alphabet),
        "passes of 4 texts": lambda: in_passes(model, prompts_BP, uniforms_BT, alphabet),
        "without a cache": lambda: without_cache(model, prompts_BP, uniforms_BT, alphabet),
        "transformers generate": lambda: generated(model, prompts_BP, alphabet),
    }
    costs, texts = interleaved(ways, num_rounds)
    medians = cpu_medians(costs)
    mine = medians["nbtools, together"]
    print(f"{num_rounds} rounds of {BATCH_SIZE} texts of {NUM_TOKENS} tokens, medians of CPU seconds")
    for name, median in medians.items():
        rate = BATCH_SIZE * NUM_TOKENS / median
        print(f"{name:<24}{median:>8.3f} s{rate:>10,.0f} tokens/s{median / mine:>8.2f} x ours")
    first, *others, _ = texts.values()
    same = all(torch.equal(first, other) for other in others)
    print(f"the same tokens: {same}")
    for name, goal in GOALS.items():
        ratio = medians[name] / mine
        print(f"goal against {name}: >= {goal} x: {'reached' if ratio >= goal else 'MISSED'} ({ratio:.2f})")
    return int(not same or any(medians[name] / mine < goal for name, goal in GOALS.items()))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
