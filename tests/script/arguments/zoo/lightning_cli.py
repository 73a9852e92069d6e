"""A model and a data module for LightningCLI."""

import os

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule


class Model(LightningModule):
    def __init__(self, width: int = 32, lr: float = 1e-3):
        super().__init__()


def cli_main():
    LightningCLI(Model, BoringDataModule)
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    cli_main()
