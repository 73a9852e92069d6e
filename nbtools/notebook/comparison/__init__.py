"""Runs side by side: curves over each other, tables of what differs, and how training scales."""
