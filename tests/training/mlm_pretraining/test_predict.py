"""Masks filled by a trained model: as the model's own class fills them, whatever the other texts are."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.recipes.predict_settings import MLMPretrainingPredict
from nbtools.run.checkpoints import Checkpoint
from nbtools.training.mlm_pretraining.predict import Predictor
from nbtools.training.prediction_server import model_folder_of

from trainings import ADAPTED, TINY, train_here, train_model, write_base

CPU = torch.device("cpu")


@pytest.fixture(params=["words", "byte_bpe"])
def trained(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[Path, MLMPretrainingConfig]:
    return train_model(cpu_project, "mlm_pretraining", monkeypatch, vocab_size=300, tokenizer=request.param)


def test_masks_are_filled_as_the_models_own_class_fills_them(trained: tuple[Path, MLMPretrainingConfig]) -> None:
    predictor = Predictor(*trained, CPU)
    texts = ["w1 [MASK] w5", "w1 w2 w3", "[MASK] w2 [MASK] w4", "w9 [MASK] w1", " ".join(["[MASK]"] * 17)]
    rows = list(predictor.predict(texts, MLMPretrainingPredict(top_k=3)))
    assert "holds no mask" in rows[1]["error"]
    assert "trained on 16" in rows[4]["error"]
    tokenizer = AutoTokenizer.from_pretrained(trained[0])
    model = AutoModelForMaskedLM.from_pretrained(trained[0]).eval()
    for text, row in ((texts[place], rows[place]) for place in (0, 2, 3)):
        encoded = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            best = model(input_ids=encoded).logits[encoded == tokenizer.mask_token_id].softmax(-1).topk(3)
        assert len(row["masks"]) == text.count("[MASK]")
        for candidates, ids, probabilities in zip(row["masks"], best.indices, best.values, strict=True):
            assert [each["token"] for each in candidates] == [tokenizer.decode([number]) for number in ids.tolist()]
            assert [each["probability"] for each in candidates] == pytest.approx(probabilities.tolist(), rel=1e-4)
        filled = encoded[0, :-1].clone()
        filled[filled == tokenizer.mask_token_id] = best.indices[:, 0]
        assert row["text"] == tokenizer.decode(filled)


def test_an_adapter_is_opened_with_its_base(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cpu_project.root)
    write_base("mlm_pretraining", cpu_project)
    adapted = {**ADAPTED["mlm_pretraining"], "adapter": "lora"}
    folder, config = train_model(cpu_project, "mlm_pretraining", monkeypatch, **adapted)
    assert not (folder / "model.safetensors").exists()
    (row,) = Predictor(folder, config, CPU).predict(["w1 [MASK]"], MLMPretrainingPredict())
    assert len(row["masks"]) == 1


def test_whole_weights_in_outputs_serve_unless_they_are_of_another_checkpoint_or_changed(
    texts: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MLMPretrainingConfig(**TINY["mlm_pretraining"], strategy="fsdp")
    files = train_here(texts, config, monkeypatch=monkeypatch)
    whole = files.outputs / "model"
    with model_folder_of(config, Checkpoint.read(files.checkpoint(6))) as folder:
        assert folder == whole
    with model_folder_of(config, Checkpoint.read(files.checkpoint(3))) as folder:
        assert folder != whole
        assert (folder / "model.safetensors").is_file()
    for name in ("config.json", "model.safetensors"):
        content = (whole / name).read_bytes()
        (whole / name).write_bytes(content[:-1] + b" ")
        with model_folder_of(config, Checkpoint.read(files.checkpoint(6))) as folder:
            assert folder != whole
            (row,) = Predictor(folder, config, CPU).predict(["w1 [MASK]"], MLMPretrainingPredict())
        assert len(row["masks"]) == 1
        assert not folder.exists()
        (whole / name).write_bytes(content)
