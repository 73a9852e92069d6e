"""Fields and sizes of an adapter: LoRA (Hu et al. 2021, arXiv 2106.09685) on the frozen weights of a named model."""

from dataclasses import dataclass
from typing import Any, Literal

from nbtools.settings import setting

Adapter = Literal["none", "lora"]
DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"), ("q_proj", "v_proj")),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "canine"), ("query", "value")),
    "gpt2": ("c_attn",),
    "llada": ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"),
    "distilbert": ("q_lin", "v_lin"),
    "modernbert": ("Wqkv",),
}
"""Layers with an adapter, by architecture: those of peft, where it has some."""


# Fields of the recipes that can train an adapter.
ADAPTER: Any = setting(
    "none",
    "lora trains two thin matrices beside each chosen layer of `model_name`, whose own weights stay as they are; "
    "checkpoints hold the new weights alone, and `nbtools export` merges them. none trains all weights.",
    shapes=True,
)
RANK: Any = setting(16, "Rank of the adapter's matrices.", "dimensions", ge=1, le=16_384, shapes=True)
ALPHA: Any = setting(32, "Scale of the adapter: products are multiplied by lora_alpha / lora_rank.", ge=1, shapes=True)
TARGETS: Any = setting(
    None,
    "Layers of `model_name` that get an adapter, such as q_proj,v_proj; None for those that peft takes for its "
    "architecture, and all of LLaDA's.",
    shapes=True,
)


def check_adapter(config: Any) -> None:
    """Check that an adapter has a model to adapt, or raise ValueError."""
    if config.adapter != "none" and config.model_name is None:
        raise ValueError(
            f"adapter={config.adapter!r}: adapts a pretrained model; give model_name, or adapter='none' to train all "
            "weights of a new one"
        )
    if config.lora_targets == ():
        raise ValueError("lora_targets: name at least one layer, or None for the default")


def is_adapted(config: Any) -> bool:
    """Whether a config trains an adapter on frozen weights."""
    return getattr(config, "adapter", "none") != "none"


@dataclass(frozen=True)
class AdapterSizes:
    """Numbers of weights of a training with an adapter."""

    num_trained: int
    num_linear: int
    """Frozen weights of linear layers, which are held in bf16 or fp16 if that is the precision."""
    num_others: int
    """Frozen weights that stay fp32: tables of tokens and norms."""

    def num_bytes(self, precision: str) -> int:
        """Return the memory of all weights, and of the gradients and moments of the trained ones."""
        each = 2 if precision in ("bf16", "fp16") else 4
        return 16 * self.num_trained + each * self.num_linear + 4 * self.num_others
