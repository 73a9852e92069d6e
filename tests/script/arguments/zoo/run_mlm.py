"""A dataclass that derives from TrainingArguments."""

import os
from dataclasses import dataclass, field

from transformers import HfArgumentParser, TrainingArguments


@dataclass
class CustomArguments(TrainingArguments):
    """Arguments with a changed and a new one."""

    learning_rate: float = field(default=1e-3, metadata={"help": "A larger one."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Ratio of tokens to mask"})


if __name__ == "__main__":
    (args,) = HfArgumentParser((CustomArguments,)).parse_args_into_dataclasses()
    open(os.environ["ZOO_MARK"], "w").close()
