"""Pretrained models for the LLM GAN: what is loaded as what, and which do not fit each other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from nbtools.errors import ConfigError
from nbtools.recipes import LLMGANConfig
from nbtools.training.llm_gan.pretrained import load_discriminator, load_generator, pretrained_tokenizer

from trainings import CHAT, save_pair, save_tokenizer


def pair(root: Path, **changes: Any) -> LLMGANConfig:
    names = {"model_name": str(root / "writer"), "judge_name": str(root / "judge"), "prompt_length": 24}
    return LLMGANConfig(**{"dataset": "data.csv", "sequence_length": 8, **names, **changes})


def test_generator_and_judge_are_loaded_with_the_heads_that_their_parts_need(tmp_path: Path) -> None:
    save_pair(tmp_path)
    assert isinstance(load_generator(pair(tmp_path)), GPT2LMHeadModel)
    discriminator = load_discriminator(pair(tmp_path))
    assert type(discriminator).__name__ == "LlamaForTokenClassification" and discriminator.config.num_labels == 1
    written = LlamaForCausalLM.from_pretrained(tmp_path / "judge")
    assert torch.equal(discriminator.model.embed_tokens.weight, written.model.embed_tokens.weight)
    assert isinstance(load_discriminator(pair(tmp_path, judging="verdicts"), 100), LlamaForCausalLM)
    same = load_discriminator(pair(tmp_path, judge_name=None))
    assert type(same).__name__ == "GPT2ForTokenClassification"


@pytest.mark.promise("safety-dropout")
@pytest.mark.parametrize("judging", ["scores", "verdicts"])
def test_dropout_replaces_that_of_both_models_unless_theirs_is_kept(tmp_path: Path, judging: Any) -> None:
    save_pair(tmp_path)
    for changes, expected in (({}, 0.3), ({"dropout": 0.0}, 0.0), ({"keep_model_dropout": True}, 0.1)):
        config = pair(tmp_path, judging=judging, judge_name=None, **{"dropout": 0.3, **changes})
        models = load_generator(config), load_discriminator(config, 90 if judging == "verdicts" else None)
        rates = {part.p for model in models for part in model.modules() if isinstance(part, torch.nn.Dropout)}
        assert rates == {expected}
    llama = load_discriminator(pair(tmp_path, dropout=0.3, judging=judging), 90 if judging == "verdicts" else None)
    assert llama.config.attention_dropout == 0.3
    assert {part.p for part in llama.modules() if isinstance(part, torch.nn.Dropout)} <= {0.3}


def test_different_vocabularies_are_refused_and_both_models_named(tmp_path: Path) -> None:
    tokenizer = save_pair(tmp_path)
    config = pair(tmp_path)
    assert pretrained_tokenizer(config).get_vocab() == tokenizer.get_vocab()
    save_tokenizer(tmp_path / "judge", ["entirely other words"], CHAT)
    with pytest.raises(
        ConfigError, match=r"judge'?: has another vocabulary than the generator .*writer.*\d+ tokens, not"
    ):
        pretrained_tokenizer(config)
    ids = tokenizer.get_vocab()
    for first, second, said in (("dog", "cat", "is \\d+, not \\d+"), ("dog", "wolf", "has no 'dog'")):
        text = (tmp_path / "writer" / "tokenizer.json").read_text(encoding="utf-8")
        assert f'"{first}": {ids[first]}' in text
        text = text.replace(f'"{second}": ', '"TEMPORARY": ').replace(f'"{first}": ', f'"{second}": ')
        (tmp_path / "judge" / "tokenizer.json").write_text(text.replace('"TEMPORARY": ', f'"{first}": '), "utf-8")
        with pytest.raises(ConfigError, match=f"has another vocabulary than the generator .*{said}"):
            pretrained_tokenizer(config)


def test_a_judge_with_fewer_rows_than_the_generator_is_refused(tmp_path: Path) -> None:
    tokenizer = save_pair(tmp_path)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=96, n_embd=8, n_layer=1, n_head=2))
    model.save_pretrained(tmp_path / "judge")
    with pytest.raises(ConfigError, match=r"judge_name=.*its embedding has \d+ rows, that of the generator .* \d+"):
        load_discriminator(pair(tmp_path))


def test_models_that_are_too_short_are_refused_before_their_weights_are_read(tmp_path: Path) -> None:
    save_pair(tmp_path)
    said = r"model_name=.*writer'?: takes at most 96 tokens, and prompt_length=90 \+ sequence_length=8 = 98"
    for name in ("writer", "judge"):
        (tmp_path / name / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=said):
        load_generator(pair(tmp_path, prompt_length=90))
    with pytest.raises(ConfigError, match=r"judge_name=.*at most 160 tokens, and .*2 x sequence_length=8 .* = 161"):
        load_discriminator(pair(tmp_path, judging="verdicts"), 161)


def test_what_cannot_be_loaded_is_told_with_its_field(tmp_path: Path) -> None:
    save_pair(tmp_path)
    with pytest.raises(ConfigError, match=r"judge_name='[^']*nothing'|neither a folder nor a hub id"):
        pretrained_tokenizer(pair(tmp_path, judge_name=str(tmp_path / "nothing")))
    BertConfig(vocab_size=10).save_pretrained(tmp_path / "writer")
    (tmp_path / "writer" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"model_name=.*cannot be loaded as a causal language model"):
        load_generator(pair(tmp_path, prompt_length=8))
    (tmp_path / "writer" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"model_name=.*cannot be loaded"):
        load_generator(pair(tmp_path))
