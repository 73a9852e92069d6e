"""The widgets inside a widget, and the HTML that they show."""

from typing import Any

from ipywidgets import HTML


def every(widget: Any) -> list[Any]:
    """Return a widget and all widgets inside it, the outer ones first."""
    found = [widget]
    for each in found:
        found += getattr(each, "children", ())
    return found


def html_in(widget: Any) -> str:
    """Return all HTML inside a widget."""
    return "\n".join(each.value for each in every(widget) if isinstance(each, HTML))
