"""Names of printed numbers: which are metrics, which count steps, and of which split they are."""

import functools
import re
from typing import Final

from nbtools.metrics.curve_names import SPLITS, metric_of, of_split, parts_of, split_of, without_mean

__all__ = ["SPLITS", "metric_of", "of_split", "parts_of", "split_of", "without_mean"]


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


MEASURED: Final = words_of(
    """loss losses nll ppl perplexity bpb bpc xent entropy crossentropy logloss elbo kl kld divergence cost regret err
    error accuracy acc acc1 acc5 acc@1 acc@5 f1 auc auroc auprc precision recall sensitivity specificity top1 top5
    top-1 top-5 kappa mcc ece brier eer em success succ score mse mae mape smape wmape rmse nmse nrmse rmsle r2
    pearson spearman corr correlation iou miou fwiou dice jaccard hd95 hausdorff ap ar map map50 ndcg mrr r@1 r@5 r@10
    hits@1 hr@10 nmi ari bleu chrf rouge rougel meteor cider bertscore wer cer fid psnr ssim lpips pesq stoi snr sisdr
    sisnr sdr nsdr elo
    hellaswag mmlu piqa winogrande boolq lambada gsm8k humaneval truthfulqa
    reward rewards rew return ret win winrate verlust perte perdita genauigkeit exactitud"""
)
"""A line is a row of metrics if the name of one of its numbers has one of these words."""
ERRORS: Final = words_of("err error")  # measured only with a fraction: `error 404` is none
COEFFICIENTS: Final = words_of("coef coeff coefficient range momentum threshold thresh normalizer scale decay")
"""A number with one of these words is a setting as long as it stays."""
MEANS: Final = words_of("mean avg average")
"""A name of one of these words is that of a mean of what is named before."""
SIZES: Final = words_of("size length num number dim")
SHARES: Final = words_of("fraction ratio rate share percent")
_SETTING: Final = words_of(
    """weight weights scale scaling scaler fn function type lambda factor target
    smoothing alpha beta every steps interval patience min max delta tolerance warmup save log
    seed layers heads channels dropout eps decay port workers
    logging time order decimal"""
).union(COEFFICIENTS, SIZES)
"""A name with one of these words does not make a line a row of metrics."""
_TIMES: Final = words_of("time elapsed duration dur wall clock walltime runtime seconds secs minutes mins hours ms")
_CLOCKS: Final = words_of("elapsed wall walltime")
_COUNTED: Final = re.compile(r"[a-z]{3,}(?<![sup])s$")  # a plural
COMPANIONS: Final = words_of("lr l.r rate l1 len norm gnorm gradnorm mfu time dt throughput tok/s tokens/s tokens/sec")
"""Read beside a metric even without `=` or `:`."""
RATES: Final = words_of("tok/s tokens/s words/s samples/s images/s examples/s frames/s tok/sec samples/sec")
"""Units that name the number before them."""
IGNORED: Final = words_of(
    """cuda device rank local_rank pid gpu seed line port host node eta remaining version dtype dataloader size
    batch_size"""
)
_STATISTICS: Final = words_of("std stddev median variance percentile")
_QUALIFIERS: Final = MEANS.union(
    SPLITS,
    words_of(
        "time best final top1 top3 top5 total overall balanced macro micro weighted "
        "running smoothed ema pseudo aux learning grad gradient kl class win success"
    ),
)
COUNTERS: Final = {
    **dict.fromkeys(("global_step", "train_step", "num_updates", "total_timesteps", "num_timesteps"), 0),
    **dict.fromkeys(("total_train_updates", "training/global_step"), 0),
    **dict.fromkeys(("optimizer_step", "global_iter", "global_iteration", "trainer/global_step"), 0),
    **dict.fromkeys(("env_step", "env_steps", "total_steps", "totalenvinteracts", "total_env_steps"), 0),
    **dict.fromkeys(("step", "timesteps", "timestep", "training_step", "training_iteration"), 1),
    **dict.fromkeys(("schritt", "paso", "passo"), 1),
    **dict.fromkeys(("iteration", "iter", "itr", "it", "iterate", "update", "upd"), 2),
    **dict.fromkeys(("steps", "iterations", "iters", "itrs", "updates", "up.", "tick"), 3),
    **dict.fromkeys(("batch", "minibatch", "batches", "batch_idx", "i_batch"), 4),
    **dict.fromkeys(("episode", "round", "generation", "cycle"), 7),
}
"""Names of counters of steps, by preference: a counter of the whole run before one that starts over in every epoch."""
UNNAMED: Final = 5
LEADING: Final = 6
ROUNDED: Final = 8
EPOCHS: Final = words_of("epoch ep epch epochs epoche epoca")
RATE: Final = "train/learning_rate"
_FILLERS: Final = words_of("is was at of now to value values on set")
_PREPOSITIONS: Final = words_of("of for on in at to after over with")
SOURCES: Final = (".py", ".cpp", ".cc", ".cu", ".c", ".h")
_COUNT: Final = re.compile(r"@?\d{1,6}k?$")  # the number behind a measured word: loss2, fid50k, ndcg@10


@functools.lru_cache(4096)
def split_words(phrase: tuple[str, ...], is_explicit: bool) -> tuple[str, str, list[str]]:
    """Split the words before a number into its short name, its full name and the words before the short name.

    The short name is the last word with what qualifies it. A number after `:` or `=` is named by all words before
    that, unless the short name is that of a metric or a counter: "number of skipped iterations: 3" counts no
    iterations, and is a number.
    """
    words = list(phrase)
    while words and words[-1] in _FILLERS and (len(words) > 1 or words[-1].lower() != "value"):
        words.pop()
    trailing: list[str] = []
    while len(words) > 1 and words[-1].lower() in SPLITS:  # loss train: 2.1
        trailing.insert(0, words.pop())
    start = max(len(words) - 1, 0)
    while start > max(len(words) - 3, 0) and words[start - 1].lower() in _QUALIFIERS:
        if is_counter(words[start]):
            break
        start -= 1
    before = start - 2 if start > 1 and words[start - 1].lower() == "of" else start - 1
    if start and words[before].lower() in _STATISTICS:  # Std of Reward
        start = before
    full, short = "_".join([*trailing, *words[-6:]]), "_".join([*trailing, *words[start:]])
    if is_explicit and (place := next((i for i, word in enumerate(words) if i and word in _PREPOSITIONS), 0)):
        subject = "_".join([*(word for word in words[place:] if word == "final"), *words[:place]])
        if is_measured(subject) or "learning_rate" in subject.lower():
            return subject, subject, []  # Test Accuracy of the model on the test images: 81.4
    if is_explicit and words:
        is_known = is_measured(short) or "learning_rate" in short.lower()
        is_known |= is_counter(short) and _SETTING.isdisjoint(parts_of("_".join(words[:-1])))
        if not is_known and not all(word.lower() in SPLITS for word in words[start:]):
            return full, full, []
    return short, full, words[:start]


def is_counter(name: str) -> bool:
    """Whether a number of this name counts steps or epochs."""
    return name.lower() in COUNTERS or name.lower() in EPOCHS


@functools.lru_cache(4096)
def is_measured(name: str) -> bool:
    """Whether a name is that of something that is measured."""
    tokens = parts_of(name)
    if not _SETTING.isdisjoint(tokens) or tokens[-1:] in (("s",), ("ms",)):
        return False
    return any(token in MEASURED or _COUNT.sub("", token) in MEASURED for token in tokens)


def is_setting(name: str) -> bool:
    """Whether a name is that of something that is set: `log_interval`."""
    return not _SETTING.isdisjoint(parts_of(name))


@functools.lru_cache(4096)
def is_time(name: str) -> bool:
    """Whether a name is that of a duration or of a clock: not `time_per_step`, which says of what, nor `time_out`."""
    tokens = parts_of(name)
    return not _TIMES.isdisjoint(tokens) and {"per", "out"}.isdisjoint(tokens)


@functools.lru_cache(4096)
def is_count(name: str, is_whole: bool) -> bool:
    """Whether a number with this name is a clock (`elapsed`), or says how many things there are (`Instances`).

    A mean of a number of things is measured, and so is the time of an iteration.
    """
    tokens = parts_of(name)
    if tokens in (("count",), ("total", "s"), ("total", "ms")) or (is_time(name) and not _CLOCKS.isdisjoint(tokens)):
        return True
    if not is_whole or not tokens or is_measured(name) or not (MEANS | _STATISTICS).isdisjoint(tokens):
        return False
    return _COUNTED.search(tokens[-1]) is not None
