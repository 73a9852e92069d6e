"""Fields and sizes of an adapter: LoRA (Hu et al. 2021, arXiv 2106.09685) on the frozen weights of a named model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nbtools.config import setting

Adapter = Literal["none", "lora"]


def adapter() -> Any:
    """Declare the field that chooses an adapter."""
    return setting(
        "none",
        "lora trains two thin matrices beside each chosen layer of `model_name`, whose own weights stay as they are; "
        "checkpoints hold the new weights alone, and `nbtools export` merges them. none trains all weights.",
        shapes=True,
    )


def rank() -> Any:
    """Declare the rank of the adapter's matrices."""
    return setting(16, "Rank of the adapter's matrices.", "dimensions", ge=1, le=16_384, shapes=True)


def alpha() -> Any:
    """Declare the scale of the adapter's products."""
    return setting(
        32, "Scale of the adapter: its products are multiplied by lora_alpha / lora_rank.", ge=1, shapes=True
    )


def targets() -> Any:
    """Declare the layers that get an adapter."""
    return setting(
        None,
        "Layers of `model_name` that get an adapter, such as q_proj,v_proj; None for those that peft takes for its "
        "architecture, and all of LLaDA's.",
        shapes=True,
    )


def check_adapter(config: Any) -> None:
    """Check that an adapter has a model to adapt.

    Raises:
        ValueError: what was given and what is allowed.
    """
    if config.adapter != "none" and config.model_name is None:
        raise ValueError(
            f"adapter={config.adapter!r}: adapts a pretrained model; give model_name, or adapter='none' to train all "
            "weights of a new one"
        )
    if config.lora_targets == ():
        raise ValueError("lora_targets: name at least one layer, or None for the usual ones")


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
        """Return the memory of all weights, and of gradients and moments of those that train."""
        each = 2 if precision in ("bf16", "fp16") else 4
        return 16 * self.num_trained + each * self.num_linear + 4 * self.num_others


def num_lora_parameters(config: Any, layers: Mapping[str, tuple[int, int]], num_blocks: int) -> int:
    """Return the number of weights of an adapter on `layers`: inputs and outputs in a block, by name."""
    targets = layers if config.lora_targets is None else config.lora_targets
    rank: int = config.lora_rank
    return num_blocks * rank * sum(sum(layers.get(name, (0, 0))) for name in targets)
