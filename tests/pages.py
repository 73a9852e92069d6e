"""What is visible in an open notebook: a live panel also has a static copy, which is hidden."""

from playwright.sync_api import Locator


def see(where: Locator, text: str) -> None:
    """Wait until a text is visible."""
    where.get_by_text(text).locator("visible=true").first.wait_for()


def picture(where: Locator) -> Locator:
    """Return the first visible picture."""
    return where.locator("img").locator("visible=true").first
