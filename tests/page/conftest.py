"""Browsers and services for tests of the page."""

import pytest

from scheduler_svc.api_key_file import new_key
from tests.page.browsing import running_browser
from tests.page.other_pages import forget_files
from tests.page.services import running_service
from tests.page.stage import running_stage
from tests.support.frontend_process import running_frontend


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
def one_open_frontend(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    with running_frontend("--store", str(store), "--openapi", "--allowed-host", "baton.example") as running:
        yield running


@pytest.fixture
def open_frontend(one_open_frontend):
    """One without API keys, that may also be called baton.example. It has no files, and nothing was drained."""
    forget_files(one_open_frontend)
    one_open_frontend.core.drains.clear()
    return one_open_frontend


@pytest.fixture(scope="package")
def api_key():
    """The only one of `keyed_frontend`."""
    return new_key()


@pytest.fixture(scope="package")
def keyed_frontend(api_key):
    """One with an API key."""
    with running_frontend(BATON_API_KEYS=api_key) as running:
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
