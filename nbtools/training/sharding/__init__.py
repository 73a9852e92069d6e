"""Training of models that are larger than a GPU: sharded weights, and checkpoints of them."""
