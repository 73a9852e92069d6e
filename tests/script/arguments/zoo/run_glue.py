"""Dataclasses with a literal, an enumeration, lists and inheritance for HfArgumentParser."""

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from transformers import HfArgumentParser


class Strategy(str, Enum):
    NO = "no"
    STEPS = "steps"


def list_field(default=None, metadata=None):
    return field(default_factory=lambda: default, metadata=metadata)


@dataclass
class BaseArguments:
    task_name: str | None = field(default=None, metadata={"help": "The name of the task"})
    max_seq_length: int = field(default=128, metadata={"help": "Longer sequences are truncated."})


@dataclass
class DataArguments(BaseArguments):
    max_seq_length: int = 256
    strategy: Strategy = Strategy.STEPS
    mode: Literal["a", "b"] = "a"
    columns: list[str] = list_field(default=["text", "label"], metadata={"help": "Columns"})
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    pad_to_max_length: bool = True
    debug: bool | None = None
    train_file: str = field(metadata={"help": "A csv or a json file"}, default=None)


if __name__ == "__main__":
    (args,) = HfArgumentParser(DataArguments).parse_args_into_dataclasses()
    open(os.environ["ZOO_MARK"], "w").close()
