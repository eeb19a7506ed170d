"""The tests of all rooms: the test of `a/b/c.py` is `tests/a/b/test_c.py`, without `scheduler_svc/`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
