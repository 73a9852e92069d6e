"""The arguments that a script of the user's declares: found by `ast`, or by asking the script in a child process."""
