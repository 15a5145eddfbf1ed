"""Debian's chromium, driven by Playwright: a page as a person would have it before them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright


@dataclass
class OpenPage:
    page: Page
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def number(self, selector: str) -> int:
        return int(self.text(selector).replace(",", ""))

    def ask(self, question: str) -> None:
        """Send a message and wait until its answer is there, with what it reused."""
        turns = self.page.locator(".turn").count()
        self.page.locator("#question").fill(question)
        self.page.locator("#question").press("Enter")
        self.page.locator(".turn").nth(turns).locator(".reuse").wait_for()


def _path() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise AssertionError("the tests of the page need chromium; make setup installs it")


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser; one at a time in a process."""
    # Its sandbox is not to be had by root, nor in most containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_path(), args=arguments, timeout=120_000
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = 1280, **context: str) -> Iterator[OpenPage]:
    """The page at ``url``; what its console complained of, and which hosts it asked."""
    tab = browser.new_context(viewport={"width": width, "height": 900}, **context)
    page = tab.new_page()
    page.set_default_timeout(60_000)
    found = OpenPage(page)
    page.on(
        "console",
        lambda message: (
            message.type in ("error", "warning") and found.problems.append(message.text)
        ),
    )
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    page.on("request", lambda request: found.hosts.add(urlsplit(request.url).netloc))
    page.goto(url)
    try:
        yield found
    finally:
        tab.close()
