"""Loads this folder under a name that no module of a program has, and starts it."""

import importlib
import importlib.util
import os
import sys

NAME = "nbtools_intercept"


def main() -> None:
    """Run the program that the first argument describes."""
    folder = os.path.dirname(os.path.abspath(__file__))
    init = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(NAME, init, submodule_search_locations=[folder])
    assert spec is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != folder]
    importlib.import_module(NAME + ".run_to_parser").main()


if __name__ == "__main__":
    main()
