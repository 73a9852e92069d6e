"""From stories to tokens: what a model reads, where it ends, and pretrained models that do not fit each other."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from nbtools.data.llm_gan.stories import Story
from nbtools.errors import ConfigError
from nbtools.project import Project
from nbtools.recipes import RECIPES, LLMGANConfig
from nbtools.run.checkpoints import checkpoints_in
from nbtools.rundir import media
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine import checkpoint
from nbtools.training.llm_gan.dataset import SPECIAL_TOKENS, VERDICTS, tokenize_stories
from nbtools.training.llm_gan.gan_data import GANData
from nbtools.training.llm_gan.pretrained import pretrained_tokenizer

import trainings
from trainings import assert_same_checkpoints, by_hand, rows, train_here

TRAIN = [
    Story("title: The Dog", "The dog runs. It runs far!"),
    Story("", "A cat sleeps."),
    Story("title: a very long title of many words", "The cat and the dog sleep and sleep and sleep."),
]
EVALUATION = [Story("title: The Cat", "The cat runs, quickly.")]


def tiny(**changes: Any) -> LLMGANConfig:
    values = {"dataset": "data.csv", "sequence_length": 8, "prompt_length": 6, "min_chars": 5}
    return LLMGANConfig(**{**values, **changes})


def words(data: GANData, tokens: Sequence[int] | np.ndarray) -> str:
    assert data.tokenizer is not None
    return " ".join(str(token) for token in data.tokenizer.convert_ids_to_tokens([int(token) for token in tokens]))


# --- vocabularies that are built ------------------------------------------------------------------


def test_prompts_are_padded_on_the_left_and_texts_end_and_are_padded_on_the_right() -> None:
    data = tokenize_stories(tiny(), TRAIN, EVALUATION)
    assert [words(data, row) for row in data.train.prompts_NP] == [
        "[PAD] title : the dog [BOS]",
        "[PAD] [PAD] [PAD] [PAD] [PAD] [BOS]",
        "long title of many words [BOS]",
    ]
    assert [words(data, row) for row in data.train.texts_NT] == [
        "the dog runs . it runs far !",  # cut: no room for an end
        "a cat sleeps . [EOS] [PAD] [PAD] [PAD]",
        "the cat and the dog sleep and sleep",
    ]
    assert words(data, data.evaluation.texts_NT[0]) == "the cat runs [UNK] [UNK] . [EOS] [PAD]"
    assert data.train.prompts_NP.shape[1] == data.evaluation.prompts_NP.shape[1]


def test_prompts_are_no_wider_than_the_longest_one() -> None:
    data = tokenize_stories(tiny(prompt_length=32), TRAIN[:2], EVALUATION)
    assert data.train.prompts_NP.shape == (2, 5)


def test_characters_are_tokens_where_asked_for() -> None:
    data = tokenize_stories(tiny(tokenizer="chars"), TRAIN, EVALUATION)
    tokenizer = data.tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(data.train.texts_NT[1]) == "A cat sl"
    assert words(data, data.train.prompts_NP[0]).endswith("e   D o g [BOS]")


@pytest.mark.parametrize("judging", ["scores", "verdicts"])
@pytest.mark.parametrize("level", ["words", "chars"])
def test_a_vocabulary_keeps_its_size_and_what_no_text_has_is_never_written(judging: str, level: str) -> None:
    config = tiny(judging=judging, tokenizer=level, vocab_size=18)
    data = tokenize_stories(config, TRAIN, EVALUATION)
    tokenizer, alphabet = data.tokenizer, data.alphabet
    assert tokenizer is not None
    assert len(tokenizer) == alphabet.vocab_size <= 18
    assert words(data, range(4)) == " ".join(SPECIAL_TOKENS)
    banned = set(words(data, alphabet.banned_ids).split(" "))
    assert {"[PAD]", "[BOS]"} <= banned
    assert "[EOS]" not in banned
    assert ("[UNK]" in banned) == (3 not in data.train.texts_NT and 3 not in data.evaluation.texts_NT)
    assert (set(VERDICTS) <= banned) == (judging == "verdicts") == (VERDICTS[0] in tokenizer.get_vocab())
    assert not set(alphabet.banned_ids) & set(data.train.texts_NT[data.train.texts_NT != 0].tolist())


def test_the_saved_tokenizer_cuts_as_the_training_did(tmp_path: Path) -> None:
    for level in ("words", "chars"):
        data = tokenize_stories(tiny(tokenizer=level, sequence_length=64), TRAIN, EVALUATION)
        assert data.tokenizer is not None
        data.tokenizer.save_pretrained(tmp_path / level)
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / level, trust_remote_code=False)
        for story, row in zip(TRAIN, data.train.texts_NT, strict=True):
            ids = again(story.text)["input_ids"]
            assert row[: len(ids) + 1].tolist() == [*ids, again.eos_token_id]


def test_the_outside_is_counted_on_the_held_out_texts_alone() -> None:
    first = tokenize_stories(tiny(), TRAIN, EVALUATION)
    other = tokenize_stories(
        tiny(), [*TRAIN[:2], Story("", "The cat and the dog sleep a sleep. words of many long very")], EVALUATION
    )
    assert first.reference_name == "ngram"
    held_out = first.evaluation.texts_NT
    assert first.reference(held_out)[0] < first.reference(first.train.texts_NT).min()
    assert words(other, other.evaluation.texts_NT[0]) == words(first, held_out[0])


# --- pretrained models ----------------------------------------------------------------------------


def pair(root: Path, **changes: Any) -> LLMGANConfig:
    names = {"model_name": str(root / "writer"), "judge_name": str(root / "judge"), "prompt_length": 24}
    return tiny(**{**names, **changes})


def test_a_chat_template_stands_around_every_prompt_whole(tmp_path: Path) -> None:
    trainings.save_pair(tmp_path)
    config = pair(tmp_path)
    data = tokenize_stories(config, TRAIN, EVALUATION, pretrained_tokenizer(config))
    rows = [words(data, row[row != data.alphabet.pad_id]) for row in data.train.prompts_NP]
    told = "write a text of the kind that is asked for , and nothing else ."
    assert rows[0] == f"[BOS] <|user|> {told} title : the dog <|writer|>"
    assert rows[2] == f"[BOS] <|user|> {told} very long title of many words <|writer|>", (
        "the prompt's beginning is cut, never the frame"
    )
    assert max(len(row) for row in data.train.prompts_NP) == 24


def test_without_a_chat_template_a_prompt_is_plain(tmp_path: Path) -> None:
    trainings.save_pair(tmp_path, chat=None)
    config = pair(tmp_path)
    data = tokenize_stories(config, TRAIN, EVALUATION, pretrained_tokenizer(config))
    row = data.train.prompts_NP[0]
    assert words(data, row[row != data.alphabet.pad_id]).startswith("[BOS] write a text")
    assert words(data, row[row != data.alphabet.pad_id]).endswith("title : the dog")


def test_padding_is_a_token_of_its_own_even_where_the_tokenizer_pads_with_its_end(tmp_path: Path) -> None:
    trainings.save_pair(tmp_path)
    for name in ("writer", "judge"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / name, trust_remote_code=False)
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.save_pretrained(tmp_path / name)
    config = pair(tmp_path)
    data = tokenize_stories(config, TRAIN, EVALUATION, pretrained_tokenizer(config))
    alphabet = data.alphabet
    assert alphabet.pad_id != alphabet.eos_id
    texts = torch.from_numpy(data.train.texts_NT)
    assert alphabet.mask(texts).sum(1).tolist() == [8, 5, 8]
    assert texts[1, 4] == alphabet.eos_id
    assert {alphabet.pad_id, *range(len(tokenizer), len(tokenizer) + 3)} <= set(alphabet.banned_ids)
    assert alphabet.vocab_size == len(tokenizer) + 3, "rows that no token has are never written"


def test_what_looks_like_a_mark_of_the_model_is_text_like_any_other(tmp_path: Path) -> None:
    trainings.save_pair(tmp_path)
    config = pair(tmp_path)
    stories = [Story("title: the <|writer|> dog", "the [EOS] dog"), TRAIN[1]]
    data = tokenize_stories(config, stories, EVALUATION, pretrained_tokenizer(config))
    prompt, text = (words(data, rows[0]) for rows in (data.train.prompts_NP, data.train.texts_NT))
    assert prompt.count("<|writer|>") == 1 and prompt.endswith("<|writer|>")
    assert text.startswith("the [UNK]") and text.count("[EOS]") == 1
    assert text.index("dog") < text.index("[EOS]")


def test_a_tokenizer_with_more_tokens_than_its_model_is_refused_where_they_are_used(tmp_path: Path) -> None:
    tokenizer = trainings.save_pair(tmp_path)
    small = transformers.GPT2Config(vocab_size=len(tokenizer) - 2, n_positions=96, n_embd=8, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(small).save_pretrained(tmp_path / "writer")
    config = pair(tmp_path)
    with pytest.raises(
        ConfigError, match=r"model_name=.*writer'?: its tokenizer gives '<\|writer\|>' the number \d+, but"
    ):
        tokenize_stories(config, TRAIN, EVALUATION, pretrained_tokenizer(config))


def test_a_prompt_has_to_have_room_beside_its_frame(tmp_path: Path) -> None:
    trainings.save_pair(tmp_path)
    with pytest.raises(ConfigError, match=r"prompt_length=17: 1\d tokens of it are the instruction .*writer"):
        tokenize_stories(pair(tmp_path, prompt_length=17), TRAIN, EVALUATION, pretrained_tokenizer(pair(tmp_path)))


# --- trainings ------------------------------------------------------------------------------------

CSV = [("title", "genre", "human_story")] + [
    (f"The Dog {number}", ("noir", "comedy")[number % 2], f"The dog runs {number} and a cat sleeps, very far. {number}")
    for number in range(48)
]
TRAINING: dict[str, Any] = {**trainings.TINY["llm_gan"], "dataset": "stories.csv", "min_chars": 20, "vocab_size": 100}
TRAINING |= {"prompt_length": 12, "sequence_length": 8, "max_judge_tokens": 6, "batch_size": 4, "max_steps": 4}
TRAINING |= {"generator_warmup_steps": 1, "judge_warmup_steps": 1, "eval_samples": 8}
TRAINING |= {"epochs": 1, "learning_rate": 1e-3, "eval_every": 2, "checkpoint_every": 2}
KINDS: dict[str, dict[str, Any]] = {
    "topics": {"dataset": "topics"},
    "title, genre, human_story": {},
    "verdicts": {"judging": "verdicts"},
    "pretrained pair": {"model_name": "pair/writer", "judge_name": "pair/judge", "prompt_length": 32},
    "pretrained verdicts": {"model_name": "pair/writer", "judging": "verdicts", "prompt_length": 32},
}


@pytest.fixture
def library(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with 48 stories and a pair of pretrained models, on the CPU."""
    project = cpu_project
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(project.root)
    with (project.root / "stories.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(CSV)
    trainings.save_pair(project.root / "pair", n_positions=300)
    return project


def training(kind: str = "title, genre, human_story", **changes: Any) -> LLMGANConfig:
    return tiny(**{**TRAINING, **KINDS[kind], **changes})


@pytest.mark.promise("guide-G13")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_texts_and_judges_trains_from_warm_up_into_the_game(
    library: Project, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = training(kind, test_fraction=0.5)
    files = train_here(library, config, monkeypatch=monkeypatch)
    derived = (read_json(files.config) or {})["derived"]
    counted = RECIPES["llm_gan"].count_samples(config, library.root)
    assert counted and counted[:3] == tuple(derived[f"num_{part}_samples"] for part in ("train", "eval", "test"))
    if config.model_name is None:
        assert derived["num_parameters"] == RECIPES["llm_gan"].num_parameters(config, derived["vocab_size"])
    seen = rows(files)
    assert {"train/reward", "train/judge_loss", "eval/ngram_loss", "eval/loss"} <= seen[-2].keys()
    quality = "ngram_loss", "copy_rate", "human_copy_rate", "self_bleu", "human_self_bleu"
    assert {f"test/{name}" for name in quality} <= seen[-1].keys()
    assert all(np.isfinite(float(value)) for row in seen for value in row.values())
    shown = media.read(files.media, "samples")[-1]
    assert shown.columns[:3] == ("prompt", "generated", "human")
    assert all(("topic : " if kind == "topics" else "title : the dog ") in row[0] for row in shown.rows)
    assert not any("[PAD]" in cell or "[BOS]" in cell for row in shown.rows for cell in row)
    for name in ("generator", "judge"):
        folder = files.checkpoint(4) / "model" / name
        auto = transformers.AutoModelForCausalLM
        if name == "judge" and config.judging == "scores":
            auto = transformers.AutoModelForTokenClassification
        model = auto.from_pretrained(folder, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        assert model.config.vocab_size >= len(tokenizer)


@pytest.mark.promise("guide-G3", "guide-G8")
def test_generator_and_judge_are_saved_every_so_many_steps_and_at_each_epoch_s_end(
    library: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = training(checkpoint_every=4, eval_every=12, max_steps=12, epochs=2, keep_last=9)
    files = train_here(library, config, monkeypatch=monkeypatch)
    saved = checkpoints_in(files.checkpoints)
    assert [found.step for found in saved] == [4, 8, 11, 12], "44 stories are eleven steps of four"
    for found in saved:
        state = checkpoint.load_state(found.path)
        assert state["generator"].keys() == state["judge"].keys() == {"optimizer", "skipped", "rates"}
        for name, auto in (
            ("generator", transformers.AutoModelForCausalLM),
            ("judge", transformers.AutoModelForTokenClassification),
        ):
            auto.from_pretrained(found.path / "model" / name, trust_remote_code=False)


def test_a_judge_that_writes_resumes_in_the_middle_of_the_game_to_the_bit(
    library: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = training("verdicts", judge_learning_rate=1e-2)
    straight = train_here(library, config, monkeypatch=monkeypatch)
    resumed = train_here(library, config, straight.checkpoint(2), monkeypatch=monkeypatch)
    assert_same_checkpoints(straight.checkpoint(4), resumed.checkpoint(4))
    state = checkpoint.load_state(straight.checkpoint(4))
    assert state["verdicts"]["baseline"] != 0


@pytest.mark.promise("guide-G4", "guide-G6")
@pytest.mark.slow
def test_two_ranks_with_a_judge_that_writes_take_the_step_of_one(library: Project) -> None:
    warm_up = {"judge_warmup_steps": 20, "warmup_learning_rate": 1e-2, "epochs": 9}
    last = {"max_steps": 22, "eval_every": 22, "checkpoint_every": 22}
    config = training("verdicts", **warm_up, **last)
    with by_hand(library) as start:
        shared, gradients = start.gradients(config, 2)
        alone, joined = start.gradients(config.replace(batch_size=8), 1)
    # Twenty steps have carried the last digits of sums on, so not each by itself: a hundredth of all of them is far
    # less than a mean of rewards that only one rank had seen would change.
    whole, divided = (torch.cat([gradient.flatten() for gradient in each]) for each in (joined, gradients))
    assert (whole - divided).norm() < 0.01 * whole.norm()
    assert whole.norm() > 1e-3
    seen = [rows(RunDir(run.dir))[-1] for run in (shared, alone)]
    assert seen[1]["eval/undecided"] < 0.5, "or little would have been compared"
    for name in seen[1].keys() - {"step", "attempt"}:
        of_texts = {"eval/judge_accuracy", "eval/undecided"}  # a last digit can turn one of the eight sampled verdicts
        assert seen[0][name] == pytest.approx(seen[1][name], rel=0.01, abs=0.125 if name in of_texts else 0), name
    states = [checkpoint.load_state(RunDir(run.dir).checkpoint(22)) for run in (shared, alone)]
    assert states[0]["verdicts"] == states[1]["verdicts"] != {"baseline": 0.0}
