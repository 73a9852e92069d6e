"""Sub-commands with parents and nested ones."""

import argparse
import os


def run(args):
    open(os.environ["ZOO_MARK"], "w").close()


def main():
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seed", type=int, default=0)
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".")
    subparsers = parser.add_subparsers(dest="command", required=True)
    train = subparsers.add_parser("train", parents=[common], help="train a model")
    train.add_argument("config")
    train.add_argument("--lr", type=float, default=0.1)
    train.set_defaults(func=run)
    data = subparsers.add_parser("data")
    inner = data.add_subparsers(dest="action")
    fetch = inner.add_parser("fetch")
    fetch.add_argument("--lr", type=float, default=0.5)
    fetch.add_argument("urls", nargs="+")
    args = parser.parse_args()
    args.func(args)


if __name__ == "__main__":
    main()
