"""Runs side by side, without a kernel: curves over each other, tables of differences and scaling, and the report."""
