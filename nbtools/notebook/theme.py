"""CSS for JupyterLab's dark theme, which the kernel does not know."""

from pathlib import Path

DARK = '[data-jp-theme-light="false"]'
"""Selects what is in a dark page."""
DROP_DOWNS = Path(__file__).with_name("drop_downs.css").read_text(encoding="utf-8")


def late_pictures(*pictures: str) -> str:
    """Return CSS that shows pictures late in a dark page: until the page draws the curves, they are a white flash."""
    rule = f"{', '.join(f'{DARK} {picture}' for picture in pictures)} {{animation: nbtools-appear 0s 2s both}}"
    return f"{rule}\n@keyframes nbtools-appear {{from {{visibility: hidden}}}}"
