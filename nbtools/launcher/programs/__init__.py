"""How programs of the user's continue from the checkpoints that they wrote."""
