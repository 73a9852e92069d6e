"""A function for typer."""

import os
from enum import Enum
from typing import Annotated

import typer


class Mode(str, Enum):
    fast = "fast"
    slow = "slow"


app = typer.Typer()


@app.command()
def main(
    data: str,
    lr: float = 0.1,
    amp: bool = False,
    mode: Mode = Mode.fast,
    tags: list[str] = ["a"],
    n: Annotated[int | None, typer.Option(help="How many")] = None,
):
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    app()
