"""Folders in the layouts of OccCANINE's published models: which heads they have, and the codes that these know.

Names and shapes are those that its classes give (github.com/christianvedels/OccCANINE). Its weights are its authors',
under the Apache License 2.0; none come with nbtools. A file says which row of the flat head is which code: `key.json`,
or for HISCO `Key.csv`, from that repository. Without one, the encoder alone can be used.
"""

import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from nbtools.data.text_classification.coded_texts import read_key
from nbtools.data.text_classification.codes import EOS, MISSING, CodeSystem, generic_code, hisco_code
from nbtools.errors import ConfigError, DataError, shown
from nbtools.recipes import TextClassificationConfig
from nbtools.training.engine.checkpoint import weight_differences
from nbtools.training.sharding.stored_tensors import StoredTensor, stored_tensors
from nbtools.training.text.pretrained_models import stored_file
from nbtools.training.text.weights import WeightsReport

_FLAT = {"encoder": "linear_decoder", "basemodel": "out"}
"""Name of the flat head, by that of the encoder: of the models with a decoder, and of the first model."""
_HEADS = 8
"""Attention heads of the decoder, which its config.json does not say."""
_USUAL_SYMBOLS = (*map(str, range(-999, 1000)), *string.ascii_letters, *re.sub("[&,]", "", string.punctuation))
"""Symbols of other systems than HISCO without `chars.json`, in the order of their ids."""


@dataclass(frozen=True)
class PublishedHeads:
    """The heads of a model in such a layout: the flat one, the decoder, or both."""

    source: str
    encoder: str
    """Name of the encoder: `encoder`, or `basemodel` of the first model."""
    system: CodeSystem
    settings: Mapping[str, Any]
    """Values of a classifier's config about its heads, as far as the files have them."""
    stored: Mapping[str, StoredTensor]

    def fill(self, model: PreTrainedModel) -> None:
        """Copy the stored heads into a classifier, and report which weights the files have.

        Raises:
            ConfigError: the files have a part of a head, or one of another shape; the message names the tensors.
        """
        parts = {name.partition(".")[0] for name in self.stored} - {self.encoder}
        heads = {name: tensor for name, tensor in self.stored.items() if name.partition(".")[0] in parts}
        own = {name: weight for name, weight in model.state_dict().items() if name.partition(".")[0] in parts}
        if problems := weight_differences(own, heads):
            raise _misfit(self.source, "; ".join(problems[:5]))
        for name, tensor in heads.items():
            own[name].copy_(tensor[...])
        told = vars(model.base_model).pop("weights_report", None)  # one report for the whole
        missing = {f"{self.encoder}.{name}" for name in getattr(told, "missing", ())}
        names = [name for name, _ in model.named_parameters()]
        new = (name for name in names if name in missing or name.partition(".")[0] not in {*parts, self.encoder})
        model.weights_report = WeightsReport(self.source, len(names), tuple(new))  # type: ignore[assignment]


def published_heads(config: TextClassificationConfig, say: Callable[[str], None]) -> PublishedHeads | None:
    """Return the heads of the model that a config names; None if it has no such layout, or no key, which `say` gets.

    Raises:
        ConfigError: its files do not fit together.
    """
    source = config.model_name or ""
    weights = source and stored_file(source, SAFE_WEIGHTS_NAME)
    stored = stored_tensors([Path(weights)]) if weights else {}
    encoder = next((name for name in _FLAT if any(key.startswith(f"{name}.") for key in stored)), "encoder")
    flat, head = stored.get(f"{_FLAT[encoder]}.weight"), stored.get("decoder.head.weight")
    if not (heads := [each for each in (flat, head) if each is not None]):
        return None
    if (key_file := stored_file(source, "key.json", "Key.csv")) is None:
        say(f"note: {source}: its heads are left out: no key.json or Key.csv there has the row of each code")
        return None
    form = hisco_code if config.spelling == "hisco" else generic_code
    try:
        is_json = key_file.endswith(".json")
        key = json.loads(Path(key_file).read_bytes()) if is_json else read_key(Path(key_file))
        pairs = (pair if is_json else pair[::-1] for pair in key.items())
        rows = {form(code): int(row) for code, row in pairs if code not in MISSING}
        system = CodeSystem.of(config.spelling, rows, config.max_codes)
    except (DataError, OSError, ValueError, AttributeError) as error:
        raise _misfit(source, f"{key_file} has not a row of the flat head for each code: {error}") from error
    order = [rows[code] for code in system.codes]
    num_rows = len(order) if flat is None else flat.shape[0]
    if {*order} - {*range(num_rows)} or len({*order}) < len(order):
        raise _misfit(source, f"{key_file} has {len(order)} codes, up to row {max(order)}, of {num_rows}")
    more: dict[str, Any] = {"decoder_dim_feedforward": heads[0].shape[1]}
    last = system.num_symbols  # OccCANINE has one id more than it uses
    if head is not None:
        given, last = PretrainedConfig.get_config_dict(source)[0], head.shape[0] - 1
        system = _spelled(source, system, len(given.get("num_classes", ())), last + 1)
        num_layers = len({name.split(".")[3] for name in stored if name.startswith("decoder.decoder.layers.")})
        more["decoder_dim_feedforward"] = stored.get("decoder.decoder.layers.0.linear1.weight", head).shape[0]
        more |= {"num_decoder_layers": num_layers, "num_decoder_heads": given.get("num_decoder_heads", _HEADS)}
    more |= {"published_encoder": encoder, "num_flat_rows": num_rows, "flat_rows": order}
    more["n_classes" if encoder == "basemodel" else "num_classes_flat"] = num_rows
    settings = more | {"num_classes": [last] * system.sequence_length}
    return PublishedHeads(source, encoder, system, settings, stored)


def _spelled(source: str, system: CodeSystem, length: int, num_ids: int) -> CodeSystem:
    """Return a code system with the blocks and symbols of a stored decoder, which makes sequences of a length."""
    num_blocks, rest = divmod(length - 2, system.block_size)
    if rest or num_blocks < system.max_codes:
        codes = f"{num_blocks} codes of {system.block_size} symbols"
        raise ConfigError(f"max_codes={system.max_codes}: num_classes in config.json of {source} has room for {codes}")
    system = replace(system, max_codes=num_blocks)
    if system.formatter == "generic":
        chars = stored_file(source, "chars.json")
        symbols = _USUAL_SYMBOLS if chars is None else tuple(map(str, json.loads(Path(chars).read_bytes())))
        if strange := sorted({*"".join(system.codes)}.difference(symbols)):
            raise _misfit(source, f"codes of its key have {shown(strange[0])}, which is none of its symbols")
        system = replace(system, symbols=symbols, filler=EOS)
    if not 0 <= num_ids - system.num_symbols <= 1:
        raise _misfit(source, f"decoder.head.weight has {num_ids} rows, for {len(system.symbols)} symbols and 5 marks")
    return system


def _misfit(source: str, reason: str) -> ConfigError:
    return ConfigError(
        f"model_name={source!r}: has OccCANINE's layout, but its files do not belong together ({reason}); without its "
        "key (key.json or Key.csv) the encoder alone is loaded, with new heads"
    )
