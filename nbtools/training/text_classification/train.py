"""Classification of short texts to sets of codes: a sequence decoder and a flat head on one character model, CANINE.

The loss is w x (cross-entropy of the decoder per symbol) + (1 - w) x scale x (binary cross-entropy of the flat head per
code), both per text (see `model`). Evaluation decodes greedily and compares sets; its texts occur in no training row,
unless the config names a file for them.

Shape suffixes: N rows, B batch, T characters, K codes of a row, C codes.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nbtools.data import hub, split
from nbtools.data.text_classification.samples import Samples
from nbtools.errors import plural
from nbtools.recipes.text_classification import TextClassificationConfig, load_samples
from nbtools.rundir import media
from nbtools.rundir.media import MediaItem
from nbtools.training.engine.optimizer import Optimizer, autocast
from nbtools.training.engine.sampler import batches_of_rank, spread
from nbtools.training.engine.worker import Worker
from nbtools.training.outputs.tally import Tally
from nbtools.training.text.causal_sampling import at_rest
from nbtools.training.text_classification import dataset
from nbtools.training.text_classification.calibration import Calibration, calibration_error, coverage_chart
from nbtools.training.text_classification.metrics import SCORES, ScoreTable, prefix_sets, prefixes, score, table_of
from nbtools.training.text_classification.model import TextClassifier, build_classifier, check_codes
from nbtools.training.text_classification.published import published_model

_NUM_MISTAKES = 20
_NUM_LANGS = 20
_ALL, _FLAT, _MAJORITY, _DISTINCT = "all texts", "flat head", "most frequent codes", "each distinct text once"
_SEEN, _UNSEEN = "texts that are trained on", "texts that are not trained on"

Mistake = tuple[float, str, str, str]
"""Probability of the prediction, the text, its true codes, the predicted codes."""


def train(worker: Worker, config: TextClassificationConfig) -> None:
    """Train from scratch or from a checkpoint, to the last step or a stop."""
    initial_state = worker.initial_state
    is_download = any(map(hub.named, (*config.files, *config.val_files)))  # which rank 0 reads for all
    share = worker.ranks.from_main if is_download else worker.ranks.in_turn
    published = worker.ranks.in_turn(lambda: published_model(config, worker.say))
    system = published.system if published is not None else None
    samples = share(lambda: load_samples(config, worker.project.root, system))
    plan = worker.plan(len(samples.train_rows), len(samples.evaluation_rows), len(samples.test_rows), samples.data)
    for note in samples.notes:
        worker.say(f"note: {note}")
    if initial_state.model is not None:
        check_codes(samples.system, initial_state.model)
    classifier = worker.build(lambda: build_classifier(config, samples.system, code_shares(samples), published))
    model = worker.wrap(classifier)
    initial_state.load_weights(classifier)
    classifier.config.calibration = dataclasses.asdict(Calibration.of(initial_state.model or classifier.config))
    optimizer = Optimizer(model, config, plan.total_steps, worker.device)
    evaluation = Evaluation(worker, config, samples)
    augmentation = dataset.Augmentation(config.seed, config.augmentation, config.unknown_lang)
    longest, max_codes = config.sequence_length, samples.system.max_codes
    characters = dataset.CharacterDataset(samples.train, samples.train_rows, augmentation, longest, max_codes)
    if samples.train.num_cleaned:
        worker.say(f"note: clean='light' changed {samples.train.num_cleaned:,} of {len(samples.train):,} texts")
    if characters.num_cut:
        worker.say(
            f"note: {characters.num_cut:,} texts are longer than sequence_length={longest} allows; their end is cut"
        )
    order = dataset.LengthOrder(plan.order, characters, initial_state.state.get("chunk"))
    batches = worker.batches(characters, order)
    num_texts = config.gradient_accumulation_steps * config.batch_size
    tally = Tally("seq2seq_loss", "flat_loss", "texts", "characters", "positions", device=worker.device)
    sizes = {"num_parameters": classifier.num_parameters(), "vocab_size": len(samples.system.codes)}
    worker.begin(plan, optimizer, tally, hub_commits=hub.commits_of(*config.files, *config.val_files), **sizes)

    model.train()
    for step in worker.steps(plan):
        for (inputs_BT, labels_BK), is_last in worker.passes(batches):
            with worker.forward(model, is_last=is_last):
                losses = model(inputs_BT, labels_BK)
            worker.backward(optimizer, classifier.combine_losses(losses) / num_texts)
            tally.add(seq2seq_loss=losses[0], flat_loss=losses[1], texts=len(inputs_BT))
            tally.add(characters=(inputs_BT != 0).sum(), positions=inputs_BT.numel())
        worker.update(optimizer, step)
        due = worker.advance(plan)

        row: dict[str, float] = {}
        if due.log:
            sums = tally.reduce(worker.sum)
            count, seq2seq, flat = sums["texts"], sums["seq2seq_loss"], sums["flat_loss"]
            row = {"train/loss": classifier.combine_losses((seq2seq, flat)) / count, **optimizer.metrics()}
            row |= {"train/seq2seq_loss": seq2seq / count, "train/flat_loss": flat / count}
            row["train/padding"] = 1 - sums["characters"] / sums["positions"]
            row["train/samples_per_s"] = worker.samples_per_s()
            row["train/epoch"] = plan.epochs(worker.progress)
        if due.evaluation:
            row |= evaluation.measure(classifier)
        worker.end_step(row, plan.total_steps)

        if due.checkpoint:
            state = {**optimizer.state_dict(), "chunk": order.chunk_of(worker.progress.epoch)}
            worker.save({"": classifier}, state, tally.state_dict())

    if (best := worker.begin_test(plan)) is not None:
        best.load_weights(classifier)
        fitted = Calibration.of(best.model or classifier.config)
        test = Evaluation(worker, config, dataclasses.replace(samples, evaluation_rows=samples.test_rows), fitted)
        worker.end_test(test.measure(classifier))
        worker.show("test_scores", test.table)


class Evaluation:
    """Metrics on held-out texts, decoded greedily, and the accuracy of the most frequent set of codes as a baseline.

    The scores are also shown for first digits, for each language, and with each distinct text counted once: frequent
    texts, which the training data has in other spellings, are easier. If texts of the config's evaluation files are
    trained on, these and the others have scores of their own.

    Probabilities are calibrated by `calibration`, or if it is None by what is fitted to the texts, which the model's
    config holds from then on. Each half of the texts is then measured with what is fitted to the other half, and no
    text is in both.
    """

    table: MediaItem
    """The scores of parts at the last measurement."""

    def __init__(
        self, worker: Worker, config: TextClassificationConfig, samples: Samples, calibration: Calibration | None = None
    ) -> None:
        self.worker = worker
        self.calibration = calibration
        self.config = config
        self.samples = samples
        self.prefixes = {digits: of_CD.to(worker.device) for digits, of_CD in prefixes(samples.system).items()}
        table, rows_N = samples.evaluation, samples.evaluation_rows
        rows_N = rows_N[spread(len(rows_N), config.num_evaluated(len(rows_N)))]
        self.rows_N = rows_N
        self.unseen_codes = tuple(table.unseen)
        widths_N = dataset.input_widths(table.lengths()[rows_N], table.lang_lengths()[rows_N])
        # Every batch has one width, so that a text's metrics do not depend on the rest of its batch.
        self.batches = dataset.equal_widths(np.minimum(widths_N, config.sequence_length), config.batch_size)
        self.majority_C = majority_codes(samples).to(worker.device)
        keys_N = split.keys_of(table.text(row) for row in rows_N.tolist())
        _, texts_N, counts = np.unique(keys_N, return_inverse=True, return_counts=True)
        self.is_first_half_N = torch.from_numpy(texts_N % 2 == 0)
        langs, langs_N = parts_of_langs([table.lang(row) for row in rows_N.tolist()])
        weights: dict[str, npt.NDArray[Any]] = {_DISTINCT: 1 / counts[texts_N]}
        weights |= {lang: langs_N == number for number, lang in enumerate(langs) if len(langs) > 1}
        if samples.is_seen.any():
            weights |= {_SEEN: samples.is_seen[rows_N], _UNSEEN: ~samples.is_seen[rows_N]}
        self.parts = tuple(weights)
        self.weights_NP = torch.from_numpy(np.stack([*weights.values()], axis=1).astype(np.float64))

    def measure(self, classifier: TextClassifier) -> dict[str, float]:
        """Return losses and scores over all ranks, and show the most confident mistakes."""
        worker, config, table = self.worker, self.config, self.samples.evaluation
        mistakes: list[Mistake] = []
        num_mistakes = 0
        tally = Tally("seq2seq_loss", "flat_loss", "texts", device=worker.device)
        outcomes_2N = torch.zeros(2, len(self.rows_N), dtype=torch.float64)  # probability, and whether it is right
        cuts = [f"first {plural(digits, 'digit')}" for digits in self.prefixes]
        table_of_parts = ScoreTable([_ALL, *cuts, _FLAT, _MAJORITY, *self.parts], worker.device)
        with worker.aside("evaluation"), at_rest(classifier):
            for (number,), is_own in batches_of_rank(len(self.batches), 1, worker.rank, worker.world_size):
                members, widest = self.batches[number]
                rows_B = self.rows_N[members]
                given = ((table.text(row), table.lang(row)) for row in rows_B.tolist())
                encoded = [dataset.encode(text, lang, config.sequence_length) for text, lang in given]
                inputs_BT = dataset.padded(encoded, widest).to(worker.device)
                all_labels_BK = dataset.labels(table, rows_B, classifier.system.max_codes).to(worker.device)
                # The losses contain only the model's codes; an unknown code counts as an error in all scores.
                labels_BK = torch.where(all_labels_BK < len(classifier.system.codes), all_labels_BK, -1)
                unseen_BU = self._unseen(all_labels_BK)
                with autocast(worker.device, config.precision):
                    memory_BTH, mask_BT, pooled_BH = classifier.encode(inputs_BT)
                    losses = classifier.losses(memory_BTH, mask_BT, pooled_BH, labels_BK)
                    found_BK, probability_B = classifier.decode(memory_BTH, mask_BT)
                    picked_BC = classifier.flat_predictions(pooled_BH)
                if not is_own:
                    continue
                true_BC, found_BC = classifier.multi_hot(labels_BK), classifier.multi_hot(found_BK)
                majority_BC = self.majority_C.expand_as(true_BC)
                tally.add(texts=len(rows_B), seq2seq_loss=losses[0], flat_loss=losses[1])
                scores_BS = score(found_BC, true_BC, unseen_BU)
                table_of_parts.add(_ALL, scores_BS)
                is_right_B = scores_BS[:, SCORES.index("exact")]
                outcomes_2N[:, members] = torch.stack([probability_B.double(), is_right_B]).cpu()
                table_of_parts.add(_FLAT, score(picked_BC, true_BC, unseen_BU))
                table_of_parts.add(_MAJORITY, score(majority_BC, true_BC, unseen_BU))
                table_of_parts.add(self.parts[0], scores_BS, self.weights_NP[members].to(worker.device))
                for cut, of_CD in zip(cuts, self.prefixes.values(), strict=True):
                    sets = prefix_sets(found_BC, of_CD), prefix_sets(true_BC, of_CD)
                    table_of_parts.add(cut, score(*sets, unseen_BU))
                wrong_B = ((found_BC != true_BC).any(1) | (unseen_BU > 0).any(1)).cpu()
                for place in torch.nonzero(wrong_B).flatten().tolist():
                    true, found = (self._named(classifier, sets[place]) for sets in (all_labels_BK, found_BK))
                    text = f"{table.text(int(rows_B[place]))} ({table.lang(int(rows_B[place]))})"
                    mistakes.append((float(probability_B[place]), text, true, found))
                num_mistakes += int(wrong_B.sum())
                mistakes = sorted(mistakes, reverse=True)[:_NUM_MISTAKES]
            sums = tally.reduce(worker.sum)
            means = table_of_parts.reduce(worker.sum)
            self.table = table_of(means)
            worker.show("scores", self.table)
            outcomes = torch.tensor(worker.sum(outcomes_2N.flatten()), dtype=torch.float64)
            calibrated = self._calibrate(classifier, *outcomes.view(2, -1))
            self._show(mistakes, num_mistakes, round(sums["texts"]), Calibration.of(classifier.config))
        num_texts, scores = sums.pop("texts"), means[_ALL]
        mean_losses = {name: value / num_texts for name, value in sums.items()}
        # The most important first: a panel's legend has room for the first ones.
        row = {"loss": classifier.combine_losses(tuple(mean_losses.values()))}
        row |= {name: scores[name] for name in ("accuracy", "exact")}
        row |= {"flat_accuracy": means[_FLAT]["accuracy"], "majority_accuracy": means[_MAJORITY]["accuracy"]}
        row |= {name: scores[name] for name in ("precision", "recall", "f1")}
        shortened = zip(self.prefixes, cuts, strict=True)
        row |= {f"accuracy_{digits}_digits": means[cut]["accuracy"] for digits, cut in shortened}
        row |= {"accuracy_distinct": means[_DISTINCT]["accuracy"], **mean_losses}
        for name, part in (("seen", _SEEN), ("unseen", _UNSEEN)):
            if part in means and means[part]["texts"]:
                row |= {f"{name}_{score}": means[part][score] for score in ("accuracy", "exact")}
        row |= calibrated
        return {f"eval/{name}": value for name, value in row.items()}

    def _calibrate(self, classifier: TextClassifier, p_N: Tensor, is_right_N: Tensor) -> dict[str, float]:
        """Calibrate the model, show accuracy against coverage, and return the metrics of calibration."""
        first_N = self.is_first_half_N
        parts = (first_N, ~first_N, torch.ones_like(first_N))
        of_first, of_second, fitted = (
            self.calibration or Calibration.fit(p_N[part], is_right_N[part]) for part in parts
        )
        calibrated_N = torch.where(first_N, of_second(p_N), of_first(p_N))
        accepted_N = torch.where(first_N, calibrated_N >= of_second.threshold, calibrated_N >= of_first.threshold)
        classifier.config.calibration = dataclasses.asdict(fitted)
        self.worker.show("coverage", coverage_chart(fitted, p_N, is_right_N))
        row = {"ece": calibration_error(calibrated_N, is_right_N)}
        row |= {"ece_uncalibrated": calibration_error(p_N, is_right_N), "coverage": float(accepted_N.double().mean())}
        return row | ({"accepted_exact": float(is_right_N[accepted_N].mean())} if accepted_N.any() else {})

    def _unseen(self, labels_BK: Tensor) -> Tensor:
        """Return 1 where a row has a code that no training row has, else 0. Shape (B, U)."""
        first, count = len(self.samples.system.codes), len(self.unseen_codes)
        numbers_U = torch.arange(first, first + count, device=labels_BK.device)
        return (labels_BK[:, :, None] == numbers_U).any(1).double()

    def _named(self, classifier: TextClassifier, classes_K: Tensor) -> str:
        codes = [*classifier.system.codes, *self.unseen_codes]
        return " & ".join(sorted(codes[number] for number in classes_K.tolist() if number >= 0))

    def _show(self, mistakes: list[Mistake], num_mistakes: int, num_texts: int, fitted: Calibration) -> None:
        """Show the most confident mistakes of all ranks."""
        gathered = self.worker.ranks.gather((mistakes, num_mistakes))
        if not gathered:
            return  # rank 0 has them
        worst = sorted((mistake for some, _ in gathered for mistake in some), reverse=True)[:_NUM_MISTAKES]
        p_N = fitted(torch.tensor([p for p, *_ in worst], dtype=torch.float64)).tolist()
        rows = [(*mistake, f"{p:.2f}") for (_, *mistake), p in zip(worst, p_N, strict=True)]
        title = f"Most confident of {sum(count for _, count in gathered):,} mistakes in {num_texts:,} held-out texts"
        self.worker.show("mistakes", media.table(title, ("text", "true", "predicted", "confidence"), rows))


def parts_of_langs(langs: Sequence[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the names of parts, the most frequent languages and if need be the others, and the part of each text."""
    ordered = sorted(Counter(langs).items(), key=lambda item: (-item[1], item[0]))
    numbers = {lang: min(number, _NUM_LANGS) for number, (lang, _) in enumerate(ordered)}
    names = [f"language {lang}" for lang, _ in ordered[:_NUM_LANGS]]
    names += ["other languages"] * (len(ordered) > _NUM_LANGS)
    return names, np.array([numbers[lang] for lang in langs])


def code_shares(samples: Samples) -> Tensor:
    """Return the share of training rows that has each code. Shape (C,)."""
    codes = [code for row in map(int, samples.train_rows) for code in samples.train.codes(row)]
    return torch.from_numpy(np.bincount(codes, minlength=len(samples.system.codes)) / len(samples.train_rows)).float()


def majority_codes(samples: Samples) -> Tensor:
    """Return the most frequent set of codes of the training rows, as 1 or 0 per code. Shape (C,)."""
    sets = Counter(tuple(sorted(samples.train.codes(row))) for row in map(int, samples.train_rows))
    majority_C = torch.zeros(len(samples.system.codes))
    majority_C[list(min(sets.items(), key=lambda item: (-item[1], item[0]))[0])] = 1
    return majority_C
