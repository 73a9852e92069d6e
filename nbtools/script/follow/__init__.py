"""Follows a script on its syntax tree: what its names and expressions stand for, without executing anything."""
