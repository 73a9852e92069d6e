"""The two things that a viewer does to a running run: it stops it, or steers it."""
