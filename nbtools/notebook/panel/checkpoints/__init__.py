"""The Checkpoints tab: the list of a run's checkpoints, and the offer to continue from one."""
