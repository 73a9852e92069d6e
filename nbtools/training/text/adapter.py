"""Adapters on frozen pretrained models: LoRA (Hu et al. 2021, arXiv 2106.09685) by `peft`.

A model with an adapter keeps its class and its methods; its own weights do not train. What trains, the adapter and the
heads that a recipe adds, is saved alone, in the files and under the names of `peft`, which loads them, too.
"""

import contextlib
import copy
import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils.hub import cached_file

from nbtools.data.hub import cached_commit
from nbtools.errors import CheckpointError, ConfigError
from nbtools.project import expanded, file_digest
from nbtools.recipes.lora import DEFAULT_TARGETS

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NAME = "default"
_PREFIX = "base_model.model."
"""Before the names of all weights that peft saves."""
_BASES = ("model_name", "judge_name")
"""Fields that name a pretrained model."""


# --- adding ---------------------------------------------------------------------------------------


def add_adapter(model: PreTrainedModel, config: Any, *, option: str = "model_name", has_heads: bool = False) -> None:
    """Freeze a pretrained model and add the adapter that a recipe's config asks for; without one, change nothing.

    Args:
        option: the config's field that names the model.
        has_heads: whether the recipe adds the parts beside the model's encoder, which then train whole.

    Raises:
        ConfigError: peft is missing, or the model lacks a layer or weights.
    """
    if config.adapter == "none":
        return
    name, encoder = getattr(config, option), model.base_model
    parts = model.named_children() if has_heads else ()
    heads = [head for head, part in parts if part is not encoder and any(True for _ in part.parameters())]
    reports: list[Any] = [getattr(part, "weights_report", None) for part in (model, encoder)]
    missing = next((report.missing for report in reports if report is not None), ())
    lacking = [weight for weight in missing if weight.partition(".")[0] not in heads]
    if lacking:
        raise ConfigError(
            f"{option}={name!r}: lacks {len(lacking)} weights, such as {lacking[0]}, and an adapter trains none of the "
            "model's own; choose a model that has them, or adapter='none'"
        )
    lora_config = _peft().LoraConfig
    model_type = str(model.config.model_type)
    known = {**_peft().utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING, **DEFAULT_TARGETS}.get(model_type)
    layers = _layers(model, heads)
    names = sorted({layer.rpartition(".")[2] for layer in layers})
    if config.lora_targets is None and not isinstance(known, list | tuple):
        raise ConfigError(
            f"lora_targets=None: no usual layers are known for a {model_type}; name some of {', '.join(names)}"
        )
    targets = sorted({*(config.lora_targets or known or ())})
    for target in targets:
        if not any(_fits(layer, target) for layer in layers):
            raise ConfigError(
                f"lora_targets: {name} has no layer {target[:80]!r} for an adapter; it has {', '.join(names)}"
            )
    fitting = (layer for layer, _ in model.named_modules() if any(_fits(layer, target) for target in targets))
    adapter = lora_config(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=targets,
        exclude_modules=sorted({*fitting} - layers.keys()) or None,
        modules_to_save=heads or None,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        base_model_name_or_path=_located(name),
    )
    _inject(model, adapter)


def open_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Add the adapter in a folder to its base model; `checkpoint.load_weights` fills it.

    Raises:
        ConfigError: peft is missing.
        CheckpointError: the folder holds no adapter of this model.
    """
    peft = _peft()
    try:
        adapter = peft.LoraConfig.from_pretrained(str(folder))
        if not isinstance(adapter, peft.LoraConfig):
            raise ValueError(f"it is of the kind {adapter.peft_type}")
        _inject(model, adapter)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder}: holds no adapter of this model ({error})") from error


def base_name(folder: Path) -> str | None:
    """Return the name of the model that the adapter in a folder belongs to; None if the folder holds no adapter.

    Raises:
        CheckpointError: the adapter's settings are damaged.
    """
    if not (folder / CONFIG).is_file():
        return None
    try:
        return str(json.loads((folder / CONFIG).read_bytes())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG}: is damaged ({error})") from error


def _inject(model: PreTrainedModel, adapter: Any) -> None:
    whole = copy.copy(adapter)
    whole.modules_to_save = None  # heads stay what they are: peft would wrap them, and keep each twice
    _peft().inject_adapter_in_model(whole, model, adapter_name=_NAME)
    model.peft_config = {_NAME: adapter}
    for name in adapter.modules_to_save or ():
        model.get_submodule(name).requires_grad_(True)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            f"adapter='lora': needs the package peft ({error}); install the extra: pip install -e '.[train]', or run "
            "scripts/setup.sh again"
        ) from error
    return peft


def _layers(model: PreTrainedModel, heads: Collection[str]) -> dict[str, nn.Module]:
    """Return the linear layers of the pretrained part by name, without what makes logits, which may be tied."""
    outputs = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear | Conv1D) and part is not outputs and name.partition(".")[0] not in heads
    }


def _fits(layer: str, target: str) -> bool:
    return layer == target or layer.endswith(f".{target}")


# --- weights --------------------------------------------------------------------------------------


def has_adapter(model: nn.Module) -> bool:
    """Whether an adapter was added to a model."""
    return hasattr(model, "peft_config")


def saved_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return what a checkpoint holds of a model, by name: all weights, or those that train beside a frozen base."""
    if not has_adapter(model):
        return {**model.state_dict(keep_vars=True)}
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return {_PREFIX + name.replace(f".{_NAME}.", "."): weight for name, weight in trained.items()}


def save_model(model: PreTrainedModel, folder: Path, stored_type: torch.dtype | None = None) -> None:
    """Write a model into a folder that `from_pretrained` loads, or its adapter and heads alone.

    With `stored_type`, that of weights which are in shards, all but weights, also during a forward pass.
    """
    if not has_adapter(model):
        model.save_pretrained(folder, state_dict=None if stored_type is None else {})
        if stored_type is not None:
            (folder / "model.safetensors").unlink(missing_ok=True)  # of no weights
            config = copy.copy(model.config)
            config.dtype = stored_type  # gathered weights may be of 16 bits
            config.save_pretrained(folder)
        return
    folder.mkdir(exist_ok=True)
    config = copy.copy(model.config)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]  # as `save_pretrained` does
    config.save_pretrained(folder)
    adapter = copy.copy(model.peft_config[_NAME])
    for name in ("target_modules", "exclude_modules"):  # sets, whose order differs between processes
        setattr(adapter, name, sorted(getattr(adapter, name) or ()) or None)
    adapter.save_pretrained(str(folder))
    if stored_type is not None:
        return
    weights = {name: weight.detach().cpu().contiguous() for name, weight in saved_weights(model).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


@torch.no_grad()
def merge(model: PreTrainedModel) -> None:
    """Add the products of a model's adapter to its own weights, and remove the adapter."""
    for name, part in list(model.named_modules()):
        if hasattr(part, "base_layer"):
            part.merge(safe_merge=True)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, part.base_layer)
    del model.peft_config


def cast_frozen(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Hold the frozen weights of linear layers as autocast computes with them: half the memory, the same results."""
    if dtype is None:
        return
    linear, others = dict[int, nn.Parameter](), set[int]()
    for part in module.modules():
        weights = {id(weight): weight for weight in part.parameters(recurse=False)}
        if isinstance(part, nn.Linear | Conv1D) and not any(weight.requires_grad for weight in weights.values()):
            linear |= weights
        else:  # a table of tokens may be the output layer, too
            others |= weights.keys()
    for number in linear.keys() - others:
        linear[number].data = linear[number].data.to(dtype)


# --- the base -------------------------------------------------------------------------------------


def bases_of(config: Any) -> dict[str, dict[str, Any]] | None:
    """Return what a config's adapter is added to, by field: its name, and its commit on the hub or its files' SHA-256.

    None without an adapter.
    """
    if getattr(config, "adapter", "none") == "none":
        return None
    named = {field: getattr(config, field, None) for field in _BASES}
    return {field: {"name": _located(name), **_identity(name)} for field, name in named.items() if name is not None}


def _identity(name: str) -> dict[str, Any]:
    files = [path for kind in ("*.safetensors", "*.bin") for path in sorted(expanded(name).glob(kind))]
    if not files:
        with contextlib.suppress(OSError, ValueError):  # loading the model reports it
            cached_file(name, "config.json")
        return {"commit": cached_commit(name, "config.json")}
    with ThreadPoolExecutor(4) as threads:
        return {"sha256": dict(zip((path.name for path in files), threads.map(file_digest, files), strict=True))}


def _located(name: str) -> str:
    """Return the path of a local folder, or the name of a model on the hub."""
    return str(expanded(name).absolute()) if expanded(name).is_dir() else name


def check_bases(path: Path, saved: Mapping[str, Any] | None, own: Mapping[str, Any] | None) -> None:
    """Check that a checkpoint's adapter belongs to the same weights, wherever they are; CheckpointError if not."""
    if (saved is None) != (own is None):
        kinds = ("an adapter alone", "all weights of a model")
        has, needs = kinds if own is None else kinds[::-1]
        raise CheckpointError(
            f"{path}: holds {has}, and this training needs {needs}; resume with adapter="
            f"{'lora' if own is None else 'none'!r}"
        )
    for field in {**(saved or {}), **(own or {})}:
        was, now = ((found or {}).get(field, {}) for found in (saved, own))
        if _weights(was) != _weights(now):
            raise CheckpointError(
                f"{path}: its adapter was trained on {_described(was)}, and {field} is {_described(now)}; give the "
                "same weights, or train a new adapter from the start"
            )


def _weights(base: Mapping[str, Any]) -> Any:
    return base.get("sha256") or base.get("commit") or base.get("name")


def _described(base: Mapping[str, Any]) -> str:
    if not base:
        return "None"
    if base.get("commit"):
        return f"{base['name']} at the commit {base['commit'][:12]}"
    files = ", ".join(f"{name} {digest[:12]}" for name, digest in list((base.get("sha256") or {}).items())[:3])
    return f"{base['name']} ({files or 'whose commit is unknown'})"
