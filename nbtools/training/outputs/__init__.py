"""What a training writes beside its checkpoints: outputs, profile, TensorBoard events."""
