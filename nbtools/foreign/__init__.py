"""Runs of scripts that nbtools did not write: their logs, read into the same history."""
