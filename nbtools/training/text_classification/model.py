"""CANINE with two heads: a decoder that spells a set of codes, and a flat head that scores each code.

CANINE: Clark et al. 2022, arXiv 2103.06874. The pair of heads, trained together: OccCANINE, Dahl, Johansen and Vedel
2024, arXiv 2402.13604.

A set has no order, so neither has the loss: the decoder's targets are a set's codes in ascending order, whatever their
order in the data, and unused blocks are PAD. (OccCANINE takes the best assignment of codes to blocks. With teacher
forcing, the decoder has already read the beginning of the i-th code in block i: 68% of the unseen demo strings were
exactly right with the best assignment, 72% in ascending order; width 64, 400 steps, one seed.)

Shape suffixes: B batch, T characters, H width, K blocks (codes of a row), S symbols of a block, L symbols of a
sequence, V kinds of symbols, C codes (classes).
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import CanineConfig, CanineModel, PreTrainedModel

from nbtools.data.text_classification.codes import BOS, EOS, CodeSystem
from nbtools.errors import CheckpointError, ConfigError
from nbtools.recipes import TextClassificationConfig
from nbtools.training.engine import checkpoint
from nbtools.training.text import adapter, pretrained_models
from nbtools.training.text_classification.incremental_decoder import IncrementalDecoder
from nbtools.training.text_classification.published import PublishedHeads

_MODEL_TYPES = ("canine", "seq2seq", "seq2seq_mixer")
"""Model types of a CANINE and OccCANINE's first model, and of its later ones."""
_MOST_SYMBOLS = 128
"""Positions that OccCANINE's decoder has."""


class TextClassifier(PreTrainedModel):  # type: ignore[no-untyped-call]
    """CANINE with a decoder over its last hidden states and a linear head on its pooled output.

    It is saved as a CANINE with two more heads: `CanineModel.from_pretrained` loads the encoder of such a folder.
    The config has, beside CANINE's, `code_system`, `num_decoder_layers`, `num_decoder_heads`, `seq2seq_weight` and
    `flat_loss_scale`.
    """

    config_class = CanineConfig
    base_model_prefix = "canine"
    supports_gradient_checkpointing = True
    _no_split_modules: list[str] = []
    forward_methods = ("encode", "losses", "decode", "flat_predictions")
    blocks_CS: Tensor
    decoder: Any
    layers: Any
    """The layers of the decoder."""

    def __init__(self, config: CanineConfig, canine: CanineModel | None = None) -> None:
        super().__init__(config)
        self.system = CodeSystem.from_json(config.code_system)
        self.add_parts(config, CanineModel(config) if canine is None else canine)
        self.register_buffer("blocks_CS", torch.from_numpy(self.system.blocks_CS), persistent=False)

    def add_parts(self, config: CanineConfig, canine: CanineModel) -> None:
        """Add the encoder and new heads, under the names that their files have."""
        width, system = config.hidden_size, self.system
        self.canine = canine
        self.symbols = nn.Embedding(system.num_symbols, width)
        self.positions = nn.Embedding(system.sequence_length - 1, width)
        sizes = width, config.num_decoder_heads, 4 * width, config.hidden_dropout_prob
        layer = nn.TransformerDecoderLayer(*sizes, activation="gelu", batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, config.num_decoder_layers, nn.LayerNorm(width))
        object.__setattr__(self, "layers", self.decoder)  # no second name in the files
        self.speller = nn.Linear(width, system.num_symbols)
        self.flat = nn.Linear(width, len(system.codes))
        for table in (self.symbols, self.positions):
            nn.init.normal_(table.weight, std=1 / math.sqrt(width))

    def embed(self, symbols_BL: Tensor, first: int = 0) -> Tensor:
        """Return the embeddings of symbols, the first of which has the position `first`. Shape (B, L, H)."""
        embedded_BLH: Tensor = self.symbols(symbols_BL) + self.positions.weight[first : first + symbols_BL.shape[1]]
        return embedded_BLH

    def forward(self, inputs_BT: Tensor, labels_BK: Tensor) -> Tensor:
        """Return the losses of the decoder and of the flat head, each summed over the batch. Shape (2,)."""
        return self.losses(*self.encode(inputs_BT), labels_BK)

    def losses(self, memory_BTH: Tensor, mask_BT: Tensor, pooled_BH: Tensor, labels_BK: Tensor) -> Tensor:
        """Return the two losses from the outputs of `encode`, each summed over the batch. Shape (2,).

        The decoder's is the cross-entropy per symbol (of the codes, of PAD in empty blocks, of EOS), the flat head's
        the binary cross-entropy of every code by itself, averaged over codes.
        """
        sequences_BL = self.sequences(sort_labels(labels_BK))
        targets_BL = sequences_BL[:, 1:]
        logits_BLV = self.decoder_logits(sequences_BL[:, :-1], memory_BTH, mask_BT).float()
        sequence_loss = cross_entropy(logits_BLV.flatten(0, 1), targets_BL.flatten(), reduction="sum")
        truth_BC = self.multi_hot(labels_BK)
        flat_loss = binary_cross_entropy_with_logits(self.flat(pooled_BH).float(), truth_BC, reduction="sum")
        return torch.stack([sequence_loss / targets_BL.shape[1], flat_loss / truth_BC.shape[1]])

    def combine_losses(self, losses: Any) -> Any:
        """Return the weighted sum of the decoder's and the flat head's (scaled) loss."""
        weight = self.config.seq2seq_weight
        return weight * losses[0] + (1 - weight) * self.config.flat_loss_scale * losses[1]

    def encode(self, inputs_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last hidden states of all characters, the padding mask, and the pooled output."""
        is_text_BT = inputs_BT != 0
        output = self.canine(input_ids=inputs_BT, attention_mask=is_text_BT.long())
        return output.last_hidden_state, ~is_text_BT, output.pooler_output

    def decoder_logits(self, sequence_BL: Tensor, memory_BTH: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the logits of the next symbol at each position. Shape (B, L, V)."""
        length = sequence_BL.shape[1]
        causal_LL = torch.ones(length, length, dtype=torch.bool, device=sequence_BL.device).triu(1)
        decoded_BLH = self.layers(
            self.embed(sequence_BL), memory_BTH, tgt_mask=causal_LL, memory_key_padding_mask=mask_BT, tgt_is_causal=True
        )
        logits_BLV: Tensor = self.speller(decoded_BLH)
        return logits_BLV

    def sequences(self, labels_BK: Tensor) -> Tensor:
        """Return BOS, the blocks of the codes in the order given, EOS. Shape (B, K S + 2)."""
        blocks_BKS = self.blocks_CS[labels_BK]  # -1 is the last row: PAD
        marks_B1 = torch.ones_like(labels_BK[:, :1])
        return torch.cat([BOS * marks_B1, blocks_BKS.flatten(1), EOS * marks_B1], dim=1)

    def multi_hot(self, labels_BK: Tensor) -> Tensor:
        """Return 1 where a row has a code, else 0. Shape (B, C)."""
        truth_BC = torch.zeros(len(labels_BK), len(self.system.codes) + 1, device=labels_BK.device)
        return truth_BC.scatter_(1, labels_BK % truth_BC.shape[1], 1.0)[:, :-1]  # -1 falls into the last column

    @torch.no_grad()
    def decode(self, memory_BTH: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Decode greedily, restricted to existing codes, each at most once.

        Returns:
            The classes of each row's codes, then -1, shape (B, K); and the probability of their symbols, shape (B,).
        """
        num_rows, num_codes = len(memory_BTH), len(self.system.codes)
        device = memory_BTH.device
        decoder = IncrementalDecoder(self.layers, memory_BTH, mask_BT, self.system.sequence_length - 1)
        symbol_B = torch.full((num_rows,), BOS, device=device)
        log_p_B = torch.zeros(num_rows, device=device)
        is_free_BC = torch.ones(num_rows, num_codes + 1, dtype=torch.bool, device=device)
        is_free_BC[:, -1] = False  # at least one code
        is_symbol_CSV = nn.functional.one_hot(self.blocks_CS, self.speller.out_features).float()
        found = []
        for block in range(self.system.max_codes):
            fits_BC = is_free_BC.clone()
            for place in range(self.system.block_size):
                symbols_C = self.blocks_CS[:, place]
                embedded_B1H = self.embed(symbol_B[:, None], block * self.system.block_size + place)
                logits_BV = self.speller(decoder.step(embedded_B1H[:, 0])).float()
                allowed_BV = fits_BC.float() @ is_symbol_CSV[:, place] > 0
                symbol_B = logits_BV.masked_fill(~allowed_BV, -math.inf).argmax(-1)
                log_p_B += logits_BV.log_softmax(-1).gather(1, symbol_B[:, None]).squeeze(1)
                fits_BC &= symbols_C == symbol_B[:, None]
            class_B = fits_BC.float().argmax(1)
            is_end_B = class_B == num_codes
            found.append(torch.where(is_end_B, -1, class_B))
            is_free_BC.scatter_(1, class_B[:, None], False)
            is_free_BC[:, -1] = True
            is_free_BC[:, :-1] &= ~is_end_B[:, None]  # after PAD only PAD
        return torch.stack(found, dim=1), log_p_B.exp()

    @torch.no_grad()
    def flat_predictions(self, pooled_BH: Tensor) -> Tensor:
        """Return the flat head's codes: those with p > 0.5, at least one. 1 or 0, shape (B, C)."""
        logits_BC = self.flat(pooled_BH).float()
        best_BC = nn.functional.one_hot(logits_BC.argmax(-1), logits_BC.shape[1])
        picked_BC: Tensor = (logits_BC > 0) | best_BC.bool()
        return picked_BC.long()


class OccCANINEClassifier(TextClassifier):  # type: ignore[no-untyped-call]
    """A classifier under the names and in the shapes of OccCANINE's published models, which loads what it saves.

    Beside the names, it differs in the decoder: norms behind the layers, fixed positions, and attention to the padding
    of the input, which is always `sequence_length` long. In a folder are also `key.json`, the row of the flat head for
    each code, and for other systems than HISCO `chars.json`, the symbols. Fine-tuning takes a set's codes in ascending
    order here, too. (OccCANINE's training adds 1 to the attention to PAD symbols, its prediction does not: as here.)
    """

    base_model_prefix = "encoder"
    flat_name = "linear_decoder"

    def add_parts(self, config: CanineConfig, canine: CanineModel) -> None:
        """Add the encoder and new heads, under the names that their files have."""
        width, num_symbols = config.hidden_size, max(config.num_classes) + 1
        sizes = width, config.num_decoder_heads, config.decoder_dim_feedforward, config.hidden_dropout_prob
        layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, batch_first=True), config.num_decoder_layers)
        flat, head = _OrderedLinear(width, config.num_flat_rows, config.flat_rows), nn.Linear(width, num_symbols)
        embedding, positions = nn.ModuleDict({"embedding": nn.Embedding(num_symbols, width)}), nn.Module()
        places_L = torch.arange(max(_MOST_SYMBOLS, self.system.sequence_length))
        angles_LH = places_L[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        table_LH = torch.stack([angles_LH.sin(), angles_LH.cos()], dim=2).flatten(1)
        positions.register_buffer("pos_embedding", table_LH[:, None])
        parts = {"token_emb": embedding, "positional_encoding": positions, "decoder": layers, "head": head}
        self.decoder = nn.ModuleDict(parts)
        self.add_module(self.base_model_prefix, canine)
        self.add_module(self.flat_name, flat)
        for name, part in {"canine": canine, "flat": flat, "speller": head, "layers": layers}.items():
            object.__setattr__(self, name, part)  # no second name in the files

    def embed(self, symbols_BL: Tensor, first: int = 0) -> Tensor:
        """Return the embeddings of symbols, the first of which has the position `first`. Shape (B, L, H)."""
        parts, last = self.decoder, first + symbols_BL.shape[1]
        embedded_BLH = parts["token_emb"]["embedding"](symbols_BL) * self.config.hidden_size**0.5
        return torch.add(embedded_BLH, parts["positional_encoding"].pos_embedding[first:last, 0])

    def encode(self, inputs_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last hidden states of characters and padding, no mask, and the pooled output."""
        longest = self.config.sequence_length + -self.config.sequence_length % 4  # a multiple of CANINE's strides
        inputs_BT = nn.functional.pad(inputs_BT, (0, longest - inputs_BT.shape[1]))
        memory_BTH, mask_BT, pooled_BH = super().encode(inputs_BT)
        return memory_BTH, torch.zeros_like(mask_BT), pooled_BH

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write the model's folder, with the key and the symbols beside."""
        super().save_pretrained(save_directory, *args, **kwargs)
        key = dict(zip(self.system.codes, self.config.flat_rows, strict=True))
        more = {"key": key} | ({"chars": self.system.symbols} if self.system.formatter == "generic" else {})
        for name, content in more.items():
            (Path(save_directory) / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


class FlatOccCANINEClassifier(OccCANINEClassifier):  # type: ignore[no-untyped-call]
    """A classifier under the names of OccCANINE's first model, which had a flat head alone."""

    base_model_prefix = "basemodel"
    flat_name = "out"


class _OrderedLinear(nn.Linear):
    """A linear layer whose outputs are some of its rows, in another order. Shape (..., C)."""

    rows_C: Tensor

    def __init__(self, width: int, num_rows: int, rows: list[int]) -> None:
        super().__init__(width, num_rows)
        self.register_buffer("rows_C", torch.tensor(rows), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)[..., self.rows_C]


def _classifier(config: CanineConfig, canine: CanineModel | None) -> TextClassifier:
    """Return a classifier of the layout that its config names, with new heads."""
    classes = {"encoder": OccCANINEClassifier, "basemodel": FlatOccCANINEClassifier}
    return classes.get(getattr(config, "published_encoder", ""), TextClassifier)(config, canine)


def sort_labels(labels_BK: Tensor) -> Tensor:
    """Return every row's classes in ascending order, then -1."""
    highest = torch.iinfo(labels_BK.dtype).max
    ordered_BK = labels_BK.masked_fill(labels_BK < 0, highest).sort(dim=1).values
    return ordered_BK.masked_fill(ordered_BK == highest, -1)


def build_classifier(
    config: TextClassificationConfig, system: CodeSystem, shares_C: Tensor, published: PublishedHeads | None = None
) -> TextClassifier:
    """Build a classifier of the config's size, or around the pretrained CANINE that it names.

    Args:
        shares_C: frequency of each code in the training rows, for the initial bias of a new flat head.
        published: the heads of the named model, which has OccCANINE's layout.

    Raises:
        ConfigError: the named model cannot be loaded, is no CANINE, or does not fit.
    """
    scale = len(system.codes) if config.flat_loss_scale is None else config.flat_loss_scale
    heads: dict[str, Any] = {
        "code_system": system.to_json(),
        "clean": config.clean if config.files else "light",  # generated occupations are in lower case
        "num_decoder_layers": config.num_decoder_layers,
        "num_decoder_heads": config.num_decoder_heads,
        "seq2seq_weight": config.seq2seq_weight,
        "flat_loss_scale": float(scale),
        "sequence_length": config.sequence_length,
    }
    if config.model_name is None:
        classifier = TextClassifier(CanineConfig(**canine_settings(config), **heads))
    else:
        canine = pretrained_models.load_model(CanineModel, config.model_name, "a CANINE")
        if not isinstance(canine, CanineModel) or canine.config.model_type not in _MODEL_TYPES:
            raise ConfigError(f"model_name={config.model_name!r}: is a {canine.config.model_type}; give a CANINE")
        pretrained_models.check_length(canine, config.model_name, config.sequence_length)
        heads |= {} if published is None else published.settings
        if canine.config.hidden_size % heads["num_decoder_heads"]:
            raise ConfigError(
                f"num_decoder_heads={heads['num_decoder_heads']}: must divide the width of {config.model_name}, "
                f"{canine.config.hidden_size}"
            )
        for part in canine.modules():
            if isinstance(part, nn.Dropout):
                part.p = config.dropout
        dropout = {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.dropout}
        canine.config.update({**heads, **dropout, "model_type": "canine"})
        classifier = _classifier(canine.config, canine)
    with torch.no_grad():
        # Initial bias at each code's frequency (Lin et al. 2017, arXiv 1708.02002): otherwise training first learns
        # that codes are rare.
        classifier.flat.bias[getattr(classifier.flat, "rows_C", ...)] = torch.logit(shares_C.clamp(1e-6, 0.999))
        if published is not None:
            published.fill(classifier)
    adapter.add_adapter(classifier, config, has_heads=True)
    return classifier


def canine_settings(config: TextClassificationConfig) -> dict[str, Any]:
    """Return the arguments of `transformers.CanineConfig` for a model built from `config`."""
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": 4 * config.hidden_size,
        "num_hash_buckets": config.num_hash_buckets,
        "max_position_embeddings": config.sequence_length,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        # Wide enough for narrow models: 0.05 at width 64, CANINE's own 0.02 at 400.
        "initializer_range": 0.4 / math.sqrt(config.hidden_size),
    }


def open_classifier(folder: Path) -> TextClassifier:
    """Load what `save_pretrained` wrote, executing nothing; CheckpointError if it holds no text classifier."""
    config, _ = _opened_config(folder)
    base = adapter.base_name(folder)
    load = pretrained_models.load_model
    canine: Any = None if base is None else load(CanineModel, base, "the base of an adapter")
    classifier = _classifier(config, canine)
    if base is not None:
        adapter.open_adapter(classifier, folder)
    checkpoint.load_weights(classifier, folder)
    return classifier


def check_codes(system: CodeSystem, folder: Path) -> None:
    """Raise CheckpointError if a checkpoint has other codes: its weights could load and would have another meaning."""
    if difference := system.difference(_opened_config(folder)[1]):
        raise CheckpointError(f"{folder}: its codes are of other data ({difference}); resume with the data of its run")


def _opened_config(folder: Path) -> tuple[CanineConfig, CodeSystem]:
    try:
        config = CanineConfig.from_pretrained(folder, trust_remote_code=False)
        return config, CodeSystem.from_json(config.code_system)
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder}: holds no text classifier ({pretrained_models.first_line(error)})") from error
