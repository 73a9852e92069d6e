"""A module of a package, started by python -m."""

import os

from .arguments import Parser

if __name__ == "__main__":
    args = Parser(description="x").parse_args()
    open(os.environ["ZOO_MARK"], "w").close()
