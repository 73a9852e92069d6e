"""The keys of the config file that an argument of a program names, as arguments."""

from pathlib import Path

from nbtools.script.arguments.arguments import ScriptArguments, argument_of
from nbtools.script.config_copy import LANGUAGE, TRUTH, leaves, load_config, types_of
from nbtools.script.values import element_type


def keys_of_config(path: Path, label: str) -> ScriptArguments | None:
    """Return the keys of a config as arguments `a.b=value`; None if it is no YAML, JSON or TOML file with keys."""
    if (config := load_config(path)) is None:
        return None
    found = []
    for name, value in leaves(config):
        kind, told = element_type(types_of(value)[0]).__name__, {"group": name.rpartition(".")[0], "source": label}
        key = {"name": name, "flags": [name], "action": "key_value", "truth": TRUTH, "default": value, **told}
        found.append(argument_of(key | {"types": [kind], "is_list": isinstance(value, tuple)}))
    return ScriptArguments(path, LANGUAGE, tuple(found), is_complete=True)
