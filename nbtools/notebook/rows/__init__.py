"""Rows of fields that a form, the arguments of a program and a playground share, in sections that fold."""
