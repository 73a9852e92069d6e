"""Sizes of the pretrained models that a config names, from config.json and the headers of their weights, without torch.

What is in a local folder or in the hub's cache is read; nothing is downloaded.
"""

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbtools.config import TrainConfig
from nbtools.data.hub import cached_file
from nbtools.project import located
from nbtools.recipes import lora
from nbtools.rundir.json_files import LARGEST_JSON_BYTES, read_small
from nbtools.rundir.tail import open_regular

_LLADA = {"model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "mlp_hidden_size": 12_288}
_LLADA |= {"activation_type": "silu", "embedding_size": 126_464, "weight_tying": False}
KNOWN_MODELS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {f"GSAI-ML/LLaDA-{name}": _LLADA for name in ("8B-Base", "8B-Instruct", "1.5")}
)
"""Settings of hub models that are a LLaDA, by name; known without a download."""
_SAME = {
    "num_layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "num_heads": ("num_attention_heads", "n_heads", "n_head"),
    "hidden_size": ("hidden_size", "d_model", "n_embd", "dim"),
    "inner": ("intermediate_size", "mlp_hidden_size", "hidden_dim", "n_inner"),
    "rows": ("embedding_size", "vocab_size", "num_hash_buckets"),
}
"""Names of a setting in config.json, by architecture."""
_LINEAR = {
    "llada": ("q_proj", "k_proj", "v_proj", "attn_out", "ff_out", "ff_proj", "up_proj"),
    "gated": ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "gate_proj", "up_proj"),
    "plain": ("query", "key", "value", "attention.output.dense", "output.dense", "intermediate.dense"),
}
"""Linear layers of a block: queries, keys, values, their result, and the feed-forward ones, the last one first."""
_GATED_TYPES = ("modernbert", "gemma", "gemma2", "gemma3_text")  # whose activation is no silu
_BLOCK = re.compile(r"(?:\w+\.)*?\d+\.")
_TABLE = re.compile(r"emb|wte|wpe|shared")
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class NamedModel:
    """The shape of a pretrained model, and its numbers of weights."""

    model_type: str
    num_layers: int
    num_heads: int
    hidden_size: int
    vocab_size: int
    """Rows of the table of tokens."""
    num_parameters: int
    num_in_blocks: int
    num_in_block: int
    """Number of weights of the largest block."""
    linear: Mapping[str, tuple[int, int]]
    """Shapes of the weights of linear layers, by the layer's name."""
    kept_per_layer: float
    """Tensors of `hidden_size` values per token that a layer keeps for the backward pass; see `activations`."""
    num_wide: int
    """Number of those that are fp32 at every precision: the residual stream, and what RMS norms make of it."""

    def adapter_sizes(self, config: Any) -> lora.AdapterSizes | None:
        """Return the sizes with the adapter of a config; None if its layers are those that only peft knows."""
        if (targets := config.lora_targets or lora.DEFAULT_TARGETS.get(self.model_type)) is None:
            return None
        inner = {name: shape for name, shape in self.linear.items() if self.vocab_size not in shape}  # no logits
        fitting = [shape for name, shape in inner.items() if any(f".{name}".endswith(f".{each}") for each in targets)]
        linear = sum(map(math.prod, self.linear.values()))
        return lora.AdapterSizes(config.lora_rank * sum(map(sum, fitting)), linear, self.num_parameters - linear)


def models_of(config: Any) -> tuple[NamedModel, ...] | None:
    """Return the pretrained models that a config trains: of an adversarial one two; None if one cannot be read."""
    names = [getattr(config, "model_name", None)]
    if hasattr(config, "judge_name"):
        names.append(config.judge_name or config.model_name)
    found = [named_model(name) for name in names if name is not None]
    return None if None in found else tuple(model for model in found if model is not None)


def size_of(config: TrainConfig) -> Any:
    """Return what sets the size of a transformer: the config, or the model that it names; None if that is unknown."""
    if (models := models_of(config)) is None:
        return None
    return max(models, key=lambda model: model.num_parameters, default=config)


def num_parameters(config: TrainConfig) -> int | None:
    """Return the number of weights of the models that a config names; None if it is unknown."""
    models = models_of(config)
    return None if models is None else sum(model.num_parameters for model in models)


def named_model(name: str) -> NamedModel | None:
    """Return the sizes of a model in a local folder or in the hub's cache; None if they cannot be read."""
    try:
        local = located(name) / "config.json"
        if (path := local if local.is_file() else cached_file(name, "config.json")) is not None:
            return _read(path, path.stat().st_mtime_ns)
    except OSError:
        return None
    return _model(KNOWN_MODELS[name], {}) if name in KNOWN_MODELS else None


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed_at: int) -> NamedModel | None:
    """Read the model beside its config.json, once for each time of change."""
    try:
        return _model(json.loads(read_small(path)), dict(_stored(path.parent)))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def _stored(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the tensors of real numbers in the safetensors files of a folder."""
    files = [folder / "model.safetensors"]
    if not files[0].is_file() and (index := folder / "model.safetensors.index.json").is_file():
        files = [folder / name for name in sorted({*json.loads(read_small(index))["weight_map"].values()})]
    for path in files if all(path.is_file() for path in files) else ():
        with open_regular(path) as file:
            header = file.read(min(int.from_bytes(file.read(8), "little"), LARGEST_JSON_BYTES))
        for name, tensor in json.loads(header).items():
            if name != "__metadata__" and "F" in tensor["dtype"]:
                yield name, tuple(map(int, tensor["shape"]))


def _model(settings: Mapping[str, Any], tensors: dict[str, tuple[int, ...]]) -> NamedModel:
    sizes = {key: next((int(settings[n]) for n in names if settings.get(n)), 0) for key, names in _SAME.items()}
    if sizes["num_layers"] > _MOST_LAYERS:
        raise ValueError("no model has so many layers")
    width, inner = sizes["hidden_size"], sizes.pop("inner") or 4 * sizes["hidden_size"]
    rows, model_type = sizes.pop("rows"), str(settings.get("model_type"))
    activation = settings.get("activation_type", settings.get("hidden_act"))
    is_gated = activation == "silu" or model_type in _GATED_TYPES
    if not tensors:
        is_tied = settings.get("weight_tying", settings.get("tie_word_embeddings", True))
        kv_heads = settings.get("n_kv_heads") or settings.get("num_key_value_heads") or sizes["num_heads"]
        tensors = {"embeddings.weight": (rows, width), "norm.weight": (width,)}
        tensors |= {} if is_tied else {"output.weight": (rows, width)}
        kv_width = width // sizes["num_heads"] * int(kv_heads)
        shapes = [(width, width), (kv_width, width), (kv_width, width), (width, width), (width, inner), (inner, width)]
        names = _LINEAR.get(model_type, _LINEAR["gated" if is_gated else "plain"])
        for layer in range(sizes["num_layers"]):
            block = dict(zip(names, [*shapes, (inner, width)], strict=False)) | {"norms": (2, width)}
            tensors |= {f"layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    blocks: dict[str, int] = {}
    for name, shape in tensors.items():
        if found := _BLOCK.match(name):
            blocks[found[0]] = blocks.get(found[0], 0) + math.prod(shape)
    linear = {name[: -len(".weight")]: shape for name, shape in tensors.items() if name.endswith(".weight")}
    return NamedModel(
        model_type=model_type,
        vocab_size=rows,
        num_parameters=sum(map(math.prod, tensors.values())),
        num_in_blocks=sum(blocks.values()),
        num_in_block=max(blocks.values(), default=0),
        linear={
            name: (shape[0], shape[1])
            for name, shape in linear.items()
            if len(shape) == 2 and not _TABLE.search(name) and "norm" not in name
        },
        num_wide=4 if is_gated else 2,
        kept_per_layer=10 + 4 * inner / width if is_gated else 8 + 2 * inner / width,
        **sizes,
    )
