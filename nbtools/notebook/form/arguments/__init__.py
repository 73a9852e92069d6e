"""The rows of a program: its arguments, and the keys of the config files that they name."""
