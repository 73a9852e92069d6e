"""Options that a base class makes of the attributes of an object, as in Gaussian splatting."""

import os
import sys
from argparse import ArgumentParser


class ParamGroup:
    def __init__(self, parser, name, fill_none=False):
        group = parser.add_argument_group(name)
        for key, value in vars(self).items():
            shorthand = key.startswith("_")
            key = key[1:] if shorthand else key
            t = type(value)
            value = value if not fill_none else None
            flags = ("--" + key, "-" + key[0:1]) if shorthand else ("--" + key,)
            if t == bool:  # noqa: E721
                group.add_argument(*flags, default=value, action="store_true")
            else:
                group.add_argument(*flags, default=value, type=t)


class ModelParams(ParamGroup):
    def __init__(self, parser, sentinel=False):
        self.sh_degree = 3
        self._source_path = ""
        self.eval = False
        super().__init__(parser, "Loading Parameters", sentinel)


class OptimizationParams(ParamGroup):
    def __init__(self, parser):
        self.iterations = 30_000
        self.feature_lr = 0.0025
        self.unused = 1
        del self.unused
        super().__init__(parser, "Optimization Parameters")


if __name__ == "__main__":
    parser = ArgumentParser()
    lp, op = ModelParams(parser), OptimizationParams(parser)
    parser.add_argument("--save_iterations", nargs="+", type=int, default=[7_000])
    args = parser.parse_args(sys.argv[1:])
    open(os.environ["ZOO_MARK"], "w").close()
