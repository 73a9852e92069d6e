"""An enumeration as the type, as in the examples of accelerate and transformers."""

import argparse
import os
from enum import Enum
from pathlib import Path


class SchedulerType(str, Enum):
    LINEAR = "linear"
    COSINE = "cosine"


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--lr_scheduler_type", type=SchedulerType, default="linear", choices=["linear", "cosine"])
    parser.add_argument("--output", type=Path, default=Path("out"), help="where")
    parser.add_argument("--cpu", action="store_true", help="If passed, will train on the CPU.")
    parser.add_argument("--checkpointing_steps", type=str, default=None, help="or 'epoch'")
    parser.add_argument("--seed", type=int, default=None, help="A seed for reproducible training.")
    args = parser.parse_args()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
