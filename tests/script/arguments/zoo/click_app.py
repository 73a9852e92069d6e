"""A group of commands for click."""

import os

import click


@click.group()
@click.option("--debug/--no-debug", default=False)
def cli(debug):
    pass


@cli.command()
@click.option("--lr", default=1e-3, show_default=True, help="learning rate")
@click.option("-v", "--verbose", count=True)
@click.option("--tag", multiple=True)
@click.option("--mode", type=click.Choice(["a", "b"]), default="a")
@click.option("--n", type=int, required=True)
@click.option("--size", nargs=2, type=int, default=(1, 2))
@click.option("--betas", type=(float, float), default=(0.9, 0.95))
@click.option("--fast", is_flag=True)
@click.argument("src")
def train(**kwargs):
    open(os.environ["ZOO_MARK"], "w").close()


@cli.command()
@click.option("--lr", default=0.5)
def evaluate(lr):
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    cli()
