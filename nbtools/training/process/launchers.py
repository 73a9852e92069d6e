"""The launcher of this process, and its settings in the environment.

torchrun, `python -m torch.distributed.launch`, `accelerate launch` and plain `python` all start the same script.
"""

from collections.abc import Mapping, Sequence

from nbtools.errors import ConfigError, shown
from nbtools.rundir.rundir import RUN_DIR_VARIABLE
from nbtools.script.values import TRUTHS
from nbtools.training.process.rank_environment import STARTER

_PRECISION = "ACCELERATE_MIXED_PRECISION"
_SHARDED = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}


def name(environment: Mapping[str, str], args: Sequence[str]) -> str:
    """Return the launcher's name; torch.distributed.launch passes `--local-rank` in `args`."""
    if _PRECISION in environment:
        return "accelerate launch"
    if any(argument.replace("_", "-").startswith("--local-rank") for argument in args):
        return "torch.distributed.launch"
    if "TORCHELASTIC_RUN_ID" in environment:
        return "nbtools launch" if RUN_DIR_VARIABLE in environment else "torchrun"
    if STARTER in environment:
        return environment[STARTER]
    return "a launcher that sets WORLD_SIZE" if "WORLD_SIZE" in environment else "python"


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
    asked = [words for variable, words in _SHARDED.items() if TRUTHS.get(environment.get(variable, "").lower())]
    return [f"accelerate's {words} is ignored: every process holds the whole model" for words in asked]
