"""LoRA on the pretrained models of four recipes: what trains, what a checkpoint holds, and what an export gives.

`peft` itself and the models' own classes judge: they load what was saved, and count what trains.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from fixture_types import Train
from safetensors.torch import load_file, save_file

from nbtools.cli.commands import main as nbtools
from nbtools.config import TrainConfig
from nbtools.errors import CheckpointError, ConfigError
from nbtools.launcher.checks.sizes import checkpoint_bytes, num_trainable_parameters, training_bytes
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.recipes.predict_settings import TextClassificationPredict
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json, write_json
from nbtools.training.engine import worker
from nbtools.training.masked_diffusion.llada import LLaDAConfig, LLaDAModelLM, load_llada
from nbtools.training.merge_checkpoint import merge_parts
from nbtools.training.text import adapter
from nbtools.training.text_classification.model import open_classifier
from nbtools.training.text_classification.predict import Predictor

from trainings import ADAPTED, TINY, rows, write_base, write_inputs

# peft asks a model for a property under its former name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def config_of(key: str, **changes: Any) -> TrainConfig:
    values = {**TINY[key], **ADAPTED[key], "adapter": "lora", "lora_rank": 4, "learning_rate": 1e-2, **changes}
    return RECIPES[key].config_class(**values)


@pytest.fixture(autouse=True)
def _beside_the_pretrained_models(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cpu_project.root)


def prepare(key: str, project: Project) -> None:
    write_inputs(key, project)
    write_base(key, project)


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight for path in folder.glob("*.safetensors") for name, weight in load_file(path).items()}


def judge(base: Path) -> transformers.PreTrainedModel:
    torch.manual_seed(7)  # for the head that the adapter brings
    return transformers.LlamaForTokenClassification.from_pretrained(base, num_labels=1)


PARTS: dict[str, dict[str, tuple[str, Callable[[Path], Any]]]] = {
    "mlm_pretraining": {"": ("base", transformers.BertForMaskedLM.from_pretrained)},
    "masked_diffusion": {"": ("base", lambda folder: load_llada(str(folder)))},
    "llm_gan": {
        "generator": ("base/judge", transformers.LlamaForCausalLM.from_pretrained),
        "judge": ("base/judge", judge),
    },
}
"""Of a checkpoint's `model/`: the base, and what loads a folder as the model's own class."""


@pytest.mark.promise("safety-adapter")
@pytest.mark.parametrize("key", PARTS)
def test_an_export_gives_the_logits_of_the_base_with_the_adapter_in_peft(
    trained: Train, cpu_project: Project, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare(key, cpu_project)
    files = trained(config_of(key))
    assert nbtools(["export", files.id, "-o", "merged"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "merged"
    saved = files.checkpoint(TINY[key]["max_steps"]) / "model"
    tokens_BT = torch.randint(5, 40, (3, 12), generator=torch.Generator().manual_seed(0))
    for part, (base, load) in PARTS[key].items():
        before = load(cpu_project.root / base).eval()
        whole = peft.PeftModel.from_pretrained(load(cpu_project.root / base), saved / part).eval()
        merged = load(cpu_project.root / "merged" / part).eval()
        with torch.no_grad():
            plain, expected, found = (model(input_ids=tokens_BT).logits for model in (before, whole, merged))
        assert (found - expected).abs().max() < 1e-5
        assert (expected - plain).abs().max() > 1e-3, "the adapter learnt something"
        names = {path.name for path in (cpu_project.root / "merged" / part).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer_config.json"} <= names
        assert not [name for name in names if name.startswith("adapter")]
    if key == "masked_diffusion":
        was, now = (
            json.loads((folder / "config.json").read_text()) for folder in (cpu_project.root / "base", Path("merged"))
        )
        assert now["auto_map"] == was["auto_map"]
        write_json(files.config, {"recipe": key, "config": config_of(key, trust_remote_code=True).model_dump()})
        other = {**json.loads((saved / "config.json").read_text()), "model_type": "own", "architectures": ["Own"]}
        (saved / "config.json").write_text(json.dumps(other))
        with pytest.raises(ConfigError, match=r"a run directory cannot allow that: .*--trust-remote-code"):
            merge_parts(Run(files), False, Checkpoint.read(saved.parent), cpu_project.root)
        assert weights_in(Path("merged")).keys() == weights_in(cpu_project.root / "base").keys()


@pytest.mark.promise("safety-adapter")
def test_a_classifier_exports_a_canine_and_its_heads(
    trained: Train, cpu_project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare("text_classification", cpu_project)
    files = trained(config_of("text_classification"))
    assert nbtools(["export", files.id]) == 0
    saved, merged = files.checkpoint(6) / "model", files.outputs / "step-000006"
    adapted, whole = open_classifier(saved).eval(), open_classifier(merged).eval()  # type: ignore[no-untyped-call]
    inputs_BT = torch.randint(1, 1000, (3, 16), generator=torch.Generator().manual_seed(0))
    labels_BK = torch.zeros(3, 2, dtype=torch.long)
    with torch.no_grad():
        assert torch.allclose(whole(inputs_BT, labels_BK), adapted(inputs_BT, labels_BK), atol=1e-5, rtol=0)
        canine = transformers.CanineModel.from_pretrained(merged).eval()
        assert torch.allclose(canine(inputs_BT)[0], whole.canine(inputs_BT)[0], atol=1e-6)
        base = transformers.CanineModel.from_pretrained(cpu_project.root / "base").eval()
        assert (base(inputs_BT)[0] - canine(inputs_BT)[0]).abs().max() > 1e-3
    assert "README.md there" in capfd.readouterr().err
    (lines,) = re.findall(r"```python\n(.*?)```", (merged / "README.md").read_text(), re.DOTALL)
    printed = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True, cwd="/").stdout
    given = ["smed og husmand", {"text": "farmer", "lang": "en"}]
    expected = Predictor(saved).predict(given, TextClassificationPredict())
    for line, row in zip(printed.splitlines(), expected, strict=True):
        codes, probability = line.rsplit(maxsplit=1)
        assert (codes, float(probability)) == (str(row["codes"]), pytest.approx(row["probability"], rel=1e-4))
    heads = {name for name, _ in adapted.named_children()} - {"canine"}
    settings = json.loads((saved / "adapter_config.json").read_text())
    assert set(settings["modules_to_save"]) == heads == {"symbols", "positions", "decoder", "speller", "flat"}


@pytest.mark.promise("safety-adapter")
def test_the_published_llada_s_figures_are_those_of_peft() -> None:
    config = config_of("masked_diffusion", model_name="GSAI-ML/LLaDA-8B-Instruct", lora_rank=16, precision="bf16")
    with torch.device("meta"):
        model = LLaDAModelLM(LLaDAConfig(mlp_hidden_size=12_288, vocab_size=126_464, embedding_size=126_464))
        adapter.add_adapter(model, config)
    adapter.cast_frozen(model, torch.bfloat16)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    num_trained = sum(weight.numel() for weight in trained)
    assert num_trainable_parameters(config) == num_trained
    num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters()) + 12 * num_trained
    assert training_bytes(config) == num_bytes < 18e9
    assert training_bytes(config, "fp32") == 4 * 8_015_581_184 + 16 * num_trained
    assert checkpoint_bytes(config) == 12 * num_trained


@pytest.mark.promise("safety-adapter")
def test_frozen_weights_in_bf16_compute_what_autocast_makes_of_fp32(
    trained: Train, cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("masked_diffusion", cpu_project)
    config, seen, real = config_of("masked_diffusion", precision="bf16"), [], worker.cast_frozen

    def cast(module: torch.nn.Module, dtype: torch.dtype | None) -> None:
        real(module, dtype)
        seen.extend(weight.dtype for weight in module.parameters() if not weight.requires_grad)

    monkeypatch.setattr(worker, "cast_frozen", cast)
    halved = trained(config)
    assert seen.count(torch.bfloat16) == 15, "seven in each of two blocks, and the output layer"
    monkeypatch.setattr(worker, "cast_frozen", lambda module, dtype: None)
    assert rows(halved) == rows(trained(config))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.promise("safety-adapter")
def test_a_layer_that_the_model_lacks_is_refused_with_those_it_has(trained: Train, cpu_project: Project) -> None:
    prepare("masked_diffusion", cpu_project)
    has = "attn_out, ff_out, ff_proj, k_proj, q_proj, up_proj, v_proj"
    with pytest.raises(SystemExit, match=rf"ConfigError: lora_targets: .*base has no layer 'query' .*; it has {has}"):
        trained(config_of("masked_diffusion", lora_targets=("q_proj", "query")))
    settings = json.loads(Path("base/config.json").read_text())
    assert settings["model_type"] == "llada"


def test_an_architecture_without_usual_layers_asks_for_some() -> None:
    with torch.device("meta"):
        model = LLaDAModelLM(LLaDAConfig(d_model=16, n_heads=2, n_layers=1, vocab_size=20))
    model.config.model_type = "unheard_of"
    with pytest.raises(ConfigError, match="no usual layers are known for a unheard_of; name some of attn_out, "):
        adapter.add_adapter(model, config_of("masked_diffusion"))


@pytest.mark.promise("safety-adapter")
def test_without_peft_the_extra_to_install_is_named(
    trained: Train, cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("masked_diffusion", cpu_project)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(SystemExit, match=r"adapter='lora': needs the package peft .*pip install -e '\.\[train\]'"):
        trained(config_of("masked_diffusion"))


@pytest.mark.promise("safety-adapter")
def test_only_as_many_weights_train_as_peft_counts_and_they_resume_on_their_own_base_alone(
    trained: Train, cpu_project: Project
) -> None:
    prepare("masked_diffusion", cpu_project)
    config = config_of("masked_diffusion")
    files = trained(config)
    targets = ["q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"]
    settings = peft.LoraConfig(r=4, target_modules=targets, exclude_modules=["model.transformer.ff_out"])
    own = peft.get_peft_model(load_llada(str(cpu_project.root / "base")), settings)
    num_trained, num_parameters = own.get_nb_trainable_parameters()
    derived = (read_json(files.config) or {})["derived"]
    assert (derived["num_trained_parameters"], derived["num_parameters"]) == (num_trained, num_parameters)
    checkpoint = files.checkpoint(3)
    assert sum(weight.numel() for weight in weights_in(checkpoint / "model").values()) == num_trained
    moments = torch.load(checkpoint / "state.pt", weights_only=True)["optimizer"]
    assert sum(state["exp_avg"].numel() for state in moments.values()) == num_trained
    assert not list((checkpoint / "model").glob("model*.safetensors"))

    base = json.loads((checkpoint / "manifest.json").read_text())["base"]["model_name"]
    assert base["name"] == str(cpu_project.root / "base")
    assert list(base["sha256"]) == ["model.safetensors"]
    Path("base").rename("elsewhere")
    moved = trained(config.replace(model_name="elsewhere"), checkpoint)
    assert rows(moved) == [row for row in rows(files) if row["step"] > 3]

    changed = weights_in(Path("elsewhere"))
    changed["model.transformer.wte.weight"][0, 0] += 1
    shutil.copytree("elsewhere", "base")
    save_file(changed, "base/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        SystemExit, match=r"its adapter was trained on .*base .*model.safetensors .*give the same weights"
    ):
        trained(config, checkpoint)
    assert nbtools(["export", files.id, "-o", "merged"]) != 0
    assert not Path("merged").exists()
    with pytest.raises(SystemExit, match=r"holds an adapter alone, .*resume with adapter='lora'"):
        trained(config.replace(adapter="none"), checkpoint)
    with pytest.raises(SystemExit, match="holds an adapter without its model; nbtools export RUN"):
        trained(config.replace(model_name=str(checkpoint / "model")))


# --- exports --------------------------------------------------------------------------------------


@pytest.mark.promise("safety-adapter")
def test_a_plain_run_exports_a_verified_copy(trained: Train, texts: Project, capfd: pytest.CaptureFixture[str]) -> None:
    files = trained(RECIPES["mlm_pretraining"].config_class(**TINY["mlm_pretraining"]))
    damaged = files.checkpoint(6) / "model" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    assert nbtools(["export", files.id, "-o", "out"]) == 0, "the newest that verifies"
    saved, out = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (files.checkpoint(3) / "model", Path("out"))
    )
    assert b"Measured at step 3 of one training" in out.pop("README.md")
    assert out == saved
    assert nbtools(["export", files.id, "-o", "out"]) == 2
    assert "exists already" in capfd.readouterr().err
    assert nbtools(["export", files.id, "-o", "other", "--checkpoint", "step-000006"]) != 0
    assert not Path("other").exists()


def test_a_damaged_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: is damaged"):
        adapter.base_name(tmp_path)
