"""Configs that hydra composes."""

from __future__ import annotations

import enum
import importlib
import inspect
import os
from typing import Any

from . import answer
from .answer import Described

CONFIG_GROUP = "config group"


def hook(module: Any) -> None:
    """Let hydra end the program where it would compose its config and start the task."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # without it, hydra prints an error and exits

    def reached(self: Any, config_name: Any, *args: Any, **kwargs: Any) -> None:
        mode = importlib.import_module("hydra.types").RunMode.RUN
        config = self.compose_config(config_name=config_name, overrides=[], run_mode=mode, with_log_configuration=False)
        answer.ARGUMENTS.extend(describe_hydra(config, self.config_loader))
        answer.finish("hydra")

    module.Hydra.run = module.Hydra.multirun = reached


def describe_hydra(config: Any, loader: Any) -> list[Described]:
    """Return the config groups and the keys of a composed config."""
    omegaconf = importlib.import_module("omegaconf")
    found = []
    for group, choice in config.hydra.runtime.choices.items():
        options = [] if group.split("/")[0] == "hydra" else list(loader.get_group_options(group))
        if options:  # an optional group may have no file
            found.append(dict(hydra_key(group, choice, CONFIG_GROUP), choices=options, types=[]))

    def walk(node: Any, prefix: str) -> None:
        for name in (name for name in node if prefix or name != "hydra"):
            raw, is_missing = node._get_node(name), omegaconf.OmegaConf.is_missing(node, name)
            is_group = isinstance(raw, omegaconf.DictConfig) and not (raw._is_none() or raw._is_interpolation())
            if is_group and not is_missing:
                walk(raw, "%s%s." % (prefix, name))
                continue
            is_list = isinstance(raw, omegaconf.ListConfig)
            value = omegaconf.OmegaConf.to_container(raw, resolve=False) if is_list else raw._value()
            found.append(hydra_key("%s%s" % (prefix, name), None if is_missing else value, "", raw, is_missing))

    walk(config, "")
    return found


def hydra_key(name: str, value: Any, group: str, node: Any = None, is_missing: bool = False) -> Described:
    """Return one key of a config as an argument."""
    kind = getattr(getattr(node, "_metadata", None), "ref_type", None)
    choices = [member.name for member in kind] if inspect.isclass(kind) and issubclass(kind, enum.Enum) else None
    value = value.name if choices and isinstance(value, enum.Enum) else answer.as_plain(value)
    first = (value or [""])[0] if isinstance(value, list) else value
    named = kind if kind in answer.NAMED and not isinstance(value, list) else type(first)
    types = [] if choices else [answer.NAMED.get(named, "str")]
    is_interpolation = isinstance(value, str) and "${" in value
    entries = answer.default_of(None if is_interpolation else value)
    entries.update({"default_text": value} if is_interpolation else {}, name=name, flags=[name], action="key_value")
    entries.update(types=types, choices=choices, truth=["true", "false"], is_list=isinstance(value, list))
    entries.update(is_required=is_missing, is_optional=value is None and not is_missing)
    return dict(entries, group=group or name.rpartition(".")[0], help="one of the config group" if group else "")
