"""Metrics from what a program prints."""
