"""nbtools: author training configs in a notebook, launch them with torchrun in the background, watch them live.

The public names, which are in `__init__.pyi`, load on first use: `import nbtools` takes milliseconds and loads neither
torch nor ipywidgets.
"""

from importlib import import_module
from typing import Any

from lazy_loader import attach_stub

_load, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "media":  # a module, which its package does not import
        import_module("nbtools.rundir.media")
    return _load(name)
