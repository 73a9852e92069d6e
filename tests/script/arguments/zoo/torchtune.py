"""A parser of its own class that reads a config first, as in torchtune's recipes."""

import argparse
import os
from typing import Any

from omegaconf import OmegaConf


class TuneRecipeArgumentParser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        super().add_argument("--config", type=str, help="Path/name of a yaml file with recipe args", required=True)

    def parse_known_args(self, *args: Any, **kwargs: Any):
        namespace, unknown_args = super().parse_known_args(*args, **kwargs)
        config = OmegaConf.load(namespace.config)
        self.set_defaults(**config)
        return super().parse_known_args(*args, **kwargs)


def main():
    parser = TuneRecipeArgumentParser(description="x", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="/tmp/out")
    args, overrides = parser.parse_known_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
