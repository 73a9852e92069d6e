"""LLaDA without code from the hub: a model in its published format, against the logits of its own code."""

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from nbtools.errors import ConfigError
from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.masked_diffusion import refuse_remote_code
from nbtools.recipes.named_model import KNOWN_MODELS, named_model
from nbtools.rundir import media
from nbtools.training.engine.flags import parse
from nbtools.training.masked_diffusion.forward_process import Noise, NoisedTraining
from nbtools.training.masked_diffusion.llada import LLaDAConfig, LLaDAModelLM, load_llada
from nbtools.training.masked_diffusion.model import Denoiser, build_denoiser
from nbtools.training.masked_diffusion.sequences import Sequences
from nbtools.training.text.tokenizers import load_tokenizer

from trainings import TINY, rows, train_here, write_inputs

LLADA = Path(__file__).with_name("llada_tiny")
WTE = "model.transformer.wte.weight"
LEFT_OUT = ("README.md", "reference.npz", "config.json", "model.safetensors")
"""Files of the model's folder that are not kept as they are, or not at all."""
OWN_CODE = {
    "configuration_llada.py": """
from transformers import PretrainedConfig

class LLaDAConfig(PretrainedConfig):
    model_type = "llada"
""",
    "modeling_llada.py": """
import torch
from transformers import PreTrainedModel

from .configuration_llada import LLaDAConfig

class LLaDAModelLM(PreTrainedModel):
    config_class = LLaDAConfig
    base_model_prefix = "model"
    _keys_to_ignore_on_load_unexpected = [".*"]

    def __init__(self, config):
        super().__init__(config)
        wte = torch.nn.Embedding(config.vocab_size, config.d_model)
        self.model = torch.nn.ModuleDict({"transformer": torch.nn.ModuleDict({"wte": wte})})
        self.post_init()
""",
}
"""Code under the names of LLaDA's own, which reads one weight; the real one does not run with this transformers."""


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


def forget_remote_code() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


@pytest.mark.promise("safety-llada")
def test_what_is_saved_is_what_was_loaded_and_its_own_code_finds_it(
    changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in OWN_CODE.items():
        (changed / name).write_text(content)
    (changed / "generation_config.json").write_text('{"eos_token_id": 0, "transformers_version": "4.46.3"}')
    denoiser = build_denoiser(tiny(model_name=str(changed)), load_tokenizer(str(changed)))
    before = {path.name: path.read_bytes() for path in changed.iterdir() if path.name not in LEFT_OUT}
    shutil.rmtree(changed)  # as a folder that is gone when a checkpoint is written
    saved = tmp_path / "saved"
    saved.mkdir()
    denoiser.model.save_pretrained(saved)
    denoiser.write_tokenizer(load_tokenizer(str(LLADA)), saved)
    weights = [load_file(folder / "model.safetensors") for folder in (LLADA, saved)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
    settings = [json.loads((folder / "config.json").read_text()) for folder in (LLADA, saved)]
    assert all(config.pop("transformers_version") for config in settings)
    assert settings[0] == settings[1]
    assert {name: (saved / name).read_bytes() for name in before} == before
    assert load_tokenizer(str(saved)).get_vocab() == load_tokenizer(str(LLADA)).get_vocab()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    forget_remote_code()  # of other tests, which is in another folder
    own = AutoModel.from_pretrained(saved, trust_remote_code=True)
    forget_remote_code()
    assert "transformers_modules" in type(own).__module__
    assert torch.equal(own.state_dict()[WTE], weights[0][WTE])


@pytest.mark.promise("safety-llada")
def test_shards_and_half_precision_are_read_and_written_as_one_file_is(changed: Path) -> None:
    whole = load_llada(str(LLADA))
    whole.save_pretrained(changed, max_shard_size="30KB")
    (changed / "model.safetensors").unlink()
    index = json.loads((changed / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == load_file(LLADA / "model.safetensors").keys()
    assert len({*index.values()}) > 2
    loaded = load_llada(str(changed)).state_dict()
    assert all(torch.equal(weight, loaded[name]) for name, weight in whole.state_dict().items())
    for name in {*index.values()}:
        halves = {key: weight.bfloat16() for key, weight in load_file(changed / name).items()}
        save_file(halves, changed / name, metadata={"format": "pt"})
    loaded = load_llada(str(changed)).state_dict()
    assert all(torch.equal(weight.bfloat16().float(), loaded[name]) for name, weight in whole.state_dict().items())
    (changed / index[WTE]).unlink()
    with pytest.raises(ConfigError, match=rf"cannot be loaded as LLaDA \(.*{index[WTE]}\)"):
        load_llada(str(changed))


def test_the_published_shape_has_the_published_number_of_weights() -> None:
    with torch.device("meta"):
        model = LLaDAModelLM(LLaDAConfig(mlp_hidden_size=12_288, vocab_size=126_464, embedding_size=126_464))
    known = named_model("GSAI-ML/LLaDA-8B-Base")
    assert known is not None
    assert model.num_parameters() == known.num_parameters == 8_015_581_184


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


# --- the published algorithms ---------------------------------------------------------------------


def denoiser_of_llada() -> Denoiser:
    """Its logits, in which [MASK] is impossible, as for a trained one, which never has it as a label."""
    return build_denoiser(tiny(), load_tokenizer(str(LLADA))).eval()


# --- trainings ------------------------------------------------------------------------------------


@pytest.mark.promise("safety-llada")
def test_an_instruct_model_is_trained_and_sampled_behind_its_own_chat_template(
    cpu_project: Project, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs("masked_diffusion", cpu_project)
    path = changed / "tokenizer_config.json"
    template = "{% for message in messages %}u,{{ message['content'] | trim }}.{% endfor %}"
    template += "{% if add_generation_prompt %}a,{% endif %}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    settings: dict[str, Any] = {
        "dataset": "pairs.jsonl",
        "checkpoint_every": 18,
        "sequence_length": 32,
        "sample_texts": 3,
        "eval_every": 18,
    }
    flags = ["--model_name", str(changed), "--batch_size", "1", "--epochs", "1", "--fp16"]
    config = parse(tiny(**settings), flags).config
    assert isinstance(config, MaskedDiffusionConfig)
    files = train_here(cpu_project, config, monkeypatch=monkeypatch)
    seen = rows(files)
    assert (seen[-1]["train/epoch"], config.precision) == (1, "fp16")
    assert all(math.isfinite(row["eval/loss"]) for row in seen if "eval/loss" in row)
    (*_, last) = media.read(files.media, "samples")
    prompts = [row[0] for row in last.rows]
    assert len(prompts) == 3
    assert all(re.fullmatch(r"u,say [0-9]+\.a,", prompt) for prompt in prompts)
    outputs = files.outputs / "model"
    assert (outputs / path.name).read_bytes() == path.read_bytes()
    assert load_tokenizer(str(outputs)).chat_template == template
    assert not torch.equal(load_llada(str(outputs)).state_dict()[WTE], load_llada(str(changed)).state_dict()[WTE])


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


@pytest.mark.parametrize("problem", ["missing", "unexpected", "shape"])
def test_weights_that_are_missing_or_unknown_or_of_another_shape_are_refused(changed: Path, problem: str) -> None:
    weights = load_file(changed / "model.safetensors")
    name = "model.transformer.blocks.1.k_proj.weight"
    if problem == "missing":
        del weights[name]
    elif problem == "unexpected":
        name = "model.transformer.blocks.7.k_proj.weight"
        weights[name] = torch.zeros(32, 32)
    else:
        weights[name] = torch.zeros(16, 32)
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    told = {"shape": rf"{name} has the shape \(16, 32\), not \(32, 32\)"}
    told_of = told.get(problem, f"1 {problem} weights, such as {name}")
    with pytest.raises(ConfigError, match=told_of):
        load_llada(str(changed))


def test_fewer_blocks_than_the_files_have_are_refused(changed: Path) -> None:
    set_config(changed, n_layers=1)
    with pytest.raises(ConfigError, match=r"9 unexpected weights, such as model\.transformer\.blocks\.1\."):
        load_llada(str(changed))


def test_a_llada_needs_no_consent_to_code_and_others_with_code_do(changed: Path) -> None:
    for name in (*KNOWN_MODELS, str(LLADA)):
        refuse_remote_code(tiny(model_name=name))
    set_config(changed, model_type="other", architectures=["Other"])
    refuse_remote_code(tiny(model_name=str(changed), trust_remote_code=True))
    with pytest.raises(ConfigError, match=r"Python code .*--trust-remote-code"):
        refuse_remote_code(tiny(model_name=str(changed)))
