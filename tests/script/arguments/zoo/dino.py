"""A type function for truth values in another module, as in DINO."""

import argparse
import os

import dino_utils as utils


def get_args_parser():
    parser = argparse.ArgumentParser("DINO", add_help=False)
    parser.add_argument(
        "--arch", default="vit_small", type=str, choices=["vit_tiny", "vit_small", "vit_base"] + utils.ARCHS
    )
    parser.add_argument(
        "--norm_last_layer",
        default=True,
        type=utils.bool_flag,
        help="""Whether or not to weight
        normalize the last layer of the DINO head.""",
    )
    parser.add_argument("--global_crops_scale", type=float, nargs="+", default=(0.4, 1.0))
    parser.add_argument("--output_dir", default=".", type=str, help="Path to save logs and checkpoints.")
    parser.add_argument("--seed", default=utils.SEED, type=int)
    return parser


if __name__ == "__main__":
    parser = argparse.ArgumentParser("DINO", parents=[get_args_parser()])
    args = parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()
