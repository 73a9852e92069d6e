"""Text classification: the same gradients however the batch is divided, bit-exact resume, real learning."""

import random
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Train

from nbtools import recipes
from nbtools.data.text_classification import occupations
from nbtools.errors import CheckpointError
from nbtools.project import Project
from nbtools.recipes import TextClassificationConfig
from nbtools.recipes.predict_settings import TextClassificationPredict
from nbtools.recipes.text_classification import load_samples
from nbtools.run.checkpoints import checkpoints_in
from nbtools.run.run import Run
from nbtools.rundir import media
from nbtools.rundir.json_files import read_json
from nbtools.training.text_classification.calibration import Calibration, calibration_error
from nbtools.training.text_classification.predict import Predictor
from nbtools.training.text_classification.train import parts_of_langs

from trainings import OCCUPATIONS, ByHand, rows, script_text, write_csv, write_inputs
from trainings import TINY as TINY_VALUES

TINY = TINY_VALUES["text_classification"]
Prediction = tuple[tuple[str, ...], float]


def tiny(**changes: Any) -> TextClassificationConfig:
    return TextClassificationConfig(**{**TINY, **changes})


@pytest.fixture(autouse=True)
def tables(cpu_project: Project) -> Project:
    """A project with a CSV file of 160 occupations, on the CPU."""
    write_inputs("text_classification", cpu_project)
    return cpu_project


# --- in one process -------------------------------------------------------------------------------


@pytest.mark.promise("safety-unseen-code")
def test_an_unseen_code_of_the_evaluation_is_an_error_of_the_model(
    trained: Train, tables: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    few = [(row.text, row.lang, row.codes) for row in OCCUPATIONS[:20]]
    write_csv(tables.root / "val.csv", few)
    write_csv(tables.root / "unseen.csv", [(text, lang, ("64100",)) for text, lang, _ in few])
    config = tiny(max_steps=2, val_data="val.csv", test_fraction=0.5)  # no test: the file is evaluated whole
    seen = rows(trained(config))[-1]
    files = trained(config.replace(val_data="unseen.csv"))
    row = rows(files)[-1]
    scores = [name for name in row if name.startswith("eval/") and "loss" not in name and "ece" not in name]
    assert len(scores) > 8
    assert {row[name] for name in scores} == {0.0}
    assert row["train/loss"] == seen["train/loss"]
    assert "'64100' (20)" in capfd.readouterr().out
    assert len(media.read(files.media, "mistakes")[-1].rows) == 20
    assert media.read(files.media, "mistakes")[-1].rows[0][1] == "64100"


def test_a_run_leaves_scores_mistakes_and_what_the_form_had_shown(
    trained: Train, tables: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(max_steps=None, epochs=1)
    expected = recipes.RECIPES["text_classification"]
    files = trained(config)
    derived = (read_json(files.config) or {})["derived"]
    *counted, _ = expected.count_samples(config, tables.root) or ()
    assert tuple(counted) == (derived["num_train_samples"], derived["num_eval_samples"], 0)
    assert sum(counted) == 160
    assert derived["num_parameters"] == expected.num_parameters(config, derived["vocab_size"])
    seen = rows(files)
    assert seen[-1]["step"] == derived["total_steps"] == counted[0] // 8
    assert {"train/loss", "train/seq2seq_loss", "train/flat_loss", "train/padding", "train/grad_norm"} <= seen[0].keys()
    scores = {"loss", "accuracy", "precision", "recall", "f1", "exact", "flat_accuracy", "majority_accuracy"}
    scores |= {"accuracy_distinct", *(f"accuracy_{digits}_digits" for digits in range(1, 5))}
    assert {f"eval/{name}" for name in scores} <= seen[2].keys()
    assert all(0 <= seen[2][f"eval/{name}"] <= 1 for name in scores - {"loss"})
    assert seen[2]["eval/accuracy"] <= seen[2]["eval/accuracy_4_digits"] <= seen[2]["eval/accuracy_1_digits"]
    last = seen[-1]
    assert last["eval/loss"] == pytest.approx(
        0.5 * last["eval/seq2seq_loss"] + 0.5 * derived["vocab_size"] * last["eval/flat_loss"]
    )
    shown = media.read(files.media, "mistakes")
    assert [item.step for item in shown] == [row["step"] for row in seen if "eval/loss" in row]
    assert shown[0].columns == ("text", "true", "predicted", "confidence")
    assert 0 < len(shown[0].rows) <= 20
    confidences = [float(cells[3]) for cells in shown[0].rows]
    assert confidences == sorted(confidences, reverse=True)
    assert all(true != predicted for _, true, predicted, _ in shown[0].rows)
    assert "data.csv" in capfd.readouterr().out


def test_the_test_has_a_table_of_scores_of_its_own(trained: Train) -> None:
    files = trained(tiny(max_steps=2, test_fraction=0.5))
    (shown,) = media.read(files.media, "test_scores")
    tested, evaluated = rows(files)[-1], media.read(files.media, "scores")[-1]
    assert shown.rows[0][0] == "all texts"
    assert [float(cell) for cell in shown.rows[0][2:4]] == pytest.approx(
        [tested["test/accuracy"], tested["test/exact"]], abs=5e-4
    )
    assert int(shown.rows[0][1]) + int(evaluated.rows[0][1]) == 34


def test_rare_languages_are_one_part() -> None:
    langs = [f"l{number:02}" for number in range(23) for _ in range(30 - number)]
    names, parts_N = parts_of_langs(["other", *langs])
    assert names == [*(f"language l{number:02}" for number in range(20)), "other languages"]
    assert parts_N.tolist() == [20, *(min(int(lang[1:]), 20) for lang in langs)]
    assert parts_of_langs(["da", "sv", "sv"])[0] == ["language sv", "language da"]


def predictions(path: str | Path, texts: list[str], langs: Sequence[str] = (), **settings: Any) -> list[Prediction]:
    inputs = [{"text": text, "lang": lang} for text, lang in zip_longest(texts, langs, fillvalue="")]
    rows = Predictor(path).predict(inputs, TextClassificationPredict(**settings))
    return [(tuple(row["codes"]), row["probability"]) for row in rows]


def accuracy_of(texts: list[str], found: list[Prediction], truths: list[set[str]]) -> float:
    pairs = [(set(codes), truth) for (codes, _), truth in zip(found, truths, strict=True)]
    return sum(len(codes & truth) / max(len(codes), len(truth)) for codes, truth in pairs) / len(texts)


def test_the_scores_are_those_that_anybody_measures_with_the_checkpoint(trained: Train, tables: Project) -> None:
    few = [(row.text, row.lang, row.codes) for row in OCCUPATIONS[:30]]
    write_csv(tables.root / "val.csv", few + few[:9])
    config = tiny(max_steps=40, epochs=40, eval_every=40, checkpoint_every=40, val_data="val.csv")
    files = trained(config)
    last = checkpoints_in(files.checkpoints)[-1]
    samples = load_samples(config, tables.root)
    texts, langs, truths = [], [], []
    for row in samples.evaluation_rows.tolist():
        texts.append(samples.evaluation.text(row))
        langs.append(samples.evaluation.lang(row))
        truths.append({samples.system.codes[number] for number in samples.evaluation.codes(row)})
    found = predictions(files.path, texts, langs, predict_batch_size=7)
    exact = sum(set(codes) == truth for (codes, _), truth in zip(found, truths, strict=True)) / len(texts)
    accuracy = accuracy_of(texts, found, truths)
    by_text: dict[str, list[float]] = {}
    for text, (codes, _), truth in zip(texts, found, truths, strict=True):
        by_text.setdefault(text, []).append(len(set(codes) & truth) / max(len(codes), len(truth)))
    assert len(by_text) < len(texts), "some texts occur more than once"
    means = [sum(each) / len(each) for each in by_text.values()]
    assert last.metrics["eval/accuracy_distinct"] == pytest.approx(sum(means) / len(means))
    parts = {row[0]: row[1:] for row in media.read(files.media, "scores")[-1].rows}
    assert {"first 1 digit", "first 4 digits", "flat head"} < parts.keys()
    assert parts["all texts"][:3] == (f"{len(texts)}", f"{accuracy_of(texts, found, truths):.3f}", f"{exact:.3f}")
    for lang in sorted(set(langs)):
        rows_of = [place for place, each in enumerate(langs) if each == lang]
        mean = accuracy_of(*([each[place] for place in rows_of] for each in (texts, found, truths)))
        assert parts[f"language {lang}"][:2] == (f"{len(rows_of)}", f"{mean:.3f}")
    assert last.metrics["eval/exact"] == pytest.approx(exact)
    assert last.metrics["eval/accuracy"] == pytest.approx(accuracy)
    assert 0 < accuracy < 1
    for text, lang, (codes, probability) in zip(texts, langs, found, strict=True):
        assert predictions(files.path, [text], [lang]) == [(codes, pytest.approx(probability, rel=1e-4))]


def test_the_calibration_is_stored_applied_and_measured_on_the_test(trained: Train, tables: Project) -> None:
    config = tiny(max_steps=40, epochs=40, eval_every=40, checkpoint_every=40, validation_share=0.5, test_fraction=0.5)
    files = trained(config)
    fitted = Calibration(**(read_json(files.checkpoint(40) / "model" / "config.json") or {})["calibration"])
    samples, seen = load_samples(config, tables.root), rows(files)[-1]
    table, codes_of = samples.evaluation, samples.system.codes
    inputs: list[Any] = [{"text": table.text(row), "lang": table.lang(row)} for row in samples.test_rows.tolist()]
    key = tables.root / "Key.csv"
    key.write_text(
        "en_hisco_text,hisco,code\nempty, ,NA\n" + "".join(f"of {int(each)},{int(each)},0\n" for each in codes_of)
    )
    settings = TextClassificationPredict(num_sets=4, descriptions=str(key))
    found = list(Predictor(files.path).predict(inputs, settings))
    greedy = list(Predictor(files.path).predict(inputs, TextClassificationPredict()))
    truths = [{codes_of[each] for each in table.codes(row)} for row in samples.test_rows.tolist()]
    outcomes = [(row["probability"], set(row["codes"]) == truth) for row, truth in zip(greedy, truths, strict=True)]
    p_N, is_right_N = torch.tensor(outcomes, dtype=torch.float64).T
    assert fitted.temperature != 1
    assert seen["test/ece"] == pytest.approx(calibration_error(p_N, is_right_N), abs=1e-4)
    assert seen["test/coverage"] == np.mean([row["is_accepted"] for row in greedy])
    for row in found:
        chances = [each["probability"] for each in row["sets"]]
        assert 1 < len(chances) <= 4 and chances == sorted(chances, reverse=True) and sum(chances) < 1 + 1e-6
        assert {code for each in row["sets"] for code in each["codes"]} <= set(codes_of)
        assert row["sets"][0]["codes"] == row["codes"]
        assert row["descriptions"] == [f"of {int(code)}" for code in row["codes"]]


@pytest.mark.promise("safety-split")
def test_texts_of_val_data_that_are_trained_on_are_counted_and_scored_apart(
    trained: Train, tables: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    known = [(row.text, row.lang, row.codes) for row in OCCUPATIONS]
    write_csv(tables.root / "train.csv", known[:140])
    write_csv(tables.root / "val.csv", [(f" {text.upper()}", lang, codes) for text, lang, codes in known[130:]])
    seen = {text.lower() for text, _, _ in known[:140]} & {text.lower() for text, _, _ in known[130:]}
    assert len(seen) == 10
    config = tiny(dataset=None, train_data=("train.csv",), val_data="val.csv", text_col="occ1")
    counted = recipes.RECIPES["text_classification"].count_samples(config, tables.root)
    said = "10 of 30 texts of val_data are trained on, too: they have scores of their own"
    assert counted is not None and counted.note == said
    files = trained(config)
    assert f"note: {said}" in capfd.readouterr().out
    parts = {row[0]: row[1:] for row in media.read(files.media, "scores")[-1].rows}
    assert [parts[f"texts that are {trained_on}"][0] for trained_on in ("trained on", "not trained on")] == ["10", "20"]
    row = rows(files)[-1]
    for name in ("accuracy", "exact"):
        mean = (10 * row[f"eval/seen_{name}"] + 20 * row[f"eval/unseen_{name}"]) / 30
        assert mean == pytest.approx(row[f"eval/{name}"])


def test_a_file_of_its_own_for_evaluation_and_generic_codes(trained: Train, tables: Project) -> None:
    colours = [("rot", "r"), ("grün", "g"), ("blau", "b"), ("rot und blau", "r&b"), ("grün und rot", "g")]
    for name, start in (("a.csv", 0), ("b.csv", 30), ("v.csv", 60)):
        lines = [
            f"{colours[n % 5][0]} {n},{colours[n % 5][1]},{'extra' if n % 5 == 2 else '?'}"
            for n in range(start, start + 30)
        ]
        (tables.root / name).write_text("\n".join(["text,colour,more", *lines]))
    columns = {"text_col": "text", "target_cols": ("colour", "more"), "missing_labels": ("?",), "label_separator": "&"}
    config = tiny(dataset=None, train_data=("a.csv", "b.csv"), val_data="v.csv", **columns)
    files = trained(config)
    derived = (read_json(files.config) or {})["derived"]
    assert (derived["num_train_samples"], derived["num_eval_samples"], derived["vocab_size"]) == (60, 30, 4)
    codes, _ = predictions(files.path, ["rot"])[0]
    assert set(codes) <= {"r", "g", "b", "extra"}
    assert "eval/accuracy_1_digits" not in rows(files)[-1]


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.slow
def test_one_head_alone_trains_too(trained: Train, weight: float) -> None:
    seen = rows(trained(tiny(seq2seq_weight=weight, max_steps=10)))
    first, *_, last = (row["train/loss"] for row in seen)
    assert last < first
    assert ("eval/seq2seq_loss" if weight else "eval/flat_loss") in seen[-1]


def test_the_presets_divide_the_original_s_batch_among_the_gpus() -> None:
    recipe = recipes.RECIPES["text_classification"]
    for name, total in (("mixer", 512), ("finetune", 128)):
        for num_gpus in (1, 2, 4):
            config, launch = recipe.preset(f"{name}_{num_gpus}gpu")
            assert config.effective_batch(launch.nproc_per_node) == total
    config, _ = recipe.preset("mixer_4gpu")
    assert isinstance(config, TextClassificationConfig)
    assert (config.learning_rate, config.epochs, config.seq2seq_weight) == (2e-5, 50, 0.5)
    assert (config.model_name, config.num_decoder_layers, config.num_decoder_heads) == ("google/canine-s", 3, 8)


# --- prediction -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "is_same"), [({"clean": "none"}, False), ({"clean": "light"}, True), ({"dataset": None}, True)]
)
@pytest.mark.slow
def test_a_predictor_reads_texts_as_the_training_did(trained: Train, changes: dict[str, Any], is_same: bool) -> None:
    files = trained(tiny(max_steps=1, **changes))
    plain, spelled = predictions(files.path, ["smed og husmand", "SMED  og Husmand"])
    assert (plain == spelled) is is_same


def test_a_predictor_opens_runs_checkpoints_and_models_and_refuses_the_rest(
    trained: Train, tables: Project, tmp_path: Path
) -> None:
    files = trained(tiny())
    expected = predictions(files.path, ["smed"])
    for path in (files.checkpoint(6), files.checkpoint(6) / "model", str(files.path)):
        assert predictions(path, ["smed"]) == expected
    (codes, probability) = expected[0]
    assert 1 <= len(codes) <= 2
    assert 0 < probability <= 1
    (tmp_path / "empty").mkdir()
    for path, said in (("nowhere", "no such folder"), (tmp_path / "empty", "no text classifier")):
        with pytest.raises(CheckpointError, match=said):
            Predictor(path)
    weights = files.checkpoint(6) / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-9] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Predictor(files.path)


# --- real processes -------------------------------------------------------------------------------


_SAY_PEAK = """
import os
from pathlib import Path

from nbtools.training.engine.worker import Worker

real = Worker.batches

def first(worker, *args):
    for batch in real(worker, *args):
        peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 // 10**6
        Path("peak.txt").write_text(f"{peak} {len(batch[0])}")
        os._exit(0)
        yield batch  # never: what calls this waits with the work until it is asked for the first batch

Worker.batches = first
"""
"""The rank writes its largest memory in MB when its first batch is there, and ends."""


@pytest.mark.slow
def test_a_row_that_is_read_takes_less_than_250_bytes_up_to_the_first_batch(start: ByHand, tables: Project) -> None:
    """Beside the same with five thousand rows, most of which is torch and other imports."""

    def peak_mb(num_rows: int) -> int:
        with (tables.root / "large.csv").open("w") as file:
            file.write("occ1,lang,code1,code2\n")
            for number in range(num_rows):
                codes = f"{10_000 + number % 1900},{'' if number % 7 else 10_000 + number % 37}"
                file.write(f"labourer number {number} of the parish,en,{codes}\n")
        config = TextClassificationConfig(dataset="large.csv", test_fraction=0.0)
        start.script.write_text(script_text(config, _SAY_PEAK))
        codes, said = start.ended(start.script, nproc=1, timeout_s=500)
        assert codes == [0], said[-3000:]
        (tables.root / "large.csv").unlink()  # pytest keeps the folder
        peak, batch_size = map(int, (tables.root / "peak.txt").read_text().split())
        assert batch_size == config.batch_size
        return peak

    assert 6 < peak_mb(300_000) - peak_mb(5_000) < 75, "of a million rows 105 MB; their file has 45"


# --- learning -------------------------------------------------------------------------------------


def assert_target(finished: Run) -> None:
    """Strings that no training row has: the targets, and far more than the most frequent code would give."""
    history = finished.own_history
    scores = {name: history.last(f"eval/{name}") or 0.0 for name in ("accuracy", "exact", "flat_accuracy")}
    majority = history.last("eval/majority_accuracy") or 1.0
    assert majority < 0.1
    curve = history["eval/accuracy"]
    assert dict(zip(curve.steps, curve.values, strict=True))[200] >= 0.3, "halfway, where the control stops"
    assert scores["accuracy"] >= 0.80, scores
    assert scores["exact"] >= 0.70, scores
    assert scores["flat_accuracy"] >= 0.50, scores
    padding = history["train/padding"].values
    assert max(padding[1:]) < 0.10
    ((codes, probability),) = predictions(finished.dir, ["blacksmith of york"], ["en"])
    assert codes == ("83110",)
    assert probability > 0.5


@pytest.mark.seeds
@pytest.mark.parametrize("seed", [0, 1])
def test_the_cpu_demo_learns_to_code_strings_that_it_never_saw(start: ByHand, tables: Project, seed: int) -> None:
    assert_target(start.demo("text_classification", seed=seed))


@pytest.mark.seeds
def test_with_shuffled_labels_there_is_nothing_to_learn(start: ByHand, tables: Project) -> None:
    made = occupations.rows()
    labels = [row.codes for row in made]
    random.Random(0).shuffle(labels)
    rows_ = [(row.text, row.lang, codes) for row, codes in zip(made, labels, strict=True)]
    write_csv(tables.root / "shuffled.csv", rows_)
    changes = {"dataset": "shuffled.csv", "validation_share": 0.1, "max_steps": 200}
    history = start.demo("text_classification", **changes).own_history
    assert (history.last("eval/accuracy") or 0) <= 0.10
    assert (history.last("eval/flat_accuracy") or 0) <= 0.10
