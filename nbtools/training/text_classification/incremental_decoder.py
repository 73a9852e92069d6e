"""A transformer decoder that reads one symbol at a time, and caches keys and values of earlier symbols.

It computes what `torch.nn.TransformerDecoder` with `batch_first` and without dropout computes for the last of all
symbols, without reading the earlier ones and the memory again.

Several sequences of a row, as in a beam search, share its characters' keys and values.

Shape suffixes: B batch, W sequences of a row, R all sequences (B W), T characters, H width, N heads, D width of a head,
L symbols.
"""

from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

_NO_NORMS = (nn.Identity(),) * 3


class IncrementalDecoder:
    """The decoder for one batch of memories, with `width` sequences for each."""

    def __init__(
        self, decoder: nn.TransformerDecoder, memory_BTH: Tensor, mask_BT: Tensor, longest: int, width: int = 1
    ) -> None:
        """Compute keys and values of the characters' hidden states; `mask_BT` is True for padding."""
        self._decoder = decoder
        self._is_text_B11T = ~mask_BT[:, None, None, :]
        self._memories = [_projected(layer.multihead_attn, memory_BTH, slice(1, 3)) for layer in decoder.layers]
        num, heads, _, size = self._memories[0][0].shape
        self._past = [[part.new_empty(width * num, heads, longest, size) for part in of] for of in self._memories]
        self._place = 0

    def reorder(self, sequences_R: Tensor) -> None:
        """Continue each sequence from the symbols of the given one."""
        self._past = [[states[sequences_R] for states in past] for past in self._past]

    def step(self, hidden_RH: Tensor) -> Tensor:
        """Read the embedding of each sequence's next symbol, and return its decoded state. Shape (R, H)."""
        x_R1H = hidden_RH[:, None]
        end = self._place + 1
        for layer, past, memory in zip(self._decoder.layers, self._past, self._memories, strict=True):
            norms = layer.norm1, layer.norm2, layer.norm3
            before, after = (norms, _NO_NORMS) if layer.norm_first else (_NO_NORMS, norms)
            attention = layer.self_attn
            query, *new = _projected(attention, before[0](x_R1H), slice(0, 3))
            for states, state in zip(past, new, strict=True):
                states[:, :, self._place : end] = state
            keys, values = (states[:, :, :end] for states in past)
            x_R1H = after[0](x_R1H + _attended(attention, query, keys, values))
            attention = layer.multihead_attn
            (query,) = _projected(attention, before[1](x_R1H).view(len(memory[0]), -1, x_R1H.shape[2]), slice(0, 1))
            read_R1H = _attended(attention, query, memory[0], memory[1], self._is_text_B11T).view_as(x_R1H)
            x_R1H = after[1](x_R1H + read_R1H)
            x_R1H = after[2](x_R1H + layer.linear2(layer.activation(layer.linear1(before[2](x_R1H)))))
        self._place = end
        decoded_R1H: Tensor = x_R1H if self._decoder.norm is None else self._decoder.norm(x_R1H)
        return decoded_R1H[:, 0]


def _projected(attention: nn.MultiheadAttention, x_BLH: Tensor, which: slice) -> list[Tensor]:
    """Return some of the queries, keys and values (0, 1, 2) of each head. Shapes (B, N, L, D)."""
    width, heads = attention.embed_dim, attention.num_heads
    rows = slice(which.start * width, which.stop * width)
    states = linear(x_BLH, attention.in_proj_weight[rows], attention.in_proj_bias[rows])
    parts = states.view(*x_BLH.shape[:2], which.stop - which.start, heads, width // heads)
    return list(parts.permute(2, 0, 3, 1, 4))


def _attended(
    attention: nn.MultiheadAttention, query: Tensor, keys: Tensor, values: Tensor, is_seen: Tensor | None = None
) -> Tensor:
    """Return the attention's output. Shape (B, L, H)."""
    output = scaled_dot_product_attention(query, keys, values, attn_mask=is_seen)
    attended: Tensor = attention.out_proj(output.transpose(1, 2).flatten(2))
    return attended
