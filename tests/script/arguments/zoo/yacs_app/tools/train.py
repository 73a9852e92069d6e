"""Words `KEY value` behind the flags, which change a yacs config in a folder that a module adds, as in HRNet."""

import argparse
import os

import _init_paths  # noqa: F401
from settings import config, update_config


def main():
    parser = argparse.ArgumentParser(description="Train a segmentation network")
    parser.add_argument("--cfg", help="yaml file of the experiment", required=True, type=str)
    parser.add_argument("opts", help="Change config options", default=None, nargs=argparse.REMAINDER)
    args = parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()
    update_config(config, args)


if __name__ == "__main__":
    main()
