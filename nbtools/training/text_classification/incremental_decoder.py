"""A transformer decoder that reads one symbol at a time, and caches keys and values of earlier symbols.

It computes what `torch.nn.TransformerDecoder` with `batch_first` and without dropout computes for the last of all
symbols, without reading the earlier ones and the memory again.

Shape suffixes: B batch, T characters, H width, N heads, D width of a head, L symbols.
"""

from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

_NO_NORMS = (nn.Identity(),) * 3


class IncrementalDecoder:
    """The decoder for one batch of memories."""

    def __init__(self, decoder: nn.TransformerDecoder, memory_BTH: Tensor, mask_BT: Tensor, longest: int) -> None:
        """Compute keys and values of the characters' hidden states; `mask_BT` is True for padding."""
        self._decoder = decoder
        self._is_text_B11T = ~mask_BT[:, None, None, :]
        self._memories = [_projected(layer.multihead_attn, memory_BTH, slice(1, 3)) for layer in decoder.layers]
        self._past = [[part.new_empty(*part.shape[:2], longest, part.shape[3]) for part in of] for of in self._memories]
        self._place = 0

    def step(self, hidden_BH: Tensor) -> Tensor:
        """Read the embedding of the next symbol, and return its decoded state. Shape (B, H)."""
        x_B1H = hidden_BH[:, None]
        end = self._place + 1
        for layer, past, memory in zip(self._decoder.layers, self._past, self._memories, strict=True):
            norms = layer.norm1, layer.norm2, layer.norm3
            before, after = (norms, _NO_NORMS) if layer.norm_first else (_NO_NORMS, norms)
            attention = layer.self_attn
            query, *new = _projected(attention, before[0](x_B1H), slice(0, 3))
            for states, state in zip(past, new, strict=True):
                states[:, :, self._place : end] = state
            keys, values = (states[:, :, :end] for states in past)
            x_B1H = after[0](x_B1H + _attended(attention, query, keys, values))
            attention = layer.multihead_attn
            (query,) = _projected(attention, before[1](x_B1H), slice(0, 1))
            x_B1H = after[1](x_B1H + _attended(attention, query, memory[0], memory[1], self._is_text_B11T))
            x_B1H = after[2](x_B1H + layer.linear2(layer.activation(layer.linear1(before[2](x_B1H)))))
        self._place = end
        decoded_B1H: Tensor = x_B1H if self._decoder.norm is None else self._decoder.norm(x_B1H)
        return decoded_B1H[:, 0]


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
    """Return the attention's output. Shape (B, 1, H)."""
    output = scaled_dot_product_attention(query, keys, values, attn_mask=is_seen)
    attended: Tensor = attention.out_proj(output.transpose(1, 2).flatten(2))
    return attended
