"""Dataclasses under a config file under key=value from the command line, as in lingua."""

import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from omegaconf import MISSING, OmegaConf


@dataclass
class OptimArgs:
    lr: float = 3e-4
    betas: List[float] = field(default_factory=lambda: [0.9, 0.95])
    is_class_attribute = True


@dataclass
class WandbArgs:
    project: Optional[str] = None
    tags: Optional[List[str]] = None


@dataclass
class TrainArgs:
    dump_dir: str = MISSING
    steps: int = 1000
    optim: OptimArgs = field(default_factory=lambda: OptimArgs(1e-3))
    wandb: Optional[WandbArgs] = None
    sources: Dict[str, float] = field(default_factory=dict)
    eval: Optional[Any] = None


def main():
    cli_args = OmegaConf.from_cli()
    file_cfg = OmegaConf.load(cli_args.config)
    del cli_args.config
    cfg = OmegaConf.merge(OmegaConf.structured(TrainArgs(steps=50)), file_cfg, cli_args)
    open(os.environ["ZOO_MARK"], "w").close()
    print(OmegaConf.to_object(cfg))


if __name__ == "__main__":
    main()
