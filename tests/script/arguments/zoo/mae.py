"""A truth value with two flags, type=bool and set_defaults, as in MAE's pre-training."""

import argparse
import os


def get_args_parser():
    parser = argparse.ArgumentParser("MAE pre-training", add_help=False)
    parser.add_argument("--mask_ratio", default=0.75, type=float, help="Masking ratio (percentage of removed patches).")
    parser.add_argument(
        "--blr", type=float, default=1e-3, metavar="LR", help="base: absolute_lr = base_lr * total / 256"
    )
    parser.add_argument("--lr", type=float, default=None, metavar="LR", help="learning rate (absolute lr)")
    parser.add_argument("--pin_mem", action="store_true", help="Pin CPU memory in DataLoader")
    parser.add_argument("--no_pin_mem", action="store_false", dest="pin_mem")
    parser.set_defaults(pin_mem=True)
    parser.add_argument("--dist_on_itp", action="store_true")
    parser.add_argument("--repeated-aug", action="store_true")
    parser.add_argument("--no-repeated-aug", action="store_false", dest="repeated_aug")
    parser.set_defaults(repeated_aug=True)
    parser.add_argument("--cos", type=bool, default=True)
    return parser


if __name__ == "__main__":
    args = get_args_parser()
    args = args.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()
