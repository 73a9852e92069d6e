"""The table of a project's runs."""
