"""Continued pretraining with real classes of transformers: template, length, dropout, unused weights, older runs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixture_types import Train
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from nbtools.cli.output import print_run
from nbtools.data import corpus
from nbtools.notebook import run_html
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.mlm_pretraining import main
from nbtools.training.mlm_pretraining.dataset import open_tokenized, tokenize
from nbtools.training.mlm_pretraining.masking import MaskedTraining, Masking
from nbtools.training.mlm_pretraining.train import MaskedLM, build_model

from trainings import TINY, ByHand, assert_same_checkpoints, rows, write_base

WORDS = [f"w{number}" for number in range(40)]
SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

pytestmark = pytest.mark.usefixtures("texts")


def tiny(**changes: Any) -> MLMPretrainingConfig:
    return MLMPretrainingConfig(**{**TINY["mlm_pretraining"], **changes})


def bert(project: Project) -> str:
    """A BERT with its own tokenizer, from a vocabulary file."""
    write_base("mlm_pretraining", project)
    return str(project.root / "base")


def with_words(folder: Path, make: Callable[[int], transformers.PreTrainedModel]) -> str:
    """A model of the given class, with a tokenizer of words that has RoBERTa's special tokens and template."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate([*special, *WORDS])}, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = dict(zip(("cls_token", "pad_token", "eos_token", "unk_token", "mask_token"), special, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
    torch.manual_seed(0)
    make(45).save_pretrained(folder)
    return str(folder)


def roberta(vocab_size: int) -> transformers.PreTrainedModel:
    return transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(vocab_size=vocab_size, max_position_embeddings=20, pad_token_id=1, **SIZE)
    )


def esm(vocab_size: int) -> transformers.PreTrainedModel:
    settings = {"pad_token_id": 1, "mask_token_id": 4, "max_position_embeddings": 64}
    return transformers.EsmForMaskedLM(transformers.EsmConfig(vocab_size=vocab_size, **settings, **SIZE))


# --- the template ---------------------------------------------------------------------------------


@pytest.mark.promise("safety-template")
def test_every_sequence_of_bert_stands_between_cls_and_sep_which_are_never_predicted(texts: Project) -> None:
    config = tiny(dataset=str(texts.root / "texts"), model_name=bert(texts))
    folder = tokenize(texts.runs / ".cache", config).folder
    text = open_tokenized(folder, 16, with_template=True)
    rows_NT = text.train[np.arange(len(text.train))]
    assert text.train.shape == rows_NT.shape
    for row in rows_NT.tolist():
        assert text.tokenizer(text.tokenizer.decode(row[1:-1]))["input_ids"] == row
    stream = np.load(folder / "train_data.npy")
    assert (rows_NT[:, 1:-1].reshape(-1) == stream[: rows_NT[:, 1:-1].size]).all()
    masking = Masking.of(text, 0.5, 0)
    inputs_BT, positions_BK, _ = MaskedTraining(text.train, masking)[0, np.arange(4)]
    assert ((positions_BK > 0) & (positions_BK < 15)).all()
    assert (inputs_BT[:, 0] == text.tokenizer.cls_token_id).all()
    assert (inputs_BT[:, -1] == text.tokenizer.sep_token_id).all()


@pytest.mark.promise("safety-template")
def test_bert_trains_with_its_template_and_a_config_from_before_without(trained: Train, texts: Project) -> None:
    model_name = bert(texts)
    runs = [trained(tiny(model_name=model_name, add_special_tokens=added)) for added in (True, False)]
    samples = [(read_json(files.config) or {})["derived"]["num_train_samples"] for files in runs]
    assert samples[0] > samples[1], "two tokens of each sequence are the template's"
    old = MLMPretrainingConfig.recorded({"model_name": model_name})
    assert (old.add_special_tokens, old.keep_model_dropout) == (False, True)


@pytest.mark.promise("safety-weights")
def test_a_new_head_and_a_prefix_are_told_wherever_a_run_is_shown(
    trained: Train, texts: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(bert(texts))
    transformers.BertModel(transformers.BertConfig.from_pretrained(folder)).save_pretrained(folder)
    path = folder / "model.safetensors"
    save_file(
        {f"_orig_mod.{name}": weight for name, weight in load_file(path).items()}, path, metadata={"format": "pt"}
    )
    config = tiny(model_name=str(folder))
    files = trained(config)
    kept = (read_json(files.config) or {})["weights"]["model_name"]
    assert kept["missing"]["count"] == 5 and kept["missing"]["names"][0] == "cls.predictions.bias"
    assert kept["fitting"] == 37 and kept["unexpected"]["count"] == 2, "the pooler is left out"
    told = "5 weights (cls.predictions.bias, cls.predictions.transform.LayerNorm.bias, "
    assert f"weights          {kept['note']}" in capfd.readouterr().out and told in kept["note"]
    run = Run(files.path)
    print_run(run.summary())
    assert told in capfd.readouterr().out and told in run_html.config(run)


# --- length and dropout ---------------------------------------------------------------------------


@pytest.mark.promise("safety-length")
def test_roberta_takes_two_positions_fewer_than_it_has(trained: Train, texts: Project) -> None:
    model_name = with_words(texts.root / "roberta", roberta)
    with pytest.raises(SystemExit, match=r"ConfigError: sequence_length=19: .*roberta takes at most 18"):
        trained(tiny(model_name=model_name, sequence_length=19))
    assert rows(trained(tiny(model_name=model_name, sequence_length=18)))[-1]["eval/loss"] > 0


@pytest.mark.promise("safety-dropout")
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZE)),
            ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        ),
        (
            lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZE)),
            ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        ),
        (
            lambda: transformers.DistilBertForMaskedLM(
                transformers.DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=16)
            ),
            ("dropout", "attention_dropout"),
        ),
        (
            lambda: transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**SIZE)),
            ("attention_dropout", "mlp_dropout", "embedding_dropout"),
        ),
    ],
)
def test_dropout_replaces_that_of_the_model_unless_its_own_is_kept(
    texts: Project, make: Callable[[], transformers.PreTrainedModel], names: tuple[str, ...]
) -> None:
    folder = texts.root / "model"
    model = make()
    own = [getattr(model.config, name) for name in names]
    model.save_pretrained(folder)
    text = open_tokenized(tokenize(texts.runs / ".cache", tiny(dataset=str(texts.root / "texts"))).folder, 16)
    for changes, expected in (({}, [0.3] * len(names)), ({"keep_model_dropout": True}, own)):
        loaded = build_model(tiny(model_name=str(folder), dropout=0.3, **changes), text)
        assert [getattr(loaded.config, name) for name in names] == expected
        if not changes:
            rates = {part.p for part in loaded.modules() if isinstance(part, torch.nn.Dropout)}
            assert rates <= {0.3}


# --- weights that the loss does not reach ---------------------------------------------------------


@pytest.mark.promise("safety-unused")
def test_only_models_with_unused_weights_are_searched_for_them(texts: Project) -> None:
    masked = {
        "esm": MaskedLM(esm(45)),
        "roberta": MaskedLM(roberta(45)),
        "bert": MaskedLM(transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=45, **SIZE))),
    }
    state = torch.get_rng_state()
    assert {name: model.has_unused_weights() for name, model in masked.items()} == {
        "esm": True,
        "roberta": False,
        "bert": False,
    }
    assert torch.equal(torch.get_rng_state(), state)
    assert all(model.training and all(w.grad is None for w in model.parameters()) for model in masked.values())


@pytest.mark.promise("safety-unused")
def test_esm_whose_contact_head_is_unused_trains_on_two_ranks(start: ByHand, texts: Project) -> None:
    model_name = with_words(texts.root / "esm", esm)
    config = tiny(model_name=model_name, gradient_accumulation_steps=2, batch_size=4, max_steps=4)
    run = start.forked(config)
    alone = start.forked(config.replace(batch_size=8), nproc=1)
    losses = [[row["train/loss"] for row in rows(each.files)] for each in (run, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# --- runs from before -----------------------------------------------------------------------------


@pytest.mark.promise("safety-before")
@pytest.mark.parametrize("model_name", [None, "bert"])
def test_a_run_recorded_before_these_fields_is_resumed_to_the_bit(
    trained: Train, texts: Project, monkeypatch: pytest.MonkeyPatch, model_name: str | None
) -> None:
    """The earlier run has the meaning of then, and neither its record nor its script names the fields."""
    for file in (texts.root / "texts").iterdir():
        file.write_text(f"{file.read_text()}\n    == 42 ==\n--  {file.stem}\n")
    if model_name is not None:
        model_name = bert(texts)
    new = {"clean": "light", "add_special_tokens": False, "keep_model_dropout": True, "test_fraction": 0.0}
    values = {**TINY["mlm_pretraining"], "model_name": model_name, "dropout": 0.0}
    del values["test_fraction"]
    straight = trained(MLMPretrainingConfig(**values, **new))
    record = read_json(straight.config) or {}
    for name in new:
        del record["config"][name]
    write_json(straight.config, record)

    files = RunDir.create(texts.runs, "resumed")
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(files.path))
    monkeypatch.setattr(sys, "argv", ["tiny.py", "--resume-from", str(straight.checkpoint(3))])
    main(MLMPretrainingConfig(**values))
    assert_same_checkpoints(straight.checkpoint(6), files.checkpoint(6))
    assert json.loads(files.config.read_text())["config"]["clean"] == "light"
    assert "test/" not in files.metrics.read_text()
    assert list(corpus.documents(str(texts.root / "texts"))) != list(
        corpus.documents(str(texts.root / "texts"), clean="light")
    )
