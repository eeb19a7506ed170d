"""Browsers and services for tests of the page."""

import pytest

from tests.page.browsing import running_browser
from tests.page.services import running_service
from tests.page.stage import running_stage


@pytest.fixture(scope="module")
def browser():
    """One for the tests of a module, started in half a second. Not for longer: `asyncio.run` does not work in a process
    while a Playwright runs there, and tests of other folders need it."""
    with running_browser() as running:
        yield running


@pytest.fixture
def stage():
    """A service whose answers the test decides."""
    with running_stage() as running:
        yield running


@pytest.fixture(scope="package")
def service(tmp_path_factory):
    """A real service without keys, with two executors. A test that kills one waits at its begin until all are back."""
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="package")
def keyed_service(tmp_path_factory):
    """A real service with the keys of `services.py`, and two executors."""
    with running_service(tmp_path_factory.mktemp("keyed-service"), keyed=True) as running:
        yield running
