"""Classes that register themselves by a decorator and add arguments of their own, as in newer versions of fairseq."""

import argparse
import os

REGISTRIES = {}


def setup_registry(name, default):
    registry = {}
    REGISTRIES[name] = {"registry": registry, "default": default}

    def register(key):
        def wrapper(cls):
            registry[key] = cls
            return cls

        return wrapper

    return register


register_criterion = setup_registry("criterion", default="cross_entropy")
register_lr_scheduler = setup_registry("lr_scheduler", default="fixed")


@register_criterion("cross_entropy")
class CrossEntropy:
    pass


@register_criterion("label_smoothed")
class LabelSmoothed:
    @staticmethod
    def add_args(parser):
        parser.add_argument("--label-smoothing", default=0.0, type=float)


@register_lr_scheduler("fixed")
class FixedSchedule:
    @staticmethod
    def add_args(parser):
        parser.add_argument("--warmup-updates", default=0, type=int, metavar="N")
        parser.add_argument("--restart", action="store_true")


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, registry in REGISTRIES.items():
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, default=registry["default"], choices=registry["registry"].keys())
    args, _ = parser.parse_known_args()
    own = parser.add_argument_group("its own", argument_default=argparse.SUPPRESS)
    for name, registry in REGISTRIES.items():
        cls = registry["registry"][getattr(args, name)]
        if hasattr(cls, "add_args"):
            cls.add_args(own)
    parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
