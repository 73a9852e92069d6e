"""Texts written by a trained model: what `unmask` writes, whatever the other prompts are; adapters; chat templates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.predict_settings import MaskedDiffusionPredict, settings_of
from nbtools.training.masked_diffusion.predict import Predictor
from nbtools.training.masked_diffusion.sampling import Unmasking, unmask

from trainings import ADAPTED, TINY, train_here, write_base, write_inputs

CPU = torch.device("cpu")


def trained(project: Project, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Path, MaskedDiffusionConfig]:
    write_inputs("masked_diffusion", project)
    config = MaskedDiffusionConfig(**{**TINY["masked_diffusion"], **changes})
    return train_here(project, config, monkeypatch=monkeypatch).checkpoint(config.max_steps or 0) / "model", config


def test_texts_are_what_unmask_writes_behind_each_prompt_alone(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = trained(cpu_project, monkeypatch)
    predictor = Predictor(folder, config, CPU)
    settings = MaskedDiffusionPredict(temperature=0, sample_length=8, sample_steps=4, sample_block_length=4)
    prompts = ["w1 w", "w12", "w3 w", "", "w" * 9]
    rows = list(predictor.predict(prompts, settings.replace(num_frames=3)))
    assert "has 9 tokens, which leaves 7 of the 16" in rows[4]["error"]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder).eval()
    for prompt, row in zip(prompts[:4], rows, strict=False):
        tokens_BP = torch.tensor([tokenizer(prompt)["input_ids"]], dtype=torch.long)
        *_, last = unmask(
            lambda tokens_BT: model(input_ids=tokens_BT).logits,
            tokens_BP,
            Unmasking(8, 4, 4),
            mask_id=tokenizer.mask_token_id,
        )
        written = tokenizer.decode(last[0, len(prompt) :])
        assert row["text"] == written.partition("[EOS]")[0]
        assert row["frames"][0] == "░" * 8
        assert row["frames"][1].count("░") == 4  # the first block is done
        assert row["frames"][2] == written.replace("[EOS]", "¶")


@pytest.mark.promise("safety-alone")
@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_a_sampled_answer_depends_on_its_prompt_and_the_seed_alone(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch, remasking: Any
) -> None:
    predictor = Predictor(*trained(cpu_project, monkeypatch, max_steps=1), CPU)
    prompts = [f"w{number} w"[: 2 + number % 4] + str(number % 9) for number in range(63)] + [""]
    settings = MaskedDiffusionPredict(temperature=0.7, sample_length=8, seed=3, remasking=remasking)
    rows = list(predictor.predict(prompts, settings))
    for size in (7, 1):
        assert list(predictor.predict(prompts, settings.replace(predict_batch_size=size))) == rows
    alone = [next(predictor.predict([prompt], settings)) for prompt in reversed(prompts)]
    assert alone[::-1] == rows
    assert len({row["text"] for row in rows}) > 30
    assert list(predictor.predict(prompts, settings.replace(seed=4))) != rows


def test_words_follow_the_prompt_with_a_space(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, config = trained(cpu_project, monkeypatch, tokenizer="words", vocab_size=64, max_steps=1)
    predictor = Predictor(folder, config, CPU)
    settings = MaskedDiffusionPredict(temperature=0, sample_length=2)
    behind, alone = predictor.predict(["w1", ""], settings)
    assert behind["text"][0] == " " and behind["text"][1] != " "
    assert alone["text"][:1] != " "


def test_settings_start_from_the_runs_and_impossible_ones_are_an_error_of_the_row() -> None:
    config = MaskedDiffusionConfig(**TINY["masked_diffusion"], remasking="random", temperature=0.4, guidance=1.0)
    settings = settings_of(config)
    assert isinstance(settings, MaskedDiffusionPredict)
    assert (settings.remasking, settings.temperature, settings.guidance) == ("random", 0.4, 1.0)
    assert settings.sample_length == 8


def test_an_adapter_answers_in_the_chat_template_of_its_base(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cpu_project.root)
    write_base("masked_diffusion", cpu_project)
    changes = {
        **ADAPTED["masked_diffusion"],
        "adapter": "lora",
        "dataset": "pairs.jsonl",
        "max_steps": 1,
        "sequence_length": 32,
    }
    folder, config = trained(cpu_project, monkeypatch, **changes)
    assert not (folder / "model.safetensors").exists()
    predictor = Predictor(folder, config, CPU)
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    predictor.tokenizer.chat_template = template + "{% if add_generation_prompt %}<assistant>{% endif %}"
    settings = MaskedDiffusionPredict(temperature=0, sample_length=4)
    answered, plain, written_out = (
        next(predictor.predict([prompt], settings.replace(chat_template=is_on)))
        for prompt, is_on in (("say 3", True), ("say 3", False), ("<user>say 3<assistant>", False))
    )
    assert "error" not in answered
    assert answered == written_out
    assert predictor._encoded("say 3", settings) != predictor._encoded("say 3", settings.replace(chat_template=False))
    assert plain["text"] is not None


def test_an_impossible_setting_is_named_in_the_row(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(*trained(cpu_project, monkeypatch, max_steps=1), CPU)
    (row,) = predictor.predict(["w1"], MaskedDiffusionPredict(sample_length=8, sample_block_length=3))
    assert row["error"] == "sample_block_length=3: must divide the sampled length 8"
