"""A program with transformers' Trainer: a small regression on two numbers."""

import sys
import time

import torch
from transformers import (
    HfArgumentParser,
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Line(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.linear = torch.nn.Linear(2, 1)
        self.post_init()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.linear(x).squeeze(-1) - labels) ** 2).mean()}


class Pause(TrainerCallback):
    def on_step_end(self, *_: object, **__: object) -> None:
        time.sleep(0.05)


def main() -> None:
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:])
    torch.manual_seed(args.seed)
    points = torch.randn(256, 2)
    data = [{"x": point, "labels": point.sum() * 3 - 1} for point in points]
    trainer = Trainer(Line(PretrainedConfig()), args, train_dataset=data, callbacks=[Pause()])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model(f"{args.output_dir}/end")


if __name__ == "__main__":
    main()
