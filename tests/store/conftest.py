"""A store in a folder of its own for each test."""

from contextlib import closing

import pytest

from scheduler_svc.store.check import check
from scheduler_svc.store.database import connect


@pytest.fixture
def store(tmp_path):
    """A connection to an empty store. Whatever a test did with it, the store is whole afterwards."""
    with closing(connect(tmp_path / "store")) as connection:
        yield connection
        assert check(connection) == []
