"""Runs side by side: curves over each other, tables of differences, and scaling."""
