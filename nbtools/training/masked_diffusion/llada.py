"""LLaDA (Nie et al. 2025, arXiv 2502.09992): a bidirectional Llama under LLaDA's own names of weights and settings.

It reads and writes the files of GSAI-ML/LLaDA-8B-Base, LLaDA-8B-Instruct and LLaDA-1.5 without any code from the hub.

Shape suffixes: B batch, T positions, H width, N heads, D width of a head, V rows of the table of tokens.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from transformers.utils.hub import cached_file

from nbtools.errors import ConfigError
from nbtools.training.text import pretrained_models

_ONLY: dict[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "block_group_size": (1,),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "bias_for_layer_norm": (False, None),
    **dict.fromkeys(("attention_layer_norm", "alibi", "input_emb_norm", "scale_logits"), (False,)),
    "clip_qkv": (None,),
    "activation_type": ("silu",),
    "rope": (True,),
}
"""Settings of the format with their only values here, which are those of the published models; the first is assumed."""
_COMPANIONS = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
"""Files of the published models that are kept byte for byte, besides their Python code, which is never run."""


class LLaDAConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Settings under LLaDA's names; those without effect here are kept for other programs."""

    model_type = "llada"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "mlp_hidden_size",
        "max_position_embeddings": "max_sequence_length",
        "initializer_range": "init_std",
    }
    d_model: int = 4096
    n_heads: int = 32
    n_layers: int = 32
    n_kv_heads: int | None = None
    multi_query_attention: bool | None = None
    mlp_hidden_size: int | None = None
    mlp_ratio: int = 4
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    max_sequence_length: int = 4096
    vocab_size: int = 126_464
    embedding_size: int | None = None
    weight_tying: bool = False
    include_bias: bool = False
    include_qkv_bias: bool | None = False
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    init_std: float = 0.02
    mask_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    use_cache: bool = False

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the settings for config.json; LLaDA's own code reads the dtype as `torch_dtype`."""
        values: dict[str, Any] = super().to_diff_dict()
        if "dtype" in values:
            values["torch_dtype"] = values.pop("dtype")
        return values

    @property
    def num_rows(self) -> int:
        """Rows of the table of tokens; those from `vocab_size` on only round up its size."""
        return self.embedding_size or self.vocab_size

    @property
    def num_kv_heads(self) -> int:
        """Number of key-value heads; each is shared by the same number of query heads."""
        return self.n_kv_heads or (1 if self.multi_query_attention else self.n_heads)


class Block(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]
    """Attention over all positions, then a gated feed-forward layer, each behind a norm and around a shortcut."""

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        width, inside = config.d_model, config.mlp_hidden_size or config.mlp_ratio * config.d_model
        kv_width = config.d_model // config.n_heads * config.num_kv_heads
        bias, qkv_bias = config.include_bias, bool(config.include_bias or config.include_qkv_bias)
        self.num_heads, self.num_kv_heads = config.n_heads, config.num_kv_heads
        self.attention_dropout = config.attention_dropout
        self.dropout = nn.Dropout(config.residual_dropout)
        self.attn_norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.q_proj = nn.Linear(width, width, bias=qkv_bias)
        self.k_proj = nn.Linear(width, kv_width, bias=qkv_bias)
        self.v_proj = nn.Linear(width, kv_width, bias=qkv_bias)
        self.attn_out = nn.Linear(width, width, bias=bias)
        self.ff_norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.ff_proj = nn.Linear(width, inside, bias=bias)
        self.up_proj = nn.Linear(width, inside, bias=bias)
        self.ff_out = nn.Linear(inside, width, bias=bias)

    def forward(self, hidden_BTH: Tensor, cos_1TD: Tensor, sin_1TD: Tensor, attended_B11T: Tensor | None) -> Tensor:
        """Return the hidden states after this layer."""
        mixed_BTH = self._attention(self.attn_norm(hidden_BTH), cos_1TD, sin_1TD, attended_B11T)
        hidden_BTH = hidden_BTH + self.dropout(mixed_BTH)
        normed_BTH = self.ff_norm(hidden_BTH)
        gated = functional.silu(self.ff_proj(normed_BTH)) * self.up_proj(normed_BTH)
        result_BTH: Tensor = hidden_BTH + self.dropout(self.ff_out(gated))
        return result_BTH

    def _attention(self, normed_BTH: Tensor, cos_1TD: Tensor, sin_1TD: Tensor, attended_B11T: Tensor | None) -> Tensor:
        query_BNTD = _heads(self.q_proj(normed_BTH), self.num_heads)
        key_BNTD = _heads(self.k_proj(normed_BTH), self.num_kv_heads)
        value_BNTD = _heads(self.v_proj(normed_BTH), self.num_kv_heads)
        # Positions are applied in fp32 at every precision, as `rope_full_precision` of the published models says.
        query_BNTD, key_BNTD = apply_rotary_pos_emb(query_BNTD.float(), key_BNTD.float(), cos_1TD, sin_1TD)
        shared = self.num_heads // self.num_kv_heads
        mixed_BNTD = functional.scaled_dot_product_attention(
            query_BNTD.to(value_BNTD.dtype),
            key_BNTD.to(value_BNTD.dtype).repeat_interleave(shared, dim=1),
            value_BNTD.repeat_interleave(shared, dim=1),
            attn_mask=attended_B11T,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        attended: Tensor = self.attn_out(mixed_BNTD.transpose(1, 2).flatten(2))
        return attended


class LLaDAModelLM(PreTrainedModel):  # type: ignore[no-untyped-call]
    """LLaDA under the name of its published class; `save_pretrained` writes LLaDA's format."""

    config: LLaDAConfig
    companions: dict[str, bytes]
    """Files beside the weights of the loaded folder or hub id, which LLaDA's own code needs."""
    config_class = LLaDAConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__(config)
        parts: dict[str, nn.Module] = {
            "wte": nn.Embedding(config.num_rows, config.d_model),
            "emb_drop": nn.Dropout(config.embedding_dropout),
            "blocks": nn.ModuleList(Block(config) for _ in range(config.n_layers)),
            "ln_f": LlamaRMSNorm(config.d_model, eps=config.rms_norm_eps),
        }
        if not config.weight_tying:
            parts["ff_out"] = nn.Linear(config.d_model, config.num_rows, bias=config.include_bias)
        self.model = nn.ModuleDict({"transformer": nn.ModuleDict(parts)})
        self.companions = {}
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of tokens."""
        return self._part("wte")

    def get_output_embeddings(self) -> nn.Module:
        """Return what makes logits, which may be the table of tokens, too."""
        return self._part("wte" if self.config.weight_tying else "ff_out")

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> MaskedLMOutput:
        """Return logits of shape (B, T, V).

        `attention_mask` is 0 at positions that no other one attends to; or, of shape (B, T, T), for each one.
        """
        return MaskedLMOutput(logits=self.head(self.hidden(input_ids, attention_mask)))

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the hidden states after the last norm. Shape (B, T, H)."""
        attended_B1TT = None if attention_mask is None else attention_mask.bool()[:, None]
        if attended_B1TT is not None and attended_B1TT.ndim == 3:
            attended_B1TT = attended_B1TT[:, None]
        cos_1TD, sin_1TD = self._rotations(input_ids)
        hidden_BTH: Tensor = self._part("emb_drop")(self._part("wte")(input_ids))
        for block in self._part("blocks").children():
            hidden_BTH = block(hidden_BTH, cos_1TD, sin_1TD, attended_B1TT)
        normed_BTH: Tensor = self._part("ln_f")(hidden_BTH)
        return normed_BTH

    def head(self, hidden_KH: Tensor) -> Tensor:
        """Return the logits of hidden states, one for each row of the table of tokens. Shape (…, V)."""
        if self.config.weight_tying:
            return functional.linear(hidden_KH, self._part("wte").get_parameter("weight"))
        logits_KV: Tensor = self._part("ff_out")(hidden_KH)
        return logits_KV

    def _rotations(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        width = self.config.d_model // self.config.n_heads
        halves = torch.arange(0, width, 2, dtype=torch.float32, device=input_ids.device) / width
        positions_T = torch.arange(input_ids.shape[1], dtype=torch.float32, device=input_ids.device)
        angles_1TD = (positions_T[:, None] / self.config.rope_theta**halves).repeat(1, 2)[None]
        return angles_1TD.cos(), angles_1TD.sin()

    def _part(self, name: str) -> nn.Module:
        part: nn.Module = self.model.get_submodule(f"transformer.{name}")
        return part


def _heads(hidden_BTH: Tensor, num_heads: int) -> Tensor:
    return hidden_BTH.view(*hidden_BTH.shape[:2], num_heads, -1).transpose(1, 2)


def load_llada(model_name: str, *, dropout: float | None = None) -> LLaDAModelLM:
    """Load a LLaDA from a folder or hub id, with fp32 weights, one tensor at a time.

    Args:
        dropout: replaces those of its config; None keeps them.

    Raises:
        ConfigError: weights are missing, unknown or of another shape, or a setting has a value that is not supported.
    """
    config = LLaDAConfig.from_pretrained(model_name, trust_remote_code=False)
    for name, allowed in _ONLY.items():
        if (value := getattr(config, name, allowed[0])) not in allowed:
            raise ConfigError(
                f"model_name={model_name!r}: {name}={value!r} in its config.json; a LLaDA must have {allowed[0]!r}, as "
                "GSAI-ML/LLaDA-8B-Instruct has"
            )
    if dropout is not None:
        config.attention_dropout = config.residual_dropout = config.embedding_dropout = dropout
    for whole, part in ((config.d_model, config.n_heads), (config.n_heads, config.num_kv_heads)):
        if whole % part:
            raise ConfigError(f"model_name={model_name!r}: {whole} cannot be divided by {part} in its config.json")
    model: Any = pretrained_models.load_model(LLaDAModelLM, model_name, "LLaDA", config=config)
    report = getattr(model, "weights_report", None)
    if report is not None and (names := report.unexpected):
        raise ConfigError(
            f"model_name={model_name!r}: {len(names)} unexpected weights, such as {names[0]}; give a folder or hub id "
            "with a whole LLaDA"
        )
    model.companions = _companions(model_name, config)
    llada: LLaDAModelLM = model
    return llada


def _companions(model_name: str, config: LLaDAConfig) -> dict[str, bytes]:
    """Read the files beside the weights now: the folder may not exist when a checkpoint is written."""
    code = " ".join(map(str, (getattr(config, "auto_map", None) or {}).values()))
    names = {*_COMPANIONS, *(f"{module}.py" for module in re.findall(r"(\w+)\.\w+", code))}
    names |= {path.name for path in Path(model_name).glob("*.py")}
    options = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    found = {name: cached_file(model_name, name, **options) for name in sorted(names)}
    return {name: Path(path).read_bytes() for name, path in found.items() if path is not None}
