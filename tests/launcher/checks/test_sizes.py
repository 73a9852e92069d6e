"""Memory per process of both strategies, from the config alone: against figures computed by hand and real models."""

import os
import re
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from fixture_types import MonkeyPatch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
)

from nbtools.config import Launch, TrainConfig
from nbtools.data.text_classification.codes import CodeSystem
from nbtools.launcher.checks.sizes import (
    activation_bytes,
    check_shared_memory,
    check_size,
    memory_of,
    num_trainable_parameters,
    sharded_bytes,
    training_bytes,
)
from nbtools.machine.devices import Device
from nbtools.project import Project
from nbtools.recipes import (
    RECIPES,
    AlgorithmDistillationConfig,
    LLMGANConfig,
    MaskedDiffusionConfig,
    MLMPretrainingConfig,
    TextClassificationConfig,
    lora,
    text_classification,
)
from nbtools.recipes.built_models import gpt2_settings, modernbert_settings
from nbtools.recipes.named_model import named_model
from nbtools.recipes.text_classification import NUM_GENERATED_CODES
from nbtools.rundir.json_files import read_json
from nbtools.training.sharding.fsdp import blocks_of
from nbtools.training.text_classification.model import build_classifier

from trainings import ADAPTED, OCCUPATIONS, TINY, train_here, write_base, write_inputs

LLADA = MaskedDiffusionConfig(model_name="GSAI-ML/LLaDA-8B-Instruct", precision="bf16", batch_size=1)
GB = 10**9


def gpus(gib: int, count: int) -> list[Device]:
    return [Device(index, f"GPU-{index}", "a GPU", gib * 2**30, 0, (), str(index), (9, 0)) for index in range(count)]


def test_llada_by_hand() -> None:
    """16 bytes for 8.016 billion weights; two tables of 126,464 x 4,096 (1.036) and two of 32 blocks are gathered."""
    assert training_bytes(LLADA, "bf16") == pytest.approx(128.25 * GB, rel=1e-3)
    gathered = 8 * 1.036 * GB + 4 * 0.2181 * GB
    for world_size in (1, 2, 8):
        found = sharded_bytes(LLADA, world_size, "bf16")
        assert found == pytest.approx(128.25 * GB / world_size + gathered, rel=1e-3)


def test_an_adapter_on_llada_by_hand() -> None:
    """Frozen: 7.498 billion in linear layers at 2 bytes, the rest at 4; trained at 16; gathered in bf16."""
    config = LLADA.replace(adapter="lora", lora_targets=("q_proj", "v_proj"))
    trained = 32 * 2 * 16 * (4096 + 4096)
    frozen = 2 * 7.4972e9 + 4 * 0.5182e9
    for world_size in (1, 2, 8):
        expected = (16 * trained + frozen) / world_size + 2 * 1.036e9 + 4 * 0.2181e9
        assert sharded_bytes(config, world_size, "bf16") == pytest.approx(expected, rel=1e-3)


def test_what_does_not_fit_is_refused_with_the_smallest_change_that_fits() -> None:
    sharded = LLADA.replace(strategy="fsdp")
    for config, devices, change in (
        (
            LLADA,
            gpus(80, 8),
            r"take 119\.4 GiB .* 80\.0 GiB; .* \(fits\).*: set strategy='fsdp', with which .* about 23\.8 GiB",
        ),
        (LLADA, gpus(24, 1), r"24\.0 GiB; .*: set adapter='lora', with which a process takes about 16\.9 GiB"),
        (sharded, gpus(16, 4), r"16\.0 GiB; .*: set adapter='lora', with which a process takes about 7\.2 GiB"),
        (LLADA, gpus(8, 8), r"8\.0 GiB; .*: set adapter='lora', strategy='fsdp', with which .* about 5\.2 GiB"),
        (LLADA, gpus(2, 8), r"has 2\.0 GiB; .*: choose GPUs with more memory, or a smaller model"),
    ):
        found = check_size(config, len(devices), devices)[-1]
        assert found.level == "problem"
        assert re.search(change, found.sentence)
    assert check_size(sharded, 8, gpus(80, 8))[-1].text.startswith("about 23.8 GiB per process: 23.5 GiB for weights")
    assert check_size(sharded, 2, gpus(141, 2))[-1].text.startswith("about 68.6 GiB per process: 68.3 GiB for weights")
    compiled = LLADA.replace(compile=True)
    assert check_size(compiled, 8, gpus(80, 8))[-1].next_step.startswith("set strategy='fsdp', with which")


def test_a_batch_that_does_not_fit_names_the_smallest_change() -> None:
    config = MLMPretrainingConfig(batch_size=512, sequence_length=512, num_layers=12, num_heads=12, hidden_size=768)
    for gib, change in ((40, "set gradient_checkpointing=True, "), (8, "set batch_size=128, gradient_accumulation_s")):
        found = check_size(config, 1, gpus(gib, 1))[-1]
        assert (found.level, found.next_step[: len(change)]) == ("warn", change)


@pytest.mark.promise("safety-shared-memory")
@pytest.mark.parametrize(("num_workers", "folder", "level"), [(2, "/proc", ["warn"]), (0, "/proc", []), (2, "/", [])])
def test_batches_beyond_the_shared_memory_are_told(num_workers: int, folder: str, level: list[str]) -> None:
    config = MLMPretrainingConfig(dataset="x", num_workers=num_workers)
    found = check_shared_memory(config, Launch(nproc_per_node=2), Path(folder))  # /proc has no space
    assert [finding.level for finding in found] == level
    assert all("and 8 batches of about" in finding.text for finding in found)


def test_both_strategies_and_lora_are_told_without_a_gpu() -> None:
    expected = "; ddp 134.8 GiB, fsdp 23.8 GiB, ddp with LoRA 17.0 GiB, fsdp with LoRA 5.2 GiB"
    for found in ([], None):
        assert check_size(LLADA, 8, found)[-1].text.endswith(expected)
    assert check_size(LLADA, 1, [])[-1].text.endswith("; ddp 119.4 GiB, ddp with LoRA 16.9 GiB")
    plain = check_size(MLMPretrainingConfig(), 2, [])[-1].text
    assert re.search(r"; ddp [\d.]+ MiB, fsdp [\d.]+ MiB$", plain), plain


@pytest.mark.promise("guide-L9")
def test_presets_of_llada_fit_the_gpus_that_they_are_for() -> None:
    for count in (2, 4):
        config, launch = RECIPES["masked_diffusion"].preset(f"shakespeare_{count}gpu")
        RECIPES["masked_diffusion"].refuse(config)  # does not ask for the model's code
        assert num_trainable_parameters(config) == 8_015_581_184
        assert (config.strategy, launch.nproc_per_node) == ("fsdp", count)
        assert check_size(config, count, gpus(131, count))[-1].level == "ok"  # 141 GB


MEASURED_GB = [
    (MaskedDiffusionConfig, {"num_layers": 26, "num_heads": 16, "hidden_size": 2048, "batch_size": 8}, 31.5),
    (MLMPretrainingConfig, {"num_layers": 24, "num_heads": 16, "hidden_size": 1024}, 3.52),
    (MaskedDiffusionConfig, {"num_layers": 12, "num_heads": 16, "hidden_size": 1024}, 1.81),
    (AlgorithmDistillationConfig, {"num_layers": 12, "num_heads": 16, "hidden_size": 1024}, 2.49),
    (LLMGANConfig, {"num_layers": 8, "num_heads": 8, "hidden_size": 512, "kl_to_start": False}, 0.79),
]
"""Peaks of one process in bf16 on an NVIDIA H200, by `torch.cuda.max_memory_allocated`, as tests/gpu has recorded."""


@pytest.mark.parametrize(("kind", "values", "peak_gb"), MEASURED_GB)
def test_the_figure_is_the_peak_that_a_gpu_had(kind: type[TrainConfig], values: dict[str, Any], peak_gb: float) -> None:
    key = next(key for key, recipe in RECIPES.items() if recipe.config_class is kind)
    large = {"sequence_length": 1024, "vocab_size": 32_000} if peak_gb > 10 else TINY[key]
    config = kind(**{**large, **values})
    memory = memory_of(config, 1, "bf16")
    assert memory is not None and memory.activations is not None
    assert memory.total == pytest.approx(peak_gb * GB, rel=0.1, abs=0.1 * GB)
    late = 4 * (num_trainable_parameters(config) or 0)
    assert memory.total == 3 * late + max(late, memory.activations)
    for kept in (memory_of(config, 2, "bf16"), memory_of(config.replace(gradient_accumulation_steps=2), 1, "bf16")):
        assert kept is not None and kept.total == memory.state + memory.activations, "gradients stay in memory"


# --- pretrained models ----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ADAPTED)
def test_sizes_of_a_named_model_are_the_trainings(key: str, cpu_project: Project, monkeypatch: MonkeyPatch) -> None:
    write_inputs(key, cpu_project)
    write_base(key, cpu_project)
    monkeypatch.chdir(cpu_project.root)
    monkeypatch.setattr(text_classification, "_USUAL_CODES", len({c for row in OCCUPATIONS for c in row.codes}))
    values = {**TINY[key], **ADAPTED[key], "max_steps": 1, "eval_every": 9, "checkpoint_every": 9}
    for adapter in ("none", "lora"):
        config = RECIPES[key].config_class(**{**values, "adapter": adapter})
        files = train_here(cpu_project, config, monkeypatch=monkeypatch)
        derived = (read_json(files.config) or {})["derived"]
        counted = derived.get("num_trained_parameters", derived["num_parameters"])
        # A judge of scores has a head of one output in place of the one that is in its files.
        assert num_trainable_parameters(config) == pytest.approx(counted, rel=0.2 if key == "llm_gan" else 0)
        assert memory_of(config, 2, "bf16") and memory_of(config.replace(strategy="fsdp"), 2, "bf16")


def test_sizes_are_read_from_shards_and_from_settings_alone(tmp_path: Path) -> None:
    size = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=50, intermediate_size=80, tie_word_embeddings=False, **size))
    llama.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    whole = named_model(str(tmp_path))
    assert whole.num_parameters == llama.num_parameters()
    block = sum(weight.numel() for weight in llama.model.layers[0].parameters())
    assert (whole.num_in_block, whole.num_in_blocks, whole.vocab_size) == (block, 3 * block, 50)
    config = LLMGANConfig(model_name=str(tmp_path), dataset="a.csv", adapter="lora", lora_rank=4)
    next(tmp_path.glob("model-00001-*")).unlink()
    os.utime(tmp_path / "config.json", (1, 1))  # the files are read again
    alone = named_model(str(tmp_path))
    assert alone.num_parameters == whole.num_parameters
    assert alone.adapter_sizes(config) == whole.adapter_sizes(config)
    assert activation_bytes(config, "bf16")
    for content in ("[]", "{", '{"hidden_size": "wide"}', "{}", "[" * 100_000):
        (tmp_path / "config.json").write_text(content)
        assert named_model(str(tmp_path)) is None
        assert check_size(config, 2, gpus(80, 2))[1].text == "known once the model is loaded"


def test_a_model_is_read_from_the_hubs_cache_or_unknown(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--small"
    snapshot = repository / "snapshots" / "0123"
    bert = BertForMaskedLM(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2))
    bert.save_pretrained(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    found = named_model("someone/small")
    assert found.num_parameters == bert.num_parameters()
    assert named_model("someone/other") is None


def test_targets_of_adapters_are_those_of_peft() -> None:
    known = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    shared = lora.DEFAULT_TARGETS.keys() & known.keys()
    assert len(shared) > 6
    assert {name: sorted(known[name]) for name in shared} == {
        name: sorted(lora.DEFAULT_TARGETS[name]) for name in shared
    }


# --- models built here ----------------------------------------------------------------------------


def modernbert(config: MLMPretrainingConfig) -> list[PreTrainedModel]:
    return [ModernBertForMaskedLM(ModernBertConfig(**modernbert_settings(config, config.vocab_size)))]


def gpt2s(config: AlgorithmDistillationConfig | LLMGANConfig) -> list[PreTrainedModel]:
    count = 1 if isinstance(config, AlgorithmDistillationConfig) else 2
    return [GPT2LMHeadModel(GPT2Config(**gpt2_settings(config, 20, 30))) for _ in range(count)]


def canine(config: TextClassificationConfig) -> list[PreTrainedModel]:
    codes = [f"{number:05}" for number in range(NUM_GENERATED_CODES)]
    system = CodeSystem.of("hisco", codes, config.max_codes)
    return [build_classifier(config, system, torch.full((len(codes),), 0.1))]


@pytest.mark.parametrize(
    ("config", "build"),
    [
        (MLMPretrainingConfig(num_layers=3, num_heads=2, hidden_size=32, vocab_size=60), modernbert),
        (AlgorithmDistillationConfig(num_layers=3, num_heads=2, hidden_size=16), gpt2s),
        (LLMGANConfig(num_layers=3, num_heads=2, hidden_size=16), gpt2s),
        (TextClassificationConfig(num_layers=3, num_heads=2, hidden_size=16), canine),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TrainConfig) else "",
)
def test_all_but_the_blocks_that_sharding_finds_is_gathered_with_the_root(config: Any, build: Any) -> None:
    sizes = [
        sum(weight.numel() for weight in block.parameters()) for model in build(config) for block in blocks_of(model)
    ]
    outside = (num_trainable_parameters(config) or 0) - sum(sizes)
    if isinstance(config, TextClassificationConfig):  # its first and last block count as outside
        outside += 2 * max(sizes)
    alone = sharded_bytes(config, 10**9, "fp32")
    assert alone == pytest.approx(12 * outside + 8 * max(sizes), rel=0.01)


SMALL_MODEL = b'{"num_attention_heads": 1, "hidden_size": 8, "num_hidden_layers": 1}'


@pytest.mark.promise("safety-bounded")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", SMALL_MODEL.replace(b"1}", b"1000000000}")),
        ("config.json", SMALL_MODEL + b" " * 2**24),
        ("model.safetensors.index.json", b'{"weight_map": {}, "x": "%b"}' % (b"x" * 2**24)),
        ("model.safetensors", (2**24 + 2).to_bytes(8, "little") + b"{" + b" " * 2**24 + b"}"),
    ],
    ids=["layers", "config", "index", "header"],
)
def test_a_model_folder_that_would_fill_the_memory_has_no_sizes(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(SMALL_MODEL)
    assert named_model(str(tmp_path)) is not None
    (tmp_path / name).write_bytes(content)
    os.utime(tmp_path / "config.json", (1, 1))  # the sizes are remembered for each time of change
    assert named_model(str(tmp_path)) is None
