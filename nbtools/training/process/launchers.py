"""The settings of `accelerate launch`, which it gives to its processes by the environment."""

from collections.abc import Mapping

from nbtools.errors import ConfigError, shown
from nbtools.script.values import TRUTHS

_PRECISION = "ACCELERATE_MIXED_PRECISION"


def precision(environment: Mapping[str, str]) -> str | None:
    """Return the precision given to accelerate, None for "no" (default); ConfigError if nbtools does not have it."""
    asked = environment.get(_PRECISION, "no").lower()
    if asked in ("no", ""):
        return None
    if asked not in ("fp16", "bf16"):
        raise ConfigError(
            f"{_PRECISION}={shown(asked)}: must be no, fp16 or bf16; pass --mixed_precision to accelerate"
        )
    return asked


def wants_cpu(environment: Mapping[str, str]) -> bool:
    """Return whether accelerate was called with `--cpu`."""
    return TRUTHS.get(environment.get("ACCELERATE_USE_CPU", "").lower(), False)


def notes(environment: Mapping[str, str]) -> list[str]:
    """Return a note for each accelerate setting that has no effect here."""
    kinds = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
    asked = [name for name in kinds if TRUTHS.get(environment.get(f"ACCELERATE_USE_{name}", "").lower())]
    return [f"accelerate's {name} is ignored: every process holds the whole model" for name in asked]
