"""Loads nbval where an option asks for it: its imports would cost every other start of pytest 4 CPU seconds."""

import os
import sys

# A worker of pytest-xdist has the options, but not on its own command line.
if "PYTEST_XDIST_WORKER" in os.environ or any(word.startswith("--nbval") for word in sys.argv):
    pytest_plugins = ["nbval.plugin"]
