"""Folders in the layouts of OccCANINE's published models: which heads they have, and the codes that these know.

Names and shapes are those that its classes give (github.com/christianvedels/OccCANINE). Its weights are its authors',
under the Apache License 2.0; none come with nbtools. A file says which row of the flat head is which code: `key.json`,
or for HISCO `Key.csv`, from that repository. Without one, the encoder alone can be used.
"""

import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from transformers import CanineConfig
from transformers.utils import SAFE_WEIGHTS_NAME

from nbtools.data.text_classification.coded_texts import read_key
from nbtools.data.text_classification.codes import EOS, MISSING, CodeSystem, generic_code, hisco_code
from nbtools.errors import ConfigError, DataError, shown
from nbtools.recipes import TextClassificationConfig
from nbtools.training.sharding.stored_tensors import StoredTensor, stored_tensors
from nbtools.training.text.pretrained_models import stored_file

FLAT_HEADS = {"encoder": "linear_decoder", "basemodel": "out"}
"""Name of the flat head, by that of the encoder: of the models with a decoder, and of the first model."""
MODEL_TYPES = ("canine", "seq2seq", "seq2seq_mixer")
"""Model types of a CANINE and OccCANINE's first model, and of its later ones."""
WITHOUT_KEY = "without its key (key.json or Key.csv) the encoder alone is loaded, with new heads"
_HEADS = 8
"""Attention heads of the decoder, which its config.json does not say."""
_USUAL_SYMBOLS = (*map(str, range(-999, 1000)), *string.ascii_letters, *re.sub("[&,]", "", string.punctuation))
"""Symbols of other systems than HISCO without `chars.json`, in the order of their ids."""


class PublishedModel(NamedTuple):
    """A model in such a layout with the flat head, the decoder, or both."""

    system: CodeSystem
    config: CanineConfig
    settings: dict[str, Any]
    """Values of a classifier's config that its files decide, instead of the training's config."""
    stored: Mapping[str, StoredTensor]


def published_model(config: TextClassificationConfig, say: Callable[[str], None]) -> PublishedModel | None:
    """Return the model that a config names; None if it has no such layout, or no key, which `say` gets.

    Raises:
        ConfigError: its files do not fit together.
    """
    source = config.model_name or ""
    weights = source and stored_file(source, SAFE_WEIGHTS_NAME)
    stored = stored_tensors([Path(weights)]) if weights else {}
    encoder = next((name for name in FLAT_HEADS if any(key.startswith(f"{name}.") for key in stored)), "encoder")
    flat, head = stored.get(f"{FLAT_HEADS[encoder]}.weight"), stored.get("decoder.head.weight")
    if flat is None and head is None:
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
        system = replace(system, codes=tuple(sorted(rows, key=rows.__getitem__)))
        own = CanineConfig.from_pretrained(source, trust_remote_code=False)
    except (DataError, OSError, ValueError, AttributeError) as error:
        raise _misfit(source, f"{key_file} has not a row of the flat head for each code: {error}") from error
    num_rows = len(rows) if flat is None else flat.shape[0]
    if [rows[code] for code in system.codes] != [*range(num_rows)]:
        most = max(rows.values())
        raise _misfit(source, f"{key_file} has {len(rows)} codes, up to row {most}, for a flat head of {num_rows} rows")
    settings: dict[str, Any] = {"published_encoder": encoder}
    settings["n_classes" if encoder == "basemodel" else "num_classes_flat"] = num_rows
    if head is None:
        last, inner = system.num_symbols, own.hidden_size  # OccCANINE has one id more than it uses
    else:
        last = head.shape[0] - 1
        system = _spelled(source, system, len(getattr(own, "num_classes", ())), last + 1)
        inner = stored.get("decoder.decoder.layers.0.linear1.weight", head).shape[0]
        layers = {name.split(".")[3] for name in stored if name.startswith("decoder.decoder.layers.")}
        settings["num_decoder_layers"] = len(layers)
        settings["num_decoder_heads"] = getattr(own, "num_decoder_heads", _HEADS)
    settings |= {"decoder_dim_feedforward": inner, "num_classes": [last] * system.sequence_length}
    return PublishedModel(system, own, settings, stored)


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
        f"model_name={source!r}: has OccCANINE's layout, but its files do not belong together ({reason}); {WITHOUT_KEY}"
    )
