"""A trained model in a notebook: its settings, an input, and its results."""
