"""Texts written by a trained model: what `unmask` writes, whatever the other prompts are; adapters; chat templates."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.predict_settings import MaskedDiffusionPredict, settings_of
from nbtools.training.masked_diffusion.predict import Predictor
from nbtools.training.masked_diffusion.sampling import Unmasking, unmask

from trainings import ADAPTED, TINY, train_model, write_base

CPU = torch.device("cpu")
KEY = "masked_diffusion"


def test_texts_are_what_unmask_writes_behind_each_prompt_alone(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = train_model(cpu_project, KEY, monkeypatch)
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
def test_a_sampled_answer_depends_on_its_prompt_and_the_seed_alone(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(*train_model(cpu_project, KEY, monkeypatch, max_steps=1), CPU)
    prompts = [f"w{number} w"[: 2 + number % 4] + str(number % 9) for number in range(31)] + [""]
    for remasking in ("low_confidence", "random"):
        settings = MaskedDiffusionPredict(temperature=0.7, sample_length=8, seed=3, remasking=remasking)
        rows = list(predictor.predict(prompts, settings))
        assert list(predictor.predict(prompts, settings.replace(predict_batch_size=7))) == rows
        alone = [next(predictor.predict([prompt], settings)) for prompt in reversed(prompts)]
        assert alone[::-1] == rows
        assert len({row["text"] for row in rows}) > 15
        assert list(predictor.predict(prompts, settings.replace(seed=4))) != rows
    (row,) = predictor.predict(["w1"], MaskedDiffusionPredict(sample_length=8, sample_block_length=3))
    assert row["error"] == "sample_block_length=3: must divide the sampled length 8"


def test_words_follow_the_prompt_with_a_space(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    model = train_model(cpu_project, KEY, monkeypatch, tokenizer="words", vocab_size=64, max_steps=1)
    predictor = Predictor(*model, CPU)
    settings = MaskedDiffusionPredict(temperature=0, sample_length=2)
    behind, alone = predictor.predict(["w1", ""], settings)
    assert behind["text"][0] == " " and behind["text"][1] != " "
    assert alone["text"][:1] != " "


def test_settings_start_from_the_runs() -> None:
    config = MaskedDiffusionConfig(**TINY[KEY], remasking="random", temperature=0.4, guidance=1.0)
    settings = settings_of(config)
    assert isinstance(settings, MaskedDiffusionPredict)
    assert (settings.remasking, settings.temperature, settings.guidance) == ("random", 0.4, 1.0)
    assert settings.sample_length == 8


def test_an_adapter_answers_in_the_chat_template_of_its_base(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cpu_project.root)
    write_base(KEY, cpu_project)
    changes = {"adapter": "lora", "dataset": "pairs.jsonl", "max_steps": 1, "sequence_length": 32}
    folder, config = train_model(cpu_project, KEY, monkeypatch, **ADAPTED[KEY], **changes)
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
