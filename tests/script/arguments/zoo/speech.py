"""Sub-commands with parents whose defaults the machine decides, and values taken from a table of models."""

import argparse
import multiprocessing
import os
from pathlib import Path

ARCHS = {"ds2": 1024, "jasper": 768}


def count_or_none(value):
    return None if value.lower() == "none" else int(value)


def common():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-j", "--jobs", type=count_or_none, default=max(1, multiprocessing.cpu_count() // 2))
    parser.add_argument("--limit", type=count_or_none, help="utterances; none for all")
    return parser


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-v", "--verbose", action="count", default=0)
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("train", parents=[common()])
    p.add_argument("--labels", required=True, type=argparse.FileType("r"))
    p.add_argument("--arch", choices=ARCHS, default=next(iter(ARCHS)))
    p.add_argument("--lr", type=float, default=3e-4).help = "initial learning rate"
    p = commands.add_parser("eval", aliases=["test"], parents=[common()])
    p.add_argument("checkpoint", type=Path)
    p.add_argument("manifest", nargs="*", default=["dev.jsonl"])
    parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
