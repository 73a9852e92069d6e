"""The ranks of a running run: those that others wait for, and the Python stacks of each."""
