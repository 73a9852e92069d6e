"""The removal of ended runs, checkpoints and caches, and the disk space that they take."""
