"""Loads nbval where an option asks for it: its imports would cost every other start of pytest 4 CPU seconds."""

import sys

if any(word.startswith("--nbval") for word in sys.argv):
    pytest_plugins = ["nbval.plugin"]
