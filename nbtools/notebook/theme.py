"""CSS for JupyterLab's dark theme, which the kernel does not know, and for texts that are no formulas."""

from pathlib import Path

DARK = '[data-jp-theme-light="false"]'
"""CSS selector for elements of a dark page."""
THEME = Path(__file__).with_name("theme.css").read_text(encoding="utf-8")
NO_FORMULAS = "mathjax_ignore tex2jax_ignore"
"""Classes of elements whose dollar signs JupyterLab's MathJax, and the older one of exported pages, leave alone."""
