"""CSS for JupyterLab's dark theme, which the kernel does not know."""

from pathlib import Path

DARK = '[data-jp-theme-light="false"]'
"""Selects what is in a dark page."""
THEME = Path(__file__).with_name("theme.css").read_text(encoding="utf-8")
