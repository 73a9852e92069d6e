"""Texts of a trained generator: from the seed and their prompt alone; the Markov chain; adapters."""

import numpy as np
import pytest
import torch

from nbtools.project import Project
from nbtools.recipes.llm_gan import NUM_SPECIAL_TOKENS
from nbtools.recipes.predict_settings import LLMGANPredict
from nbtools.training.engine import checkpoint
from nbtools.training.engine.sampler import numbers_of, uniforms
from nbtools.training.llm_gan.gan_data import markov_data
from nbtools.training.llm_gan.generator import Generator, build_generator
from nbtools.training.llm_gan.predict import Predictor

from trainings import ADAPTED, train_model, write_base

CPU = torch.device("cpu")
KEY = "llm_gan"


def test_sequences_of_the_chain_are_those_that_the_training_would_write(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = train_model(cpu_project, KEY, monkeypatch, max_steps=2)
    rows = list(Predictor(folder, config, CPU).predict(["", "b"], LLMGANPredict(num_texts=3, seed=5)))
    texts = [text for row in rows for text in row["texts"]]
    assert rows[0]["text"] == "\n\n".join(texts[:3])
    data = markov_data(config)
    generator = Generator(build_generator(config, data.alphabet), data.alphabet)
    checkpoint.load_weights(generator.model, folder / "generator")
    numbers_N = numbers_of(f"{number} {prompt}" for prompt in ("", "b") for number in range(3))
    uniforms_BU = torch.from_numpy(uniforms(5, "predict", 0, numbers_N, config.sequence_length))
    prompts_BP, reals_BT = (
        torch.from_numpy(part[:6].astype(np.int64)) for part in (data.train.prompts_NP, data.train.texts_NT)
    )
    fakes_BT = generator.pairs(prompts_BP, reals_BT, uniforms_BU, 1.0).fakes_BT
    assert texts == [" ".join(str(token - NUM_SPECIAL_TOKENS) for token in row) for row in fakes_BT.tolist()]


@pytest.mark.promise("safety-alone")
def test_texts_do_not_depend_on_the_other_prompts_and_a_long_prompt_is_an_error_of_its_row(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {"dataset": "topics", "prompt_length": 12, "max_steps": 2}
    predictor = Predictor(*train_model(cpu_project, KEY, monkeypatch, **topics), CPU)
    prompts = ["the loop", "a much longer prompt about names", " ".join(["names"] * 12), ""]
    rows = list(predictor.predict(prompts, LLMGANPredict(seed=1)))
    assert "has 12 tokens, and the model was trained with at most 11" in rows[2]["error"]
    assert all(set(row) == {"text", "texts"} for row in (rows[0], rows[1], rows[3]))
    for size in (1, 2):
        assert list(predictor.predict(prompts, LLMGANPredict(seed=1, predict_batch_size=size))) == rows
    assert [next(predictor.predict([prompt], LLMGANPredict(seed=1))) for prompt in prompts] == rows
    several = list(predictor.predict(["", "the loop", "", "", "the loop"], LLMGANPredict(seed=1)))
    assert several[0] == rows[3] and several[1] == several[4] == rows[0]
    assert len({several[place]["text"] for place in (0, 2, 3)}) == 3
    (more,) = predictor.predict(prompts[1:2], LLMGANPredict(seed=1, num_texts=3))
    assert more["texts"][0] == rows[1]["text"] and len({*more["texts"]}) > 1
    assert predictor.tokenizer is not None
    predictor.tokenizer.pad_token = None  # as many pretrained ones: a token that the prompt does not use pads
    settings, last = LLMGANPredict(seed=1, num_texts=20), predictor.tokenizer.decode([len(predictor.tokenizer) - 1])
    alone, beside = (next(predictor.predict(some, settings)) for some in (["the"], ["the", str(last)]))
    assert alone == beside
    assert next(predictor.predict(prompts[:1], LLMGANPredict(seed=2))) != rows[0]


def test_an_adapter_of_a_chat_model_writes(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cpu_project.root)
    write_base(KEY, cpu_project)
    folder, config = train_model(cpu_project, KEY, monkeypatch, adapter="lora", max_steps=2, **ADAPTED[KEY])
    assert not (folder / "generator" / "model.safetensors").exists()
    (row,) = Predictor(folder, config, CPU).predict(["title: the cat"], LLMGANPredict())
    assert row["texts"] == [row["text"]]
