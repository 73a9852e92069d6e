"""A first parser for a YAML file, groups and a second parser, as in timm's training script."""

import argparse
import os

import yaml

has_wandb = False
config_parser = parser = argparse.ArgumentParser(description="Training Config", add_help=False)
parser.add_argument("-c", "--config", default="", type=str, metavar="FILE", help="YAML config file with defaults")
parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
group = parser.add_argument_group("Dataset parameters")
group.add_argument("data", nargs="?", metavar="DIR", const=None, help="path to dataset (positional is *deprecated*)")
group.add_argument("--data-dir", metavar="DIR", help="path to dataset (root dir)")
group.add_argument("--mean", type=float, nargs="+", default=None, metavar="MEAN", help="Override mean pixel value")
group.add_argument("--input-size", default=None, nargs=3, type=int, metavar="N", help="Input image dimensions")
scripting_group = group.add_mutually_exclusive_group()
scripting_group.add_argument("--torchscript", dest="torchscript", action="store_true", help="torch.jit.script")
scripting_group.add_argument("--torchcompile", nargs="?", type=str, default=None, const="inductor", help="compile")
group = parser.add_argument_group("Optimizer parameters")
group.add_argument("--opt", default="sgd", type=str, help='Optimizer (default: "sgd")')
group.add_argument("--opt-betas", default=None, type=float, nargs="+", metavar="BETA")
group.add_argument("--layer-decay", type=float, default=None, help="layer-wise learning rate decay")
group.add_argument("--lr-noise", type=float, nargs="+", default=None, metavar="pct, pct")
group.add_argument("-b", "--batch-size", type=int, default=128, metavar="N")
group.add_argument("--no-aug", action="store_true", default=False)
group.add_argument("--amp", action="store_true", default=False)
group.add_argument("--workers", "-j", type=int, default=4)


def _parse_args():
    args_config, remaining = config_parser.parse_known_args()
    if args_config.config:
        with open(args_config.config) as f:
            cfg = yaml.safe_load(f)
            parser.set_defaults(**cfg)
    args = parser.parse_args(remaining)
    args_text = yaml.safe_dump(args.__dict__, default_flow_style=False)
    return args, args_text


def main():
    args, args_text = _parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
