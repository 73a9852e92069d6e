"""`python -m nbtools` is the same as the command `nbtools`."""

import sys

from nbtools.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
