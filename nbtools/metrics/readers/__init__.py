"""Readers of metrics that other programs write."""
