"""Dataclasses of transformers' language modelling example, one of which derives from TrainingArguments."""

import os
import sys
from dataclasses import dataclass, field

from transformers import HfArgumentParser, TrainingArguments


@dataclass
class ModelArguments:
    """What is fine-tuned."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "The checkpoint for weights."})
    use_fast_tokenizer: bool = field(default=True, metadata={"help": "Whether to use a fast tokenizer."})
    torch_dtype: str | None = field(
        default=None, metadata={"help": "Override the dtype.", "choices": ["auto", "bfloat16", "float16", "float32"]}
    )
    token: str = field(default=None, metadata={"help": "The token to use as HTTP bearer authorization."})


@dataclass
class DataTrainingArguments:
    """What it is trained on."""

    block_size: int | None = field(default=None, metadata={"help": "Optional input sequence length."})
    validation_split_percentage: int | None = field(default=5, metadata={"help": "The percentage of the train set."})
    streaming: bool = field(default=False, metadata={"help": "Enable streaming mode"})


@dataclass
class CustomArguments(TrainingArguments):
    """Arguments with a changed and a new one."""

    learning_rate: float = field(default=1e-3, metadata={"help": "A larger one."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Ratio of tokens to mask"})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, CustomArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    main()
