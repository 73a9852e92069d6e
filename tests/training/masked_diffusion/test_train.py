"""Masked diffusion: the loss that it says, the same however the batch is divided, bit-exact resume, real learning."""

import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Train
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, ModernBertForMaskedLM

from nbtools.errors import CheckpointError
from nbtools.launcher.checks.sizes import num_trainable_parameters
from nbtools.metrics.history import History
from nbtools.predict.model_process import ModelProcess
from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.run.checkpoints import checkpoints_in
from nbtools.run.run import Run
from nbtools.rundir import media
from nbtools.rundir.json_files import read_json
from nbtools.training.engine.flags import parse
from nbtools.training.engine.sampler import SampleOrder
from nbtools.training.masked_diffusion.dataset import cached_data, cached_pairs, open_cached, open_sequences, prepare
from nbtools.training.masked_diffusion.forward_process import EvaluationMasks, Noise, NoisedTraining
from nbtools.training.masked_diffusion.model import Denoiser, build_denoiser
from nbtools.training.masked_diffusion.sampling import rendered
from nbtools.training.masked_diffusion.sequences import RaggedPairs, Sequences
from nbtools.training.text.tokenizers import train_tokenizer

import trainings
from trainings import ByHand, assert_same_checkpoints, rows

TINY = trainings.TINY["masked_diffusion"]
BERT = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


def tiny(**changes: Any) -> MaskedDiffusionConfig:
    return MaskedDiffusionConfig(**{**TINY, **changes})


@pytest.fixture(autouse=True)
def texts(cpu_project: Project) -> Project:
    """A project with 30 small documents, and as many prompts and answers, on the CPU."""
    trainings.write_inputs("masked_diffusion", cpu_project)
    return cpu_project


@pytest.fixture
def denoiser() -> Denoiser:
    torch.manual_seed(0)
    config = tiny(vocab_size=20, hidden_size=32)
    made = build_denoiser(config, train_tokenizer("chars", ["abcdefghijklmnopq"], 20))
    torch.nn.init.normal_(made.model.decoder.bias)
    return made.eval()


def test_the_loss_is_the_formula_token_by_token(denoiser: Denoiser) -> None:
    rng = np.random.default_rng(0)
    of = Sequences(rng.integers(0, 19, (6, 10)), np.array([0, 0, 3, 9, 0, 5]))
    batch = NoisedTraining(of, Noise(19, 0, 0, 0.5))[0, np.arange(6)]
    inputs_BT, _, _, _, lengths_B = batch
    assert len(lengths_B) == 6, "one of them is cut, or the test is not a whole one"
    masked_BT, weight_B1, _ = Noise(19, 0, 0, 0.5).masks(of.tokens_NT, of.starts_N, np.arange(6), 0)
    expected = 0.0
    for row, length in enumerate(lengths_B.tolist()):
        logits_TV = denoiser.model(input_ids=inputs_BT[row : row + 1, :length]).logits[0].double()
        for place in np.flatnonzero(masked_BT[row]):
            scores = logits_TV[place, :19]  # [MASK] is no possible answer
            true = int(of.tokens_NT[row, place])
            p = 1 / float(weight_B1[row, 0]) / (length - of.starts_N[row])
            expected += (scores.logsumexp(0) - scores[true]).item() / p / (length - of.starts_N[row])
    assert expected > 0
    assert denoiser(*batch).item() == pytest.approx(expected, rel=1e-4)


def test_the_mask_is_never_predicted(denoiser: Denoiser) -> None:
    inputs_BT = torch.full((1, 4), 19)
    losses = [
        denoiser.losses(inputs_BT, torch.tensor([2]), torch.tensor([token]), torch.zeros(0, dtype=torch.long))
        for token in range(20)
    ]
    assert sum(math.exp(-loss.item()) for loss in losses[:19]) == pytest.approx(1, abs=1e-5)
    assert losses[19].item() == math.inf


def test_a_batch_without_any_mask_costs_nothing_and_has_gradients(denoiser: Denoiser) -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    loss = denoiser(torch.ones(2, 4, dtype=torch.long), nothing, nothing, torch.zeros(0), nothing)
    loss.backward()
    assert loss.item() == 0
    assert all(weight.grad is not None for weight in denoiser.parameters()), "or DDP would wait for them"


def test_every_token_of_the_vocabulary_learns_even_eos(denoiser: Denoiser) -> None:
    """[EOS] fills up answers; as a padding index its embedding would stay zero."""
    embedding = denoiser.model.get_input_embeddings()
    assert embedding.padding_idx is None
    assert embedding.weight[0].abs().sum() > 0
    positions = torch.arange(8)
    denoiser(torch.zeros(1, 8, dtype=torch.long), positions, positions * 0, torch.ones(8), positions[:0]).backward()
    assert embedding.weight.grad[0].abs().sum() > 0


def test_any_masked_language_model_is_taken_at_its_masked_positions() -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(BERT).eval()
    batch = NoisedTraining(Sequences(np.ones((5, 10), int), np.zeros(5, int)), Noise(19, 0, 0))[0, np.arange(5)]
    inputs_BT, positions_K, labels_K, weights_K, _ = batch
    logits_KV = model(input_ids=inputs_BT).logits.reshape(50, 20)[positions_K][:, :19]
    expected = (torch.nn.functional.cross_entropy(logits_KV, labels_K, reduction="none") * weights_K).sum()
    assert torch.allclose(Denoiser(model, 19)(*batch), expected)


# --- in one process -------------------------------------------------------------------------------


def test_a_run_leaves_rows_media_checkpoints_and_a_record_of_its_end(
    trained: Train, texts: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(sample_texts=3)
    files, derived = trainings.trained_as_shown(trained, config, texts.root)
    assert derived["num_parameters"] == num_trainable_parameters(config, derived["vocab_size"])
    seen = rows(files)
    assert [row["step"] for row in seen] == [1, 2, 3, 4, 5, 6]
    assert {"train/loss", "train/learning_rate", "train/grad_norm", "train/epoch"} <= seen[0].keys()
    assert {"eval/loss", "eval/unigram_loss", "eval/bigram_loss", "eval/loss_nearly_all_masked"} <= seen[2].keys()
    assert media.names(files.media) == ["loss_by_masking", "samples", "unmasking"]
    unmasking = media.read(files.media, "unmasking")
    assert [showing.step for showing in unmasking] == [3, 6]
    masks = [frame.count("░") for frame in unmasking[-1].frames]
    assert masks == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert media.read(files.media, "samples")[-1].text.startswith(unmasking[-1].frames[-1])
    levels = media.read(files.media, "loss_by_masking")[-1]
    assert levels.lines is not None
    assert [len(values) for values in levels.lines.values()] == [len(levels.x)]
    last = checkpoints_in(files.checkpoints)[-1]
    assert (last.step, last.metrics["eval/loss"]) == (6, seen[-1]["eval/loss"])
    assert "vocabulary" in capfd.readouterr().out


def test_the_evaluation_is_the_bound_of_the_saved_model_and_its_yardsticks(trained: Train, texts: Project) -> None:
    files = trained(tiny())
    last = checkpoints_in(files.checkpoints)[-1]
    model = ModernBertForMaskedLM.from_pretrained(last.path / "model").eval()
    folder = cached_data(texts.runs / ".cache", tiny(), texts.root).folder
    text = open_sequences(folder, 16)
    draws = EvaluationMasks.of(text.evaluation, 20)
    total = 0.0
    for draw in range(20):
        tokens_T = torch.from_numpy(text.evaluation.tokens_NT[draws.rows_D[draw]].astype(np.int64))
        masked_T = torch.from_numpy(draws.masks(text.evaluation, np.array([draw]))[0])
        with torch.no_grad():
            logits_TV = model(input_ids=torch.where(masked_T, text.tokenizer.mask_token_id, tokens_T)[None]).logits[0]
        logits_TV[:, text.tokenizer.mask_token_id] = -math.inf
        total += torch.nn.functional.cross_entropy(logits_TV[masked_T], tokens_T[masked_T]).item()
    assert last.metrics["eval/loss"] == pytest.approx(total / 20, rel=1e-4)
    train_V = np.bincount(text.train.tokens_NT.reshape(-1), minlength=len(text.tokenizer)) + 1
    log_p_V = np.log(train_V / train_V.sum())
    unigram = 0.0
    for draw in range(20):
        masked_T = draws.masks(text.evaluation, np.array([draw]))[0]
        unigram -= log_p_V[text.evaluation.tokens_NT[draws.rows_D[draw]][masked_T]].mean() / 20
    assert last.metrics["eval/unigram_loss"] == pytest.approx(unigram)


def test_prompts_and_answers_are_learnt_and_sampled(trained: Train, texts: Project) -> None:
    pairs = [{"prompt": f"say {n}: ", "answer": str(n % 9 + 1) * 3} for n in range(100, 700)]
    (texts.root / "many.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    config = tiny(dataset="many.jsonl", max_steps=200, eval_every=200, eval_draws=100, sample_length=7, guidance=0.5)
    files = trained(config)
    shown = media.read(files.media, "samples")[-1]
    assert (shown.columns, len(shown.rows)) == (("prompt", "sampled", "true"), 2)
    assert all(row[0].startswith("say ") and row[2].endswith("¶") for row in shown.rows)
    last = rows(files)[-1]
    assert last["eval/loss"] < last["eval/unigram_loss"] - 0.4, "at least where an answer ends"
    assert (read_json(files.config) or {})["derived"]["num_train_samples"] == 540


@pytest.mark.promise("safety-pairs")
def test_the_loss_of_pairs_is_the_same_at_every_sequence_length(trained: Train) -> None:
    runs = [rows(trained(tiny(dataset="pairs.jsonl", sequence_length=length))) for length in (48, 128, 512)]
    for name in ("train/loss", "eval/loss", "eval/unigram_loss", "eval/bigram_loss"):
        values = [run[-1][name] for run in runs]
        assert values == pytest.approx([values[0]] * 3, rel=1e-2), name


BATCHES_OF_BEFORE = "11a1cb415a6755b5188d72c6c5897ea76809937c6da2268a90d2ff0d15702014"
"""SHA-256 of batches and evaluation masks of the pairs below, made by the last version without `pad_to`."""


@pytest.mark.promise("safety-pairs")
def test_a_run_of_pairs_recorded_before_pad_to_keeps_its_samples_and_losses(trained: Train, texts: Project) -> None:
    config = tiny(dataset="pairs.jsonl", pad_to="sequence_length", dropout=0.2)
    folder, _ = cached_pairs(texts.runs / ".cache", [texts.root / "pairs.jsonl"], config)
    text = open_cached(folder, config)
    assert isinstance(text.train, RaggedPairs) and text.train.padded_to == config.sequence_length
    digest, noised = hashlib.sha256(), NoisedTraining(text.train, Noise(len(text.tokenizer) - 1, text.eos_id, 3))
    for key in itertools.islice(iter(SampleOrder(len(text.train), 8, seed=3)), 12):
        for part in noised[key]:
            digest.update(part.numpy().tobytes())
    for *parts, _ in EvaluationMasks.of(text.evaluation, 20).batches(text.evaluation, 8):
        for values in parts:
            digest.update(values.tobytes())
    assert digest.hexdigest() == BATCHES_OF_BEFORE

    straight = trained(config)
    recorded = {name: value for name, value in config.model_dump().items() if name != "pad_to"}
    resumed = trained(MaskedDiffusionConfig.recorded(recorded), straight.checkpoint(3))
    assert_same_checkpoints(straight.checkpoint(6), resumed.checkpoint(6))
    assert rows(resumed) == [row for row in rows(straight) if row["step"] > 3]


def test_it_trains_from_a_prepared_folder_as_from_its_text(trained: Train, texts: Project) -> None:
    prepare(str(texts.root / "texts"), texts.root / "made", vocab_size=60)
    config = tiny(test_fraction=0.5)
    found = [rows(trained(config.replace(dataset=dataset))) for dataset in ("texts", "made")]
    assert found[0] == found[1]
    assert "test/loss" in found[0][-1]
    assert "test/loss" not in rows(trained(config.replace(dataset="made", test_fraction=0.0)))[-1]
    assert parse(config, ["--data_dir", "made"]).config.dataset == "made"


def test_no_text_is_shown_where_no_prompt_leaves_room_for_one(trained: Train) -> None:
    files = trained(tiny(dataset="pairs.jsonl", sample_length=16, max_steps=1))
    assert media.names(files.media) == ["loss_by_masking"]


def test_a_prepared_folders_tokens_win_and_that_is_said(
    trained: Train, texts: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare(str(texts.root / "texts"), texts.root / "made", "words", vocab_size=60)
    trained(tiny(dataset="made", max_steps=1))
    assert "note: the tokens are those of the prepared folder: words, not chars" in capfd.readouterr().out


def test_training_goes_on_from_pretrained_weights(trained: Train, texts: Project) -> None:
    first = trained(tiny(max_steps=30, eval_every=30))
    start = str(first.checkpoint(30) / "model")
    more = trained(tiny(model_name=start, max_steps=1, learning_rate=1e-9))
    assert rows(more)[-1]["eval/loss"] == pytest.approx(rows(first)[-1]["eval/loss"], rel=1e-3)
    with pytest.raises(SystemExit, match=r"sequence_length=64: .* takes at most 16"):
        trained(tiny(model_name=start, sequence_length=64))
    prepare(str(texts.root / "texts"), texts.root / "made", "words", vocab_size=60)
    with pytest.raises(SystemExit, match=r"was prepared with --tokenizer words, whose ids differ"):
        trained(tiny(model_name=start, dataset="made"))


# --- what is refused before the first step ----------------------------------------------------------


def test_a_model_without_a_mask_token_is_refused(trained: Train, tmp_path: Path) -> None:
    tokenizer = train_tokenizer("chars", ["w0123456789 "], 30)
    tokenizer._special_tokens_map.pop("mask_token", None)
    BertForMaskedLM(BERT).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        path = tmp_path / "model" / name
        if path.is_file():
            path.write_text(path.read_text().replace("[MASK]", "[NONE]").replace('"mask_token"', '"other_token"'))
    with pytest.raises(SystemExit, match="its tokenizer has no mask token"):
        trained(tiny(model_name=str(tmp_path / "model")))


def test_a_model_that_is_not_masked_is_refused(trained: Train, tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path / "model")
    train_tokenizer("chars", ["w0123456789 "], 30).save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit, match=r"cannot be loaded as a masked language model"):
        trained(tiny(model_name=str(tmp_path / "model")))


@pytest.mark.promise("safety-pairs")
def test_packed_pairs_of_a_model_whose_attention_may_cross_them_are_refused(
    trained: Train, texts: Project, tmp_path: Path
) -> None:
    BertForMaskedLM(BERT).save_pretrained(tmp_path / "model")
    train_tokenizer("chars", ["w0123456789 "], 30).save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit, match=r"pad_to='packed': .*model is a BertForMaskedLM, .*use pad_to='longest'"):
        trained(tiny(dataset="pairs.jsonl", model_name=str(tmp_path / "model"), pad_to="packed"))


OWN_CODE = {
    "config.json": json.dumps(
        {
            "model_type": "own",
            "vocab_size": 40,
            "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"},
            "max_sequence_length": 32,
        }
    ),
    "own.py": """\
import torch
from pathlib import Path
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

Path(__file__).with_name("ran").touch()

class OwnConfig(PretrainedConfig):
    model_type = "own"
    mask_token_id = 39

class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.out = torch.nn.Embedding(40, 8), torch.nn.Linear(8, 40)

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = Inner()
        self.post_init()

    def get_input_embeddings(self):
        return self.model.wte

    def forward(self, input_ids=None, attention_mask=None):
        hidden = self.model.wte(input_ids)
        return MaskedLMOutput(logits=self.model.out(hidden + hidden.mean(1, keepdim=True)))
""",
}


@pytest.mark.promise("safety-code")
@pytest.mark.slow
def test_a_model_with_code_of_its_own_runs_only_when_the_user_allows_it(
    trained: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own_model"
    folder.mkdir()
    for name, content in OWN_CODE.items():
        (folder / name).write_text(content)
    train_tokenizer("chars", ["w0123456789 "], 40).save_pretrained(folder)
    inner = {"model.wte.weight": torch.randn(40, 8), "model.out.weight": torch.randn(40, 8)}
    save_file({**inner, "model.out.bias": torch.zeros(40)}, folder / "model.safetensors", metadata={"format": "pt"})
    config = tiny(model_name=str(folder), max_steps=2)
    with pytest.raises(SystemExit, match=r"Python code .*--trust-remote-code"):
        trained(config)
    assert not list(tmp_path.rglob("ran"))
    files = trained(config.replace(trust_remote_code=True))
    assert math.isfinite(rows(files)[-1]["eval/loss"])
    for ran in (found := list(tmp_path.rglob("ran"))):
        ran.unlink()
    assert found
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(CheckpointError, match=r"Python code .*--trust-remote-code \(trust_remote_code=True in Python"):
        ModelProcess(Run(files), device="cpu")
    assert not list(tmp_path.rglob("ran")), "the run's own trust_remote_code is none of this call"
    with ModelProcess(Run(files), device="cpu", trust_remote_code=True) as process:
        assert "text" in next(process.predict(["w1"]))
    assert list(tmp_path.rglob("ran"))


def test_masks_and_ends_can_be_seen_in_what_is_shown() -> None:
    chars, words = (train_tokenizer(level, ["ab, cd"], 50) for level in ("chars", "words"))
    ids = chars.get_vocab()
    tokens = [ids["a"], ids["b"], ids["[MASK]"], ids[","], 0, 0]
    assert rendered(chars, torch.tensor(tokens), ids["[MASK]"]) == "ab░,¶¶"
    ids = words.get_vocab()
    tokens = [ids["ab"], ids[","], ids["[MASK]"], ids["[MASK]"], ids["cd"], 0]
    assert rendered(words, torch.tensor(tokens), ids["[MASK]"]) == "ab , ░ ░ cd ¶"
    assert "¶" not in rendered(chars, torch.tensor([chars.unk_token_id]))
    chars.add_special_tokens({"additional_special_tokens": ["<|eot_id|>"]})
    turn = chars.convert_tokens_to_ids("<|eot_id|>")
    assert rendered(chars, torch.tensor([turn, 0])) == "¶¶"


# --- real processes -------------------------------------------------------------------------------

SHUFFLED = """
import numpy as np
from nbtools.training.masked_diffusion import train as masked_diffusion
from nbtools.training.masked_diffusion.sequences import Sequences
from nbtools.training.masked_diffusion.dataset import DiffusionText

real = masked_diffusion.open_data

def shuffled(sequences, seed):
    tokens_NT = np.random.default_rng(seed).permuted(np.array(sequences.tokens_NT), axis=None)
    return Sequences(tokens_NT, sequences.starts_N)

def open_data(worker, config):
    text = real(worker, config)
    return DiffusionText(text.tokenizer, shuffled(text.train, 1), shuffled(text.evaluation, 2), text.test)

masked_diffusion.open_data = open_data
"""


def assert_learns_from_context(history: History) -> None:
    losses = dict(zip(history["eval/loss"].steps.tolist(), history["eval/loss"].values.tolist(), strict=True))
    last = {name: history.last(f"eval/{name}") or math.nan for name in ("loss", "unigram_loss", "bigram_loss")}
    assert losses[500] <= last["unigram_loss"] - 0.4
    assert last["loss"] <= last["bigram_loss"] + 0.1
    few, nearly_all = (history.last(f"eval/loss_{name}") or math.nan for name in ("few_masked", "nearly_all_masked"))
    assert few <= nearly_all - 1.0


@pytest.mark.seeds
@pytest.mark.parametrize("seed", ["0", "1"])
@pytest.mark.timeout(1000)
def test_the_cpu_demo_learns_from_context(start: ByHand, texts: Project, seed: str) -> None:
    assert_learns_from_context(start.demo("masked_diffusion", "--seed", seed).own_history)


@pytest.mark.seeds
@pytest.mark.timeout(1000)
def test_without_any_context_that_target_is_not_reached(start: ByHand, texts: Project) -> None:
    """Characters in random order: there is nothing to learn but how frequent each of them is."""
    finished = start.demo("masked_diffusion", "--max-steps", "300", "--sample-texts", "0", more=SHUFFLED)
    history = finished.own_history
    loss, unigram = history.last("eval/loss") or math.nan, history.last("eval/unigram_loss") or math.nan
    assert loss >= unigram - 0.02
    few, nearly_all = (history.last(f"eval/loss_{name}") or math.nan for name in ("few_masked", "nearly_all_masked"))
    assert few >= nearly_all - 0.3
