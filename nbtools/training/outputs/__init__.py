"""Outputs of a training beside its checkpoints: final model and history, profile, TensorBoard events."""
