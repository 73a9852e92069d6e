"""Resume and restart of the user's own programs from the checkpoints that they wrote."""
