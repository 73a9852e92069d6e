"""A YAML file merged with key=value from the command line."""

import os

from omegaconf import OmegaConf

config = OmegaConf.merge(OmegaConf.load("omegaconf_app.yaml"), OmegaConf.from_cli())
open(os.environ["ZOO_MARK"], "w").close()
