"""The exported training script: from a config to `scripts/NAME.py` and back."""
