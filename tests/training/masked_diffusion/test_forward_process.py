"""The forward process: unbiased, independent of ranks, and right at the borders of prompts and cuts; its yardsticks."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM

from nbtools.training.engine.sampler import SampleOrder
from nbtools.training.masked_diffusion import baselines, forward_process
from nbtools.training.masked_diffusion.llada import LLaDAConfig, LLaDAModelLM
from nbtools.training.masked_diffusion.model import Denoiser
from nbtools.training.masked_diffusion.sequences import RaggedPairs, Sequences

MASK, PAD = 9, 0


def sequences(num: int = 40, length: int = 12, starts: int | npt.NDArray[np.int64] = 0, seed: int = 0) -> Sequences:
    rng = np.random.default_rng(seed)
    tokens_NT = rng.integers(1, MASK, (num, length)).astype(np.uint8)
    return Sequences(tokens_NT, np.full(num, starts) if isinstance(starts, int) else starts)


def batch(
    of: Sequences, samples: Any, epoch: int = 0, *, seed: int = 0, share: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return forward_process.NoisedTraining(of, forward_process.Noise(MASK, PAD, seed, share))[epoch, np.asarray(samples)]


def test_masked_positions_are_those_given_and_all_others_stay() -> None:
    of = sequences()
    inputs_BT, positions_K, labels_K, weights_K, lengths_B = batch(of, range(40))
    tokens_BT = torch.from_numpy(of.tokens_NT.astype(np.int64))
    assert len(lengths_B) == 0
    assert torch.equal((inputs_BT == MASK).flatten().nonzero()[:, 0], positions_K)
    assert torch.equal(tokens_BT.flatten()[positions_K], labels_K)
    kept = inputs_BT != MASK
    assert torch.equal(inputs_BT[kept], tokens_BT[kept])
    rows_K = positions_K // 12
    for row in range(40):
        assert len(set(weights_K[rows_K == row].tolist())) <= 1, "one probability for all tokens of a sequence"


def test_the_time_is_uniform_and_the_mask_has_its_probability() -> None:
    of = sequences(num=20_000, length=32)
    masked_BT, weight_B1, _ = forward_process.Noise(MASK, PAD, 0).masks(of.tokens_NT, of.starts_N, np.arange(20_000), 0)
    probability_B = 1 / weight_B1[:, 0] / 32
    assert probability_B.min() >= forward_process.EPSILON
    assert probability_B.max() <= 1
    time_B = (probability_B - forward_process.EPSILON) / (1 - forward_process.EPSILON)
    assert np.abs(np.sort(time_B) - np.linspace(0, 1, 20_000)).max() < 0.015  # Kolmogorov and Smirnov: 0.0115 at 1%
    for low, high in itertools.pairwise((0, 0.25, 0.5, 0.75, 1)):
        inside = (probability_B >= low) & (probability_B < high)
        assert masked_BT[inside].mean() == pytest.approx(probability_B[inside].mean(), abs=0.005)
    ordinary = masked_BT[:, :-1] - probability_B[:, None]
    following = masked_BT[:, 1:] - probability_B[:, None]
    assert abs((ordinary * following).mean()) < 0.002, "neighbours are masked independently"


def test_the_masks_are_a_function_of_seed_epoch_and_sample() -> None:
    of = sequences()
    whole = batch(of, range(8))
    halves = [batch(of, range(4)), batch(of, range(4, 8))]
    assert torch.equal(whole[0], torch.cat([half[0] for half in halves]))
    for part in (2, 3):
        assert torch.equal(whole[part], torch.cat([half[part] for half in halves]))
    for other in (batch(of, range(8), epoch=1), batch(of, range(8), seed=1)):
        assert not torch.equal(whole[0], other[0])


def test_a_prompt_is_never_masked_and_the_answer_weighs_by_its_own_length() -> None:
    starts_N = np.arange(40) % 11
    of = sequences(starts=starts_N)
    for epoch in range(5):
        inputs_BT, positions_K, _, weights_K, lengths_B = batch(of, range(40), epoch, seed=epoch)
        assert len(lengths_B) == 0
        rows, columns = np.divmod(positions_K.numpy(), 12)
        assert (columns >= starts_N[rows]).all()
        for row, start in enumerate(starts_N):
            assert inputs_BT[row, :start].tolist() == of.tokens_NT[row, :start].tolist()
        probability_K = 1 / weights_K.numpy() / (12 - starts_N[rows])
        assert ((probability_K > forward_process.EPSILON / 2) & (probability_K < 1.001)).all()


def test_cut_sequences_are_padded_ignored_and_weigh_as_much_as_whole_ones() -> None:
    of = sequences(num=4000)
    inputs_BT, positions_K, _, weights_K, lengths_B = batch(of, range(4000), share=0.25)
    cut = lengths_B < 12
    # A twelfth of those that are cut keep their whole length.
    assert float(cut.float().mean()) == pytest.approx(0.25 * 11 / 12, abs=0.03)
    assert set(lengths_B.tolist()) == set(range(1, 13))
    outside_BT = torch.arange(12) >= lengths_B[:, None]
    assert (inputs_BT[outside_BT] == PAD).all()
    rows_K, columns_K = positions_K // 12, positions_K % 12
    assert (columns_K < lengths_B[rows_K]).all()
    # In expectation the weights of a sequence add up to 1, whatever its length.
    weight_B = torch.zeros(4000).index_add(0, rows_K, weights_K)
    assert float(weight_B[cut].mean()) == pytest.approx(1, abs=0.15)
    assert float(weight_B[~cut].mean()) == pytest.approx(1, abs=0.1)


# --- the bound ------------------------------------------------------------------------------------

LENGTH, VOCABULARY = 3, 3


def toy_losses(tokens_T: npt.NDArray[np.int64], masked_T: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Cross-entropies of a small, arbitrary model of three tokens that sees what is not masked. Shape (T,)."""
    table = np.random.default_rng(1).normal(size=(LENGTH, (VOCABULARY + 1) ** LENGTH, VOCABULARY)) * 2
    context = 0
    for token, masked in zip(tokens_T, masked_T, strict=True):
        context = context * (VOCABULARY + 1) + (VOCABULARY if masked else int(token))
    logits_TV = table[:, context]
    log_p_TV = logits_TV - np.log(np.exp(logits_TV).sum(1, keepdims=True))
    return -log_p_TV[np.arange(LENGTH), tokens_T]


def exact_bound(tokens_T: npt.NDArray[np.int64], start: int = 0, end: int = LENGTH) -> float:
    """The bound per token of a part, with every mask enumerated: the mean over k of that over all masks of k tokens."""
    by_count: dict[int, list[float]] = {}
    for mask in itertools.product((False, True), repeat=end - start):
        if any(mask):
            masked_T = np.zeros(LENGTH, dtype=bool)
            masked_T[start:end] = mask
            by_count.setdefault(sum(mask), []).append(float(toy_losses(tokens_T, masked_T)[masked_T].mean()))
    return float(np.mean([np.mean(values) for values in by_count.values()]))


def exact_expectation(tokens_T: npt.NDArray[np.int64]) -> float:
    """What training's estimator is worth on average: 1/p weights, every mask enumerated, the time integrated."""
    times = (np.arange(20_000) + 0.5) / 20_000
    probabilities = (1 - forward_process.EPSILON) * times + forward_process.EPSILON
    total = 0.0
    for mask in itertools.product((False, True), repeat=LENGTH):
        masked_T = np.array(mask)
        chance = probabilities ** sum(mask) * (1 - probabilities) ** (LENGTH - sum(mask))
        total += float((chance / probabilities).mean()) * float(toy_losses(tokens_T, masked_T)[masked_T].sum())
    return total / LENGTH


def test_training_and_evaluation_estimate_the_same_bound_which_is_one() -> None:
    rows_NT = np.array(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))
    bound = float(np.mean([exact_bound(row) for row in rows_NT]))
    assert float(np.mean([exact_expectation(row) for row in rows_NT])) == pytest.approx(
        bound, abs=5 * forward_process.EPSILON
    )

    of = Sequences(rows_NT, np.zeros(27, dtype=np.int64))
    estimates, by_masked_count = [], []
    for epoch in range(300):
        samples_B = np.arange(27)
        masked_BT, weight_B1, _ = forward_process.Noise(VOCABULARY, 0, 0).masks(rows_NT, of.starts_N, samples_B, epoch)
        losses = [(toy_losses(row, mask) * mask).sum() for row, mask in zip(rows_NT, masked_BT, strict=True)]
        estimates.append(float((np.array(losses) * weight_B1[:, 0]).sum() / 27))
        wrong_B = np.array(losses) * weight_B1[:, 0] * LENGTH / np.maximum(masked_BT.sum(1), 1)
        by_masked_count.append(float(wrong_B.mean()))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - bound) < 4 * error + 5 * forward_process.EPSILON
    assert error < 0.1 * bound, "the test would notice"

    draws = forward_process.EvaluationMasks.of(of, 27 * 3 * 20)
    counted = [
        float((toy_losses(row, mask) * mask).sum() / mask.sum())
        for _, tokens_BT, masked_BT, _ in draws.batches(of, 100)
        for row, mask in zip(tokens_BT, masked_BT, strict=True)
    ]
    spread = np.std(counted) / math.sqrt(len(counted))
    assert abs(np.mean(counted) - bound) < 4 * spread
    # Dividing by how many happened to be masked, as some programs do, is another number.
    assert abs(np.mean(by_masked_count) - bound) > 10 * error


def test_draws_are_spread_evenly_over_counts_and_sequences_and_always_the_same() -> None:
    of = sequences(num=30, length=8)
    draws = forward_process.EvaluationMasks.of(of, 64)
    assert np.bincount(draws.counts_D).tolist() == [0, *[8] * 8]
    assert np.bincount(draws.rows_D).max() - np.bincount(draws.rows_D).min() <= 1
    first, again = (draws.masks(of, np.arange(64)) for _ in range(2))
    assert (first == again).all()
    assert (first.sum(1) == draws.counts_D).all()
    few = forward_process.EvaluationMasks.of(of, 5)
    assert len(set(few.rows_D.tolist())) == 5, "from everywhere in the text, not from its beginning"
    assert few.rows_D.max() >= 20


def test_draws_mask_answers_only_and_ranks_share_them() -> None:
    of = sequences(num=6, length=10, starts=np.array([0, 3, 9, 5, 2, 8]))
    draws = forward_process.EvaluationMasks.of(of, 40)
    seen: list[int] = []
    for rank in range(3):
        for draws_B, tokens_BT, masked_BT, is_own in draws.batches(of, 4, rank=rank, world_size=3):
            seen += draws_B.tolist() * is_own
            starts_B = of.starts_N[draws.rows_D[draws_B]]
            assert not (masked_BT & (np.arange(10) < starts_B[:, None])).any()
            assert (masked_BT.sum(1) == draws.counts_D[draws_B]).all()
            assert (tokens_BT == of.tokens_NT[draws.rows_D[draws_B]]).all()
    assert sorted(seen) == list(range(40))
    assert draws.shares_D.max() <= 1


# --- prompts and answers of any length --------------------------------------------------------------


def ragged(lengths_N: npt.NDArray[np.int64], starts_N: npt.NDArray[np.int64], seed: int = 0) -> RaggedPairs:
    tokens = np.random.default_rng(seed).integers(1, MASK, lengths_N.sum()).astype(np.uint8)
    ends = np.cumsum(lengths_N)
    tokens[ends - 1] = PAD
    return RaggedPairs(tokens, np.append(0, ends), starts_N, PAD)


def some_pairs(num: int = 200) -> RaggedPairs:
    rng = np.random.default_rng(7)
    starts_N = rng.integers(1, 9, num)
    return ragged(starts_N + 2 + rng.geometric(0.1, num), starts_N)


def test_the_batch_of_pairs_has_their_tokens_and_masks_up_to_each_end() -> None:
    pairs = some_pairs()
    data = forward_process.NoisedPairs(pairs, forward_process.Noise(MASK, PAD, 0), 100)
    samples_B = np.arange(16)
    inputs_BT, positions_K, labels_K, weights_K, ends_B = data[0, samples_B]
    lengths_B = data.lengths(0, samples_B)
    assert ends_B.tolist() == lengths_B.tolist() == data.lengths(0)[samples_B].tolist()
    assert inputs_BT.shape[1] == min(-(-lengths_B.max() // 8) * 8, 100)
    tokens_BT = pairs.rows(samples_B, inputs_BT.shape[1])
    rows_K, columns_K = np.divmod(positions_K.numpy(), inputs_BT.shape[1])
    assert ((columns_K >= pairs.starts_N[rows_K]) & (columns_K < lengths_B[rows_K])).all()
    assert (labels_K.numpy() == tokens_BT[rows_K, columns_K]).all()
    kept = inputs_BT.numpy() != MASK
    assert (inputs_BT.numpy()[kept] == tokens_BT[kept]).all()
    probability_K = 1 / weights_K.numpy() / (lengths_B - pairs.starts_N[samples_B])[rows_K]
    assert ((probability_K > forward_process.EPSILON / 2) & (probability_K < 1.001)).all()


def test_a_pair_has_its_masks_in_every_batch() -> None:
    pairs = some_pairs()
    data = forward_process.NoisedPairs(pairs, forward_process.Noise(MASK, PAD, 0), 100)
    whole = data[3, np.arange(40)]
    for row in range(40):
        alone = data[3, np.array([row])]
        length = int(data.lengths(3, np.array([row]))[0])
        assert whole[0][row, :length].tolist() == alone[0][0, :length].tolist()
        assert (whole[0][row, length:] == PAD).all()
        of_row = whole[1] // whole[0].shape[1] == row
        assert whole[2][of_row].tolist() == alone[2].tolist()
        assert whole[3][of_row].tolist() == alone[3].tolist()


def test_half_of_the_pairs_end_before_the_space_that_another_answer_takes() -> None:
    pairs = some_pairs(20_000)
    lengths_N = forward_process.NoisedPairs(pairs, forward_process.Noise(MASK, PAD, 0), 60).lengths(0)
    own_N, kept_N = pairs.lengths_N, pairs.lengths_N <= 60
    assert (lengths_N >= own_N).all()
    assert (lengths_N[kept_N] <= 60).all()
    more_N = lengths_N > own_N
    assert 0.25 < more_N.mean() < 0.5, "half, without those whose own answer is longer than the other"
    assert lengths_N.sum() < 1.35 * own_N.sum()


def test_training_and_evaluation_estimate_the_bound_of_pairs_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the answer and one end-of-text token, whatever pads the row."""
    lengths_N, starts_N = np.array([2, 3, 3, 2, 3]), np.array([0, 0, 1, 1, 2])
    pairs = RaggedPairs(
        np.array([1, 0, 2, 1, 0, 1, 2, 0, 2, 0, 1, 1, 0]), np.append(0, lengths_N.cumsum()), starts_N, 0
    )
    rows_BT = pairs.rows(np.arange(5), LENGTH)
    expected = float(np.mean([exact_bound(*row) for row in zip(rows_BT, starts_N, lengths_N, strict=True)]))
    data = forward_process.NoisedPairs(pairs, forward_process.Noise(VOCABULARY, 0, 0), LENGTH)
    monkeypatch.setattr(data, "lengths", lambda epoch, samples_B: lengths_N[samples_B])
    estimates = []
    for epoch in range(3000):
        _, positions_K, _, weights_K, _ = data[epoch, np.arange(5)]
        masked_BT = np.zeros(rows_BT.shape, dtype=bool)
        masked_BT.reshape(-1)[positions_K] = True
        losses_K = np.concatenate([toy_losses(*pair)[pair[1]] for pair in zip(rows_BT, masked_BT, strict=True)])
        estimates.append(float((losses_K * weights_K.numpy()).sum() / 5))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - expected) < 4 * error + 5 * forward_process.EPSILON
    assert error < 0.1 * expected

    draws = forward_process.EvaluationMasks.of(pairs, 5 * 3 * 200)
    counted = []
    for draws_B, tokens_BT, masked_BT, _ in draws.batches(pairs, 100):
        assert (masked_BT.sum(1) == draws.counts_D[draws_B]).all()
        rows = zip(tokens_BT, masked_BT, strict=True)
        counted += [float((toy_losses(row, mask) * mask).sum() / mask.sum()) for row, mask in rows]
    assert abs(np.mean(counted) - expected) < 4 * np.std(counted) / math.sqrt(len(counted))


def test_baselines_of_pairs_are_those_of_their_answers_and_one_eos() -> None:
    pairs = ragged(np.array([4, 6]), np.array([2, 1]))
    frequencies = baselines.Frequencies(pairs, 12)
    counts_V = np.ones(12)
    for row, (start, length) in enumerate(zip(pairs.starts_N, pairs.lengths_N, strict=True)):
        counts_V += np.bincount(pairs.rows(np.array([row]))[0, start:length], minlength=12)
    assert frequencies.unigram_V == pytest.approx(counts_V / counts_V.sum())


def test_padded_pairs_have_eos_behind_them() -> None:
    pairs = some_pairs()
    padded = dataclasses.replace(pairs, padded_to=100)
    whole_NT = padded.rows(np.arange(200))
    assert whole_NT.shape == (200, 100) and set(padded.lengths_N) == {100}
    assert (padded.rows(np.array([5, 3])) == whole_NT[[5, 3]]).all()
    for row_T, length in zip(whole_NT, pairs.lengths_N, strict=True):
        assert (row_T[length - 1 :] == PAD).all()
        assert (row_T[: length - 1] != PAD).all()


# --- yardsticks -----------------------------------------------------------------------------------


def test_the_baselines_are_what_counting_by_hand_gives() -> None:
    train = Sequences(np.array([[1, 2, 1, 2, 1, 3]]), np.zeros(1, dtype=np.int64))
    evaluation = Sequences(np.array([[2, 1, 3, 3]]), np.zeros(1, dtype=np.int64))
    draws = forward_process.EvaluationMasks(np.array([0]), np.array([4]), np.array([1.0]))
    unigram_V = np.array([1, 4, 3, 2]) / 10  # one more of each than there is
    # Witten and Bell: 1 is followed by 2, 2, 3; 2 by 1, 1; 3 by nothing.
    bigrams = [unigram_V[2], (2 + 1 * unigram_V[1]) / 3, (1 + 2 * unigram_V[3]) / 5, unigram_V[3]]
    unigram, bigram = baselines.losses(train, evaluation, draws, 4)
    assert unigram == pytest.approx(-np.log(unigram_V[[2, 1, 3, 3]]).mean())
    assert bigram == pytest.approx(-np.log(bigrams).mean())


def test_the_share_of_padding_is_that_of_the_batches() -> None:
    rng = np.random.default_rng(0)
    lengths_N = rng.integers(4, 400, 4000)
    tokens = np.ones(lengths_N.sum(), dtype=np.uint8)
    pairs = RaggedPairs(tokens, np.append(0, np.cumsum(lengths_N)), np.ones(4000, dtype=np.int64), 0)
    data = forward_process.NoisedPairs(pairs, forward_process.Noise(2, 3, 0), 512)
    plain = SampleOrder(4000, 8)
    shares = []
    for order in (dataclasses.replace(plain, lengths=data.lengths), plain):
        keys = list(itertools.islice(iter(order), 500))
        num_own = sum(int(data.lengths(0, samples_B).sum()) for _, samples_B in keys)
        shares.append(1 - num_own / sum(data[key][0].numel() for key in keys))
    filled = 1 - data.lengths(0).mean() / 512
    assert shares[0] < 0.1 < shares[1]
    rest = f"{filled:.0%} in rows of sequence_length"
    assert data.padding_note(plain) == f"padding: {shares[0]:.0%} of the tokens (pad_to='longest'); {rest}"
    packed = forward_process.NoisedPairs(pairs, forward_process.Noise(2, 3, 0), 512, packs=True)
    keys = list(itertools.islice(iter(plain), 500))
    num_own = sum(int(data.lengths(0, samples_B).sum()) for _, samples_B in keys)
    share = 1 - num_own / sum(packed[key][0].numel() for key in keys)
    assert share < shares[1] / 2
    assert packed.padding_note(plain) == f"padding: {share:.0%} of the tokens (pad_to='packed'); {rest}"


def llada() -> LLaDAModelLM:
    return LLaDAModelLM(
        LLaDAConfig(d_model=16, n_heads=2, n_layers=2, mlp_hidden_size=32, vocab_size=20, embedding_size=20)
    )


def modernbert() -> ModernBertForMaskedLM:
    size = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
    ids = dict.fromkeys(("pad_token_id", "cls_token_id", "bos_token_id", "sep_token_id", "eos_token_id"))
    return ModernBertForMaskedLM(ModernBertConfig(vocab_size=20, local_attention=8, **size, **ids))


@pytest.mark.promise("safety-pairs")
@pytest.mark.parametrize("build", [llada, modernbert])
def test_packed_pairs_have_the_losses_that_each_has_alone(build: Any) -> None:
    rng = np.random.default_rng(0)
    starts_N, answers_N = rng.integers(1, 6, 12), rng.integers(1, 30, 12)
    tokens = rng.integers(1, MASK, int((starts_N + answers_N).sum())).astype(np.uint8)
    pairs = RaggedPairs(tokens, np.append(0, np.cumsum(starts_N + answers_N)), starts_N, PAD)
    torch.manual_seed(0)
    denoiser = Denoiser(build(), MASK).eval()
    samples_B = np.arange(12)
    packed = forward_process.NoisedPairs(pairs, forward_process.Noise(MASK, PAD, 0), 48, packs=True)[1, samples_B]
    inputs_RT, positions_K, _, weights_K, numbers_RT = packed
    assert len(inputs_RT) < 12
    assert sorted(set(numbers_RT.flatten().tolist()) - {0}) == list(range(1, 13))
    with torch.no_grad():
        losses_K = denoiser.losses(inputs_RT, positions_K, packed[2], numbers_RT) * weights_K
        for number in samples_B:
            alone = forward_process.NoisedPairs(pairs, forward_process.Noise(MASK, PAD, 0), 48)[1, samples_B[[number]]]
            own = losses_K[numbers_RT.flatten()[positions_K] == number + 1]
            assert float(own.sum()) == pytest.approx(float(denoiser(*alone)), rel=1e-5)
