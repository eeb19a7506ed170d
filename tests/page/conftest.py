"""Browsers and services for tests of the page."""

import pytest

from tests.page.browsing import running_browser


@pytest.fixture(scope="module")
def browser():
    """One for the tests of a module, started in half a second. Not for longer: `asyncio.run` does not work in a process
    while a Playwright runs there, and tests of other folders need it."""
    with running_browser() as running:
        yield running
