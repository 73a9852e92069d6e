"""Functions that add groups, one after the other, and a hook for more, as in Megatron-LM."""

import argparse
import os


def parse_args(extra_args_provider=None, ignore_unknown_args=False):
    parser = argparse.ArgumentParser(description="Megatron-LM Arguments", allow_abbrev=False)
    parser = _add_network_size_args(parser)
    parser = _add_training_args(parser)
    if extra_args_provider is not None:
        parser = extra_args_provider(parser)
    if ignore_unknown_args:
        args, _ = parser.parse_known_args()
    else:
        args = parser.parse_args()
    return args


def _add_network_size_args(parser):
    group = parser.add_argument_group(title="network size")
    group.add_argument("--num-layers", type=int, default=None, help="Number of transformer layers.")
    group.add_argument("--normalization", default="LayerNorm", choices=["LayerNorm", "RMSNorm"], help="Which norm.")
    group.add_argument("--untie-embeddings-and-output-weights", action="store_true", help="Untie.")
    return parser


def _add_training_args(parser):
    group = parser.add_argument_group(title="training")
    group.add_argument("--micro-batch-size", type=int, default=None, help="Batch size per model instance.")
    group.add_argument("--rampup-batch-size", nargs="*", default=None, help="Batch size ramp up.")
    group.add_argument("--no-masked-softmax-fusion", action="store_false", help="Off", dest="masked_softmax_fusion")
    group.add_argument("--use-mcore-models", action=argparse.BooleanOptionalAction, default=True)
    return parser


def add_t5_args(parser):
    group = parser.add_argument_group(title="T5")
    group.add_argument("--decoder-seq-length", type=int, default=128)
    return parser


if __name__ == "__main__":
    args = parse_args(extra_args_provider=add_t5_args)
    open(os.environ["ZOO_MARK"], "w").close()
