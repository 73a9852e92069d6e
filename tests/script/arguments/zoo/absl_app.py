"""Flags of absl, as in programs for JAX and TensorFlow."""

import enum
import os

from absl import app, flags


class Optimizer(enum.Enum):
    SGD = 1
    LARS = 2


FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", None, "Directory to store model data.", required=True)
flags.DEFINE_integer("num_steps", 100, "Steps.", lower_bound=1)
_LR = flags.DEFINE_float("lr", 1e-3, "Learning rate.")
flags.DEFINE_bool("use_gpu", True, "Whether to use a GPU.")
flags.DEFINE_enum("mode", "train", ["train", "eval"], "What to do.")
flags.DEFINE_list("splits", ["train", "test"], "Splits.")
flags.DEFINE_multi_integer("seed", [0], "Seeds.")
flags.DEFINE_enum_class("optimizer", Optimizer.LARS, Optimizer, "Optimizer.")


def main(argv):
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    app.run(main)
