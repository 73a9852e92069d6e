"""Configs that hydra composes, or that OmegaConf merges with the command line."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import os
from collections.abc import Iterator
from typing import Any

from . import answer
from .answer import Described

CONFIG_GROUP = "config group"


def hook(module: Any) -> None:
    """Let hydra end the program where it would compose its config, and OmegaConf where one takes the command line."""
    if module.__name__.startswith("omegaconf"):
        hook_omegaconf(module)
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # without it, hydra prints an error and exits

    def reached(self: Any, config_name: Any, *args: Any, **kwargs: Any) -> None:
        mode = importlib.import_module("hydra.types").RunMode.RUN
        config = self.compose_config(config_name=config_name, overrides=[], run_mode=mode, with_log_configuration=False)
        for group, choice in config.hydra.runtime.choices.items():
            options = [] if group.split("/")[0] == "hydra" else list(self.config_loader.get_group_options(group))
            if options:  # an optional group may have no file
                answer.ARGUMENTS.append(dict(hydra_key(group, choice, CONFIG_GROUP), choices=options, types=[]))
        answer.ARGUMENTS.extend(key for key in composed_keys(config) if not key["name"].startswith("hydra."))
        answer.finish("hydra")

    module.Hydra.run = module.Hydra.multirun = reached


def hook_omegaconf(module: Any) -> None:
    """Let a config that is merged with the command line end the program."""
    container = importlib.import_module("omegaconf.basecontainer").BaseContainer
    load, merge_with = module.OmegaConf.load, container.merge_with

    class CommandLine(module.DictConfig):  # type: ignore[misc]
        """The words of the command line: none, and the program needs the keys that it reads."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                return super().__getattr__(name)
            answer.ARGUMENTS.append(hydra_key(name, None, "", is_missing=True))
            return ""

        def __delattr__(self, name: str) -> None:
            """Leave out what is not there."""

    def reached(self: Any, *others: Any) -> None:
        merge_with(self, *(each for each in others if not isinstance(each, CommandLine)))
        if any(isinstance(each, CommandLine) for each in others):
            answer.ARGUMENTS.extend(composed_keys(self))
            answer.finish("config file")

    container.merge_with = reached
    module.OmegaConf.from_cli = staticmethod(lambda args_list=None: CommandLine({}))
    module.OmegaConf.load = staticmethod(
        lambda file: load(file) if str(file) not in ("", ".") else module.DictConfig({})
    )


def composed_keys(config: Any, prefix: str = "") -> Iterator[Described]:
    """Yield the keys of a config as arguments."""
    omegaconf = importlib.import_module("omegaconf")
    for name in config:
        raw, is_missing = config._get_node(name), omegaconf.OmegaConf.is_missing(config, name)
        if (
            isinstance(raw, omegaconf.DictConfig)
            and raw._is_none()
            and dataclasses.is_dataclass(raw._metadata.ref_type)
        ):
            raw = omegaconf.OmegaConf.structured(raw._metadata.ref_type)  # a key makes it
        if isinstance(raw, omegaconf.DictConfig) and len(raw):
            yield from composed_keys(raw, "%s%s." % (prefix, name))
            continue
        is_list = isinstance(raw, omegaconf.ListConfig) and not raw._is_none()
        value = omegaconf.OmegaConf.to_container(raw, resolve=False) if is_list else raw._value()
        yield hydra_key("%s%s" % (prefix, name), None if is_missing else value, "", raw, is_missing)


def hydra_key(name: str, value: Any, group: str, node: Any = None, is_missing: bool = False) -> Described:
    """Return one key of a config as an argument."""
    is_list = type(node).__name__ == "ListConfig"
    kind = getattr(getattr(node, "_metadata", None), "element_type" if is_list else "ref_type", None)
    choices = [member.name for member in kind] if inspect.isclass(kind) and issubclass(kind, enum.Enum) else None
    value = value.name if choices and isinstance(value, enum.Enum) else answer.as_plain(value)
    is_interpolation = isinstance(value, str) and "${" in value
    entries = answer.value_entries(None if is_interpolation else value, kind)
    entries.update({"default_text": value} if is_interpolation else {}, name=name, flags=[name], action="key_value")
    entries.update({"types": []} if choices else {}, choices=choices, truth=["true", "false"], is_list=is_list)
    entries.update(is_required=is_missing, is_optional=value is None and not is_missing)
    return dict(entries, group=group or name.rpartition(".")[0], help="one of the config group" if group else "")
