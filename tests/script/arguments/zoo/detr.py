"""A function that makes a parent parser, as in DETR, DeiT and MAE."""

import argparse
import os


def get_args_parser():
    parser = argparse.ArgumentParser("Set transformer detector", add_help=False)
    parser.add_argument("--lr", default=1e-4, type=float)
    parser.add_argument("--lr_backbone", default=1e-5, type=float)
    parser.add_argument("--batch_size", default=2, type=int)
    # Model parameters
    parser.add_argument("--frozen_weights", type=str, default=None, help="Path to the pretrained model.")
    parser.add_argument("--position_embedding", default="sine", type=str, choices=("sine", "learned"), help="Type")
    parser.add_argument("--no_aux_loss", dest="aux_loss", action="store_false", help="Disables auxiliary losses")
    parser.add_argument("--masks", action="store_true", help="Train segmentation head if the flag is provided")
    parser.add_argument("--dist_url", default="env://", help="url used to set up distributed training")
    parser.add_argument("--clip_max_norm", default=0.1 * 2, type=float)
    return parser


def main(args):
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser("DETR training and evaluation script", parents=[get_args_parser()])
    args = parser.parse_args()
    main(args)
