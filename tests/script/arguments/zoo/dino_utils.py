"""What the DINO script imports."""

import argparse

SEED = 0
ARCHS = ["resnet50"]


def bool_flag(s):
    """Parse boolean arguments from the command line."""
    FALSY_STRINGS = {"off", "false", "0"}
    TRUTHY_STRINGS = {"on", "true", "1"}
    if s.lower() in FALSY_STRINGS:
        return False
    if s.lower() in TRUTHY_STRINGS:
        return True
    raise argparse.ArgumentTypeError("invalid value for a boolean flag")
