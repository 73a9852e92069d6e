"""One run or many, seen from outside: state, history, checkpoints, stop, clean-up."""
