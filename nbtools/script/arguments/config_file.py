"""The keys of the config file that an argument of a program names, as arguments."""

from pathlib import Path

from nbtools.script.arguments.arguments import Argument, ScriptArguments, as_key, made_field
from nbtools.script.config_copy import LANGUAGE, leaves, load_config, types_of


def keys_of_config(path: Path, label: str) -> ScriptArguments | None:
    """Return the keys of a config as arguments `a.b=value`; None if it is no YAML, JSON or TOML file with keys."""
    if (config := load_config(path)) is None:
        return None
    found = []
    for name, value in leaves(config):
        group = name.rpartition(".")[0]
        field = made_field(name, types=types_of(value), default=value, group=group, source=label)
        found.append(as_key(Argument(field)))
    return ScriptArguments(path, LANGUAGE, tuple(found), is_complete=True)
