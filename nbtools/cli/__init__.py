"""The command line: parser, commands and output."""
