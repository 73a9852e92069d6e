"""Actions of other kinds: append, a class of its own, dictionaries of values, as in the RL zoo."""

import argparse
import os


class StoreDict(argparse.Action):
    def __init__(self, option_strings, dest, nargs=None, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, dict(arg.split(":", 1) for arg in values))


def train():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--algo",
        help="RL Algorithm",
        default="ppo",
        type=str,
        required=False,
        choices=list({"ppo": 1, "a2c": 2}.keys()),
    )
    parser.add_argument("--env", type=str, default="CartPole-v1", help="environment ID")
    parser.add_argument("-n", "--n-timesteps", help="Overwrite the number of timesteps", default=(-1), type=int)
    parser.add_argument("--gym-packages", type=str, nargs="+", default=[], help="Additional external packages")
    parser.add_argument(
        "-params", "--hyperparams", type=str, nargs="+", action=StoreDict, help="Overwrite hyperparameter"
    )
    parser.add_argument("--verbose", help="Verbose mode (0: no output, 1: INFO)", default=1, type=int)
    parser.add_argument("--tags", action="append", default=["a"])
    parser.add_argument("--level", action="store_const", const=3, default=1)
    args = parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    train()
