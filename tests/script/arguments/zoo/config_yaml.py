"""A YAML config by a flag with another dest, read with `with open`, as in PyTorch-VAE."""

import argparse
import os

import yaml

parser = argparse.ArgumentParser(description="Generic runner for autoencoders")
parser.add_argument(
    "--config", "-c", dest="filename", metavar="FILE", help="path to the config file", default="config_yaml.yaml"
)
args = parser.parse_args()
with open(os.environ.get("ZOO_MARK", os.devnull), "w") as mark:
    mark.write("executed")
with open(args.filename, "r") as file:
    try:
        config = yaml.safe_load(file)
    except yaml.YAMLError as error:
        print(error)
