"""`ScriptArguments`: the arguments that a script declares, as fields of a form and as words of a command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbtools.script.field import Field

Action = Literal["store", "store_true", "store_false", "optional_bool", "append", "count", "key_value"]
"""How words become a value: `--lr 1e-3`; `--fp16`; `--no-cache`; `--x`/`--no-x`; one flag per value; `-vv`;
`key=value` without dashes (hydra)."""


@dataclass(frozen=True)
class Argument:
    """An argument of a script."""

    field: Field
    flags: tuple[str, ...] = ()
    """Spellings, the one to write first; empty for a positional argument."""
    negative_flags: tuple[str, ...] = ()
    """Spellings that turn an `optional_bool` off."""
    action: Action = "store"
    nargs: int | Literal["?", "*", "+"] | None = None
    """Number of values, as argparse has it; None for one."""
    exclusive: str = ""
    """Arguments with the same text here exclude each other."""
    command: tuple[str, ...] = ()
    """The sub-command that it belongs to; empty for all."""


@dataclass(frozen=True)
class ScriptArguments:
    """The arguments of one script."""

    script: Path
    parser: str
    """Library that parses: `argparse`, `HfArgumentParser`, `tyro`, `click`, `typer`, `hydra`, `absl`, `jsonargparse`,
    `LightningCLI`, `fire`, `constants` (module constants read by a configurator), `config file`; empty for none."""
    arguments: tuple[Argument, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    """Paths of the sub-commands; empty without any."""
    is_complete: bool = False
    """Whether all arguments are known."""
    can_ask: bool = False
    """Whether running the script up to its parser would tell more."""
    notes: tuple[str, ...] = ()
    """What was found and what was not, a sentence each, with file and line."""

    def words(self, values: Mapping[str, Any], command: Sequence[str] = (), extra: Sequence[str] = ()) -> list[str]:
        """Return the words of a command line for the values that differ from their defaults.

        Args:
            values: values by the name of the field.
            command: path of the sub-command.
            extra: further words, which come last.

        Raises:
            ConfigError: a required value is missing, a value is not allowed, or two exclude each other.
        """
        raise NotImplementedError

    def read(self, words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...], list[str]]:
        """Return the values in the words of a command line, the sub-command, and the words that no argument takes."""
        raise NotImplementedError
