"""Files of settings as positional words, and an exclusive group, as in GPT-NeoX."""

import argparse
import os


def consume_neox_args():
    parser = argparse.ArgumentParser(description="GPT-NeoX Configuration", allow_abbrev=False)
    group = parser.add_argument_group(title="Training Configuration")
    group.add_argument("user_script", type=str, help="User script to launch, followed by any required arguments.")
    group.add_argument(
        "--conf_dir", "-d", type=str, default=None, help="Directory to prefix to all configuration file paths"
    )
    group.add_argument("conf_file", type=str, nargs="+", help="Configuration file path.")
    group = parser.add_argument_group(title="Weights and Biases monitoring")
    exclusive = group.add_mutually_exclusive_group()
    exclusive.add_argument("--wandb_group", type=str, default=None, help="Weights & Biases group name")
    exclusive.add_argument("--wandb_team", type=str, default=None, help="Team name for Weights & Biases.")
    return parser.parse_args()


if __name__ == "__main__":
    args = consume_neox_args()
    open(os.environ["ZOO_MARK"], "w").close()
