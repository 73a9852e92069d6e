"""LLaDA without code from the hub: a model in its published format, against the logits of its own code."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nbtools.errors import ConfigError
from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.masked_diffusion import KNOWN_MODELS, LLADA_PARAMETERS, refuse_remote_code
from nbtools.rundir import media
from nbtools.training.engine.flags import parse
from nbtools.training.masked_diffusion.forward_process import Noise, NoisedTraining
from nbtools.training.masked_diffusion.llada import LLaDAConfig, LLaDAModelLM, load_llada
from nbtools.training.masked_diffusion.model import Denoiser, build_denoiser
from nbtools.training.masked_diffusion.sequences import Sequences
from nbtools.training.text.tokenizers import load_tokenizer

from trainings import TINY, ByHand, assert_same_checkpoints, by_hand, rows, train_here, write_inputs

LLADA = Path(__file__).with_name("llada_tiny")


@pytest.fixture
def start(cpu_project: Project) -> Iterator[ByHand]:
    write_inputs("masked_diffusion", cpu_project)
    with by_hand(cpu_project) as started:
        yield started


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy of the model, to be changed."""
    shutil.copytree(LLADA, tmp_path / "changed")
    return tmp_path / "changed"


def set_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tiny(**changes: Any) -> MaskedDiffusionConfig:
    return MaskedDiffusionConfig(**{**TINY["masked_diffusion"], "model_name": str(LLADA), **changes})


@pytest.mark.promise("safety-llada")
def test_it_gives_the_logits_of_its_own_code() -> None:
    reference = np.load(LLADA / "reference.npz")
    with torch.no_grad():
        logits_BTV = load_llada(str(LLADA)).eval()(torch.from_numpy(reference["ids"])).logits
    assert np.abs(logits_BTV.numpy() - reference["logits"]).max() < 1e-5


def test_what_is_saved_has_the_names_and_settings_of_what_was_loaded(tmp_path: Path) -> None:
    load_llada(str(LLADA)).save_pretrained(tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (LLADA, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    settings = [json.loads((folder / "config.json").read_text()) for folder in (LLADA, tmp_path)]
    known = settings[0].keys() - {"torch_dtype", "transformers_version"}
    assert {name: settings[1].get(name) for name in known} == {name: settings[0][name] for name in known}


def test_the_published_shape_has_the_published_number_of_weights() -> None:
    with torch.device("meta"):
        model = LLaDAModelLM(LLaDAConfig(mlp_hidden_size=12_288, vocab_size=126_464, embedding_size=126_464))
    assert model.num_parameters() == LLADA_PARAMETERS


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding_size": 64},
        {"weight_tying": True, "embedding_size": 64},
        {"n_kv_heads": 2, "rope_theta": 10_000.0, "n_layers": 3},
        {"n_kv_heads": None, "multi_query_attention": True, "include_qkv_bias": True},
        {"mlp_hidden_size": None, "include_bias": True, "rms_norm_eps": 1e-6},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_shapes_of_the_format_come_back_as_they_were(tmp_path: Path, changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    made = LLaDAModelLM(LLaDAConfig.from_pretrained(LLADA, **changes)).eval()
    made.save_pretrained(tmp_path)
    loaded = load_llada(str(tmp_path)).eval()
    ids_BT = torch.randint(0, 42, (2, 9))
    assert torch.equal(made(ids_BT).logits, loaded(ids_BT).logits)
    assert made(ids_BT).logits.shape == (2, 9, changes.get("embedding_size", 42))
    assert ("model.transformer.ff_out.weight" in load_file(tmp_path / "model.safetensors")) != made.config.weight_tying


def test_attention_looks_both_ways_and_never_behind_the_end() -> None:
    model = load_llada(str(LLADA)).eval()
    ids_BT = torch.arange(2, 14)[None]
    later, behind = ids_BT.clone(), ids_BT.clone()
    later[0, 8], behind[0, 11] = 40, 40
    mask_BT = (torch.arange(12) < 11).long()[None]
    with torch.no_grad():
        assert not torch.allclose(model(ids_BT).logits[0, 0], model(later).logits[0, 0], atol=1e-3)
        whole, other = model(ids_BT, mask_BT).logits, model(behind, mask_BT).logits
        assert torch.allclose(whole[:, :11], other[:, :11], atol=1e-6)
        assert torch.allclose(whole[:, :11], model(ids_BT[:, :11]).logits, atol=1e-5)


def test_the_head_at_masked_positions_gives_the_loss_of_the_whole_one() -> None:
    model = load_llada(str(LLADA)).eval()
    batch = NoisedTraining(Sequences(np.full((5, 10), 7), np.zeros(5, int)), Noise(41, 0, 0))[0, np.arange(5)]
    inputs_BT, positions_K, labels_K, weights_K, _ = batch
    logits_KV = model(inputs_BT).logits.flatten(0, 1)[positions_K][:, :41]
    expected = (torch.nn.functional.cross_entropy(logits_KV, labels_K, reduction="none") * weights_K).sum()
    assert torch.allclose(Denoiser(model, 41)(*batch), expected)


def test_rows_of_the_table_that_are_no_tokens_are_never_predicted(changed: Path) -> None:
    LLaDAModelLM(LLaDAConfig.from_pretrained(LLADA, embedding_size=64)).save_pretrained(changed)
    denoiser = build_denoiser(tiny(model_name=str(changed)), load_tokenizer(str(changed)))
    inputs_BT, where = torch.full((1, 4), 41), torch.tensor([2])
    assert denoiser.logits(inputs_BT).shape == (1, 4, 42)
    losses = [denoiser.losses(inputs_BT, where, torch.tensor([token]), where[:0]).item() for token in range(42)]
    assert sum(math.exp(-loss) for loss in losses) == pytest.approx(1, abs=1e-5)
    assert losses[41] == math.inf


def test_the_mask_is_that_of_the_config_where_the_tokenizer_has_none(changed: Path) -> None:
    set_config(changed, mask_token_id=40)
    assert build_denoiser(tiny(model_name=str(changed)), load_tokenizer(str(changed))).mask_id == 40


@pytest.mark.promise("safety-llada")
@pytest.mark.slow
def test_the_guides_flags_train_it_on_two_ranks_and_its_checkpoints_resume(start: ByHand, tmp_path: Path) -> None:
    flags = ["--data_dir", "texts", "--model_name", str(LLADA), "--batch_size", "2", "--epochs", "50"]
    flags += ["--learning_rate", "1e-3", "--no_fp16", "--max_steps", "6"]
    config = parse(MaskedDiffusionConfig(**TINY["masked_diffusion"]), flags).config.replace(dropout=0.0)
    assert not config.trust_remote_code
    straight = start.forked(config)
    seen = rows(straight.files)
    assert all(math.isfinite(row["train/loss"]) for row in seen)
    assert seen[-1]["eval/loss"] < seen[2]["eval/loss"]
    assert {"samples", "unmasking"} <= {*media.names(straight.files.media)}
    saved = straight.files.checkpoint(3)
    resumed = start.forked(config, "--resume-from", saved)
    assert_same_checkpoints(straight.files.checkpoint(6), resumed.files.checkpoint(6))
    model = straight.files.checkpoint(6) / "model"
    assert load_file(model / "model.safetensors").keys() == load_file(LLADA / "model.safetensors").keys()
    again = start.forked(config.replace(model_name=str(model), learning_rate=1e-9, max_steps=1))
    assert rows(again.files)[-1]["eval/loss"] == pytest.approx(seen[-1]["eval/loss"], rel=1e-3)


@pytest.mark.parametrize("changes", [{"gradient_checkpointing": True}, {"precision": "bf16"}, {"guidance": 0.5}])
def test_it_trains_under_every_setting(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    write_inputs("masked_diffusion", cpu_project)
    losses = [
        rows(train_here(cpu_project, tiny(max_steps=2, **more), monkeypatch=monkeypatch))[-1]["eval/loss"]
        for more in ({}, changes)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0 if "guidance" in changes else 1e-2)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"block_type": "sequential"}, "block_type='sequential' in its config.json"),
        ({"layer_norm_type": "default"}, "layer_norm_type='default'"),
        ({"alibi": True}, "alibi=True"),
        ({"n_heads": 5}, "32 cannot be divided by 5"),
    ],
)
def test_a_setting_that_would_change_its_mathematics_is_refused(
    changed: Path, changes: dict[str, Any], said: str
) -> None:
    set_config(changed, **changes)
    with pytest.raises(ConfigError, match=said):
        build_denoiser(tiny(model_name=str(changed)), load_tokenizer(str(LLADA)))


@pytest.mark.parametrize("problem", ["missing", "unexpected"])
def test_weights_that_are_missing_or_unknown_are_refused(changed: Path, problem: str) -> None:
    weights = load_file(changed / "model.safetensors")
    name = "model.transformer.blocks.1.k_proj.weight"
    if problem == "missing":
        del weights[name]
    else:
        name = "model.transformer.blocks.7.k_proj.weight"
        weights[name] = torch.zeros(32, 32)
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"1 {problem} weights, such as {name}"):
        load_llada(str(changed))


def test_a_llada_needs_no_consent_to_code_and_others_with_code_do(changed: Path) -> None:
    for name in (*KNOWN_MODELS, str(LLADA)):
        refuse_remote_code(tiny(model_name=name))
    set_config(changed, model_type="other", architectures=["Other"])
    refuse_remote_code(tiny(model_name=str(changed), trust_remote_code=True))
    with pytest.raises(ConfigError, match=r"Python code .*--trust-remote-code"):
        refuse_remote_code(tiny(model_name=str(changed)))
