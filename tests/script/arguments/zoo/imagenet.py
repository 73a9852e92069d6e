"""Choices that a library makes, as in the ImageNet example of PyTorch."""

import argparse
import os
import string as models

model_names = sorted(name for name in models.__dict__ if name.islower() and not name.startswith("_"))

parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("data", metavar="DIR", nargs="?", default="imagenet", help="path to dataset (default: imagenet)")
parser.add_argument(
    "-a",
    "--arch",
    metavar="ARCH",
    default="digits",
    choices=model_names,
    help="model architecture: " + " | ".join(model_names) + " (default: digits)",
)
parser.add_argument(
    "-j", "--workers", default=4, type=int, metavar="N", help="number of data loading workers (default: 4)"
)
parser.add_argument(
    "--lr", "--learning-rate", default=0.1, type=float, metavar="LR", help="initial learning rate", dest="lr"
)
parser.add_argument(
    "--wd", "--weight-decay", default=1e-4, type=float, metavar="W", help="weight decay", dest="weight_decay"
)
parser.add_argument("-p", "--print-freq", default=10, type=int, metavar="N", help="print frequency (default: 10)")
parser.add_argument("-e", "--evaluate", dest="evaluate", action="store_true", help="evaluate model on validation set")
parser.add_argument("--gpu", default=None, type=int, help="GPU id to use.")
parser.add_argument("--dummy", action="store_true", help="use fake data to benchmark")


def main():
    args = parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
