"""Runs the program, with its parsing libraries changed so that they describe their parser instead of parsing."""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import runpy
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from . import argparse_, constants_, sandbox
from .answer import SETTINGS, fail, failed

HOOKS = {"tyro": "tyro_", "torch.autograd": "run_to_parser"}
HOOKS.update(dict.fromkeys(("hydra._internal.hydra", "omegaconf.omegaconf"), "hydra_"))
HOOKS.update(dict.fromkeys(("click.core", "typer._click.core", "typer.core"), "click_"))
HOOKS.update(dict.fromkeys(("fire", "fire.core", "absl.app", "absl.flags._flagvalues"), "fire_absl"))
HOOKS.update(dict.fromkeys(("jsonargparse._core", "jsonargparse.core"), "jsonargparse_"))
"""Modules, and the module here whose `hook` changes each as soon as it is imported."""


class Finder(MetaPathFinder):
    """Finds the modules of parsing libraries where Python finds them, and changes them when they are imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Return the spec of a module to change, whose loader then changes it; None for all others."""
        if name not in HOOKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                importlib.import_module("." + HOOKS[name], __package__).hook(module)
            except (AttributeError, ImportError, TypeError):
                pass  # another version of the library: its own parser then ends the program

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def hook(module: Any) -> None:
    """Let torch end a program that begins to train."""

    def reached(*args: Any, **kwargs: Any) -> None:
        fail("ended", "it began to train before it read its command line, and was ended")

    module.backward = reached


def main() -> None:
    """Run the program that the first argument describes, in a process of its own."""
    SETTINGS.update(json.loads(sys.argv[1]))
    sandbox.hold()
    sys.addaudithook(sandbox.watch_files)
    sys.addaudithook(constants_.watch_exec)
    sys.argv = argparse_.Words([SETTINGS["script"]])
    sys.path.insert(0, SETTINGS["start"])
    sys.dont_write_bytecode = True
    argparse_.hook()
    sys.meta_path.insert(0, Finder())
    try:
        if SETTINGS["module"]:
            runpy.run_module(SETTINGS["module"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(SETTINGS["script"], run_name="__main__")
    except BaseException as error:
        argparse_.finish_recorded()
        failed(error)
    argparse_.finish_recorded()
    fail("ended", "the script ended without reading its command line")
