"""The remaining words as pairs of a key and a value, as in detectron2."""

import argparse
import os
import sys


def default_argument_parser(epilog=None):
    parser = argparse.ArgumentParser(
        epilog=epilog or f"Run {sys.argv[0]}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-file", default="", metavar="FILE", help="path to config file")
    parser.add_argument("--resume", action="store_true", help="Whether to attempt to resume")
    parser.add_argument("--eval-only", action="store_true", help="perform evaluation only")
    parser.add_argument("--num-gpus", type=int, default=1, help="number of gpus *per machine*")
    port = 2**15 + 2**14 + hash(os.getuid() if sys.platform != "win32" else 1) % 2**14
    parser.add_argument("--dist-url", default=f"tcp://127.0.0.1:{port}", help="initialization URL")
    parser.add_argument("opts", default=None, nargs=argparse.REMAINDER, help="Modify config options")
    return parser


def main(args):
    open(os.environ["ZOO_MARK"], "w").close()


def invoke_main() -> None:
    args = default_argument_parser().parse_args()
    print("Command Line Args:", args)
    main(args)


if __name__ == "__main__":
    invoke_main()
