"""A class that derives from ArgumentParser."""

from argparse import ArgumentParser

DEFAULTS = dict(width=64)


class Parser(ArgumentParser):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_argument("--width", type=int, default=DEFAULTS["width"])
        self.add_argument("--api-key", default=None)
        self._more("depth", 2)

    def _more(self, name, default):
        self.add_argument("--" + name, type=int, default=default)
