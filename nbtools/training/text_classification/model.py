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

from nbtools.data.text_classification.codes import BOS, EOS, PAD, CodeSystem
from nbtools.errors import CheckpointError, ConfigError
from nbtools.recipes import TextClassificationConfig
from nbtools.training.engine import checkpoint
from nbtools.training.text import adapter, pretrained_models
from nbtools.training.text_classification.incremental_decoder import IncrementalDecoder
from nbtools.training.text_classification.published import FLAT_HEADS, MODEL_TYPES, WITHOUT_KEY, PublishedModel

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
        ordered_BK = (labels_BK % len(self.blocks_CS)).sort(dim=1).values  # -1 is last, as the row of PAD
        sequences_BL = self.sequences(ordered_BK)
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

    def decode(self, memory_BTH: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return greedily each row's classes of codes, then -1, shape (B, K), and their probability, shape (B,)."""
        classes_BWK, log_p_BW = self.search(memory_BTH, mask_BT, width=1)
        return classes_BWK[:, 0], log_p_BW[:, 0].exp()

    @torch.no_grad()
    def search(self, memory_BTH: Tensor, mask_BT: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Search the trie of known codes for each row's likeliest lists of codes, each code at most once, with a beam.

        Every symbol's probability is among those that the trie allows there, so those of all lists sum to 1. Memory
        depends on the depth of the trie, not on the number of codes.

        Returns:
            The classes of W = `width` lists, then -1, shape (B, W, K); and the logarithm of each list's probability,
            descending, -inf where there are fewer lists, shape (B, W).
        """
        num_rows, device, size = len(memory_BTH), memory_BTH.device, self.system.block_size
        children_NV, nodes_CS = (torch.from_numpy(each).to(device) for each in self.system.trie)
        num_codes_N = torch.bincount(nodes_CS.flatten(), minlength=len(children_NV))
        num_codes_N[nodes_CS[-1]] += self.system.max_codes  # PAD may repeat
        classes_N = torch.zeros_like(num_codes_N)
        classes_N[nodes_CS[:, -1]] = torch.arange(len(nodes_CS), device=device)
        classes_N[nodes_CS[-1, -1]] = -1
        decoder = IncrementalDecoder(self.layers, memory_BTH, mask_BT, self.system.sequence_length - 1, width)
        first_R = torch.arange(num_rows, device=device).repeat_interleave(width) * width
        symbol_BW = torch.full((num_rows, width), BOS, device=device)
        found_BWK = torch.zeros(num_rows, width, 0, dtype=torch.long, device=device)
        log_p_BW = torch.full((num_rows, width), -math.inf, device=device)
        log_p_BW[:, 0] = 0.0
        for block in range(self.system.max_codes):
            node_BW = torch.zeros_like(symbol_BW)
            for place in range(size):
                embedded_R1H = self.embed(symbol_BW.flatten()[:, None], block * size + place)
                logits_RV = self.speller(decoder.step(embedded_R1H[:, 0]))
                logits_BWV = logits_RV[:, : self.system.num_symbols].float().reshape(num_rows, width, -1)
                child_BWV = children_NV[node_BW]
                used_BWVK = child_BWV[..., None] == nodes_CS[found_BWK, place][:, :, None]
                is_free_BWV = (child_BWV >= 0) & (num_codes_N[child_BWV] > used_BWVK.sum(-1))
                if not place:
                    is_free_BWV[..., PAD] = block > 0  # at least one code
                    if block:
                        is_free_BWV[..., PAD + 1 :] &= (found_BWK[..., -1] >= 0)[..., None]  # after PAD only PAD
                log_p_BWV = logits_BWV.masked_fill(~is_free_BWV, -math.inf).log_softmax(-1)
                log_p_BWV = torch.where(is_free_BWV, log_p_BWV + log_p_BW[..., None], -math.inf)
                log_p_BW, best_BW = log_p_BWV.flatten(1).topk(width)
                from_BW, symbol_BW = best_BW // logits_BWV.shape[2], best_BW % logits_BWV.shape[2]
                node_BW = child_BWV.flatten(1).gather(1, best_BW)
                if width > 1:
                    found_BWK = found_BWK.gather(1, from_BW[..., None].expand_as(found_BWK))
                    decoder.reorder(first_R + from_BW.flatten())
            found_BWK = torch.cat([found_BWK, classes_N[node_BW][..., None]], dim=2)
        return found_BWK, log_p_BW

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
    each code, and for other systems than HISCO `chars.json`, the symbols. Fine-tuning takes a set's codes in the order
    of these rows. (OccCANINE's training adds 1 to the attention to PAD symbols, its prediction does not: as here.)
    """

    def add_parts(self, config: CanineConfig, canine: CanineModel) -> None:
        """Add the encoder and new heads, under the names that their files have."""
        self.base_model_prefix = config.published_encoder
        width, num_symbols = config.hidden_size, max(config.num_classes) + 1
        sizes = width, config.num_decoder_heads, config.decoder_dim_feedforward, config.hidden_dropout_prob
        layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, batch_first=True), config.num_decoder_layers)
        flat, head = nn.Linear(width, len(self.system.codes)), nn.Linear(width, num_symbols)
        places_L1 = torch.arange(max(_MOST_SYMBOLS, self.system.sequence_length))[:, None]
        angles_LH = places_L1 * 10_000 ** (-torch.arange(0, width, 2) / width)
        table_LH = torch.stack([angles_LH.sin(), angles_LH.cos()], dim=2).flatten(1)
        positions = nn.Module()
        positions.register_buffer("pos_embedding", table_LH[:, None])
        embedding = nn.ModuleDict({"embedding": nn.Embedding(num_symbols, width)})
        parts = {"token_emb": embedding, "positional_encoding": positions, "decoder": layers, "head": head}
        self.decoder = nn.ModuleDict(parts)
        self.add_module(config.published_encoder, canine)
        self.add_module(FLAT_HEADS[config.published_encoder], flat)
        for name, part in {"canine": canine, "flat": flat, "speller": head, "layers": layers}.items():
            object.__setattr__(self, name, part)  # no second name in the files

    def embed(self, symbols_BL: Tensor, first: int = 0) -> Tensor:
        """Return the embeddings of symbols, the first of which has the position `first`. Shape (B, L, H)."""
        positions_L1H = self.decoder["positional_encoding"].pos_embedding[first : first + symbols_BL.shape[1]]
        embedded_BLH = self.decoder["token_emb"]["embedding"](symbols_BL) * self.config.hidden_size**0.5
        return torch.add(embedded_BLH, positions_L1H[:, 0])

    def encode(self, inputs_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last hidden states of characters and padding, no mask, and the pooled output."""
        longest = self.config.sequence_length + -self.config.sequence_length % 4  # a multiple of CANINE's strides
        inputs_BT = nn.functional.pad(inputs_BT, (0, longest - inputs_BT.shape[1]))
        memory_BTH, mask_BT, pooled_BH = super().encode(inputs_BT)
        return memory_BTH, torch.zeros_like(mask_BT), pooled_BH

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write the model's folder, with the key and the symbols beside."""
        super().save_pretrained(save_directory, *args, **kwargs)
        folder, system = Path(save_directory), self.system
        (folder / "key.json").write_text(json.dumps(system.classes), encoding="utf-8")
        if system.formatter == "generic":
            (folder / "chars.json").write_text(json.dumps(system.symbols), encoding="utf-8")


def _classifier(config: CanineConfig, canine: CanineModel | None) -> TextClassifier:
    """Return a classifier of the layout that its config names, with new heads."""
    return (OccCANINEClassifier if hasattr(config, "published_encoder") else TextClassifier)(config, canine)


def build_classifier(
    config: TextClassificationConfig, system: CodeSystem, shares_C: Tensor, published: PublishedModel | None = None
) -> TextClassifier:
    """Build a classifier of the config's size, or around the pretrained CANINE that it names.

    Args:
        shares_C: frequency of each code in the training rows, for the initial bias of a new flat head.
        published: the files of the named model, if its heads are used, too.

    Raises:
        ConfigError: the named model cannot be loaded, is no CANINE, or does not fit.
    """
    scale = len(system.codes) if config.flat_loss_scale is None else config.flat_loss_scale
    heads: dict[str, Any] = {
        "code_system": system.to_json(),
        "clean": config.clean if config.files else "light",  # generated occupations are in lower case
        "flat_loss_scale": float(scale),
    }
    same = ("num_decoder_layers", "num_decoder_heads", "seq2seq_weight", "sequence_length")
    heads |= {name: getattr(config, name) for name in same}
    dropout: Any = {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.dropout}
    canine: Any = None
    if config.model_name is None:
        own = CanineConfig(**canine_settings(config))
    elif published is not None:
        own, heads = published.config, heads | published.settings
    else:
        canine = pretrained_models.load_model(CanineModel, config.model_name, "a CANINE", **dropout)
        own = canine.config
        if own.model_type not in MODEL_TYPES:
            raise ConfigError(f"model_name={config.model_name!r}: is a {own.model_type}; give a CANINE")
    own.update({**heads, **dropout, "model_type": "canine"})
    if own.hidden_size % own.num_decoder_heads:
        raise ConfigError(
            f"num_decoder_heads={own.num_decoder_heads}: must divide the width of {config.model_name}, "
            f"{own.hidden_size}"
        )
    classifier = _classifier(own, canine)
    pretrained_models.check_length(classifier, str(config.model_name), config.sequence_length)
    with torch.no_grad():
        # Initial bias at each code's frequency (Lin et al. 2017, arXiv 1708.02002): otherwise training first learns
        # that codes are rare.
        classifier.flat.bias.copy_(torch.logit(shares_C.clamp(1e-6, 0.999)))
    if published is not None:
        new_parts = dict(classifier.named_children()).keys() - {name.partition(".")[0] for name in published.stored}
        report = checkpoint.fill(classifier, published.stored, Path(str(config.model_name)), new_parts, WITHOUT_KEY)
        classifier.weights_report = report  # type: ignore[assignment]
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
