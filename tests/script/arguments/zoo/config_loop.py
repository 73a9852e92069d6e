"""An argument for each key of a YAML file."""

import argparse
import os

import yaml

with open(os.path.join(os.path.dirname(__file__), "config_loop.yaml")) as f:
    defaults = yaml.safe_load(f)
parser = argparse.ArgumentParser()
for key, value in defaults.items():
    parser.add_argument(f"--{key}", type=type(value), default=value)
args = parser.parse_args()
open(os.environ["ZOO_MARK"], "w").close()
