"""Metrics of the lines that a program prints."""
