"""A parser that a loop over a class builds: only the program knows its arguments."""

import argparse
import os


def settings():
    return type("Settings", (), {"width": 64, "name": "base", "rate": 0.5})


parser = argparse.ArgumentParser()
parser.add_argument("--fixed", type=int, default=1)
for key, value in vars(settings()).items():
    if not key.startswith("_"):
        parser.add_argument("--" + key, type=type(value), default=value)
args = parser.parse_args()
open(os.environ["ZOO_MARK"], "w").close()
