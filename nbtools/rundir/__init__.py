"""The run directory: its file names, its file formats and the ways to read and write them."""
