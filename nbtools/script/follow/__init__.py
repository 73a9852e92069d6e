"""Evaluation of a script's names and expressions on its syntax tree, without executing anything."""
