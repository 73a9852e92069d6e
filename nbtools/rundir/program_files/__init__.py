"""Files that a program of the user's writes, found by name and time: its metrics and checkpoints."""
