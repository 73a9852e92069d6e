"""The form that edits a config and writes and launches its script."""
