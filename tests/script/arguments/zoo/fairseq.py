"""A dictionary of options that a loop adds, and a registry of models, as in fairseq."""

import argparse
import os

OPTIMIZERS = {"adam": 1, "sgd": 2}
EXTRA = {"max-tokens": (int, None, "maximum number of tokens in a batch"), "clip-norm": (float, 0.0, "clip threshold")}


def add_optimization_args(parser):
    group = parser.add_argument_group("optimization")
    group.add_argument("--optimizer", choices=OPTIMIZERS.keys(), default="adam")
    for name, (kind, default, text) in EXTRA.items():
        group.add_argument(f"--{name}", type=kind, default=default, help=text)
    group.add_argument(
        "--update-freq", default="1", metavar="N1,N2,...,N_K", type=lambda uf: eval_str_list(uf, type=int)
    )
    return group


def eval_str_list(x, type=float):
    if x is None:
        return None
    return [type(i) for i in x.split(",")]


def get_parser(desc, default_task="translation"):
    parser = argparse.ArgumentParser(allow_abbrev=False, description=desc)
    parser.add_argument("data", help="colon separated list of data directories")
    parser.add_argument("--task", metavar="TASK", default=default_task, choices=["translation", "language_modeling"])
    return parser


def cli_main():
    parser = get_parser("Trainer")
    add_optimization_args(parser)
    args = parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    cli_main()
