"""A pytest plugin that writes down each test as it starts and ends, so that a process that dies leaves a record.

    BATON_TEST_RECORD=FILE python -m pytest -p tests.gpu_session.recorder -m gpu tests/executor_svc/devices/test_gpu.py

A test with an entry `ended` or `spoilt` in the file is left out: the next process of a file goes on where this one
stopped. After a test that spoils its process no further test is started.

Hypothesis stops at the first example that fails: to look for the smallest one can take a test's whole time limit, and
the GPU machine is there for minutes.
"""

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.gpu_session.records import Entry, append, lasting_fault, read, settled_tests

VARIABLE = "BATON_TEST_RECORD"
SAID = 4000  # characters of a failure that are kept


def pytest_configure(config: pytest.Config) -> None:
    if VARIABLE in os.environ:  # conftest.py, which has chosen a profile, was there before
        phases = [phase for phase in settings.default.phases if phase is not Phase.shrink]
        settings.register_profile("unshrunk", settings.default, phases=phases)
        settings.load_profile("unshrunk")
        config.pluginmanager.register(Recorder(Path(os.environ[VARIABLE])))


class Recorder:
    """Writes the entries of one file's tests.

    Args:
        path: the record; it is made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcome = ""
        self._said = ""

    @pytest.hookimpl(trylast=True)  # after `-m gpu` has chosen
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        append(self._path, Entry("collected", count=len(items)))
        settled = settled_tests(read(self._path))
        left = [item for item in items if item.nodeid not in settled]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in settled])
        items[:] = left

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._said = "passed", ""
        append(self._path, Entry("started", nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" and self._outcome == "passed":
            self._outcome, self._said = report.outcome, report.longreprtext[-SAID:]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        yield
        append(self._path, Entry("ended", item.nodeid, self._outcome, self._said))
        fault = lasting_fault(self._said) if self._outcome == "failed" else None
        if fault is not None:
            append(self._path, Entry("spoilt", item.nodeid, said=fault))
            item.session.shouldfail = f"{item.nodeid} has spoilt the process: {fault}"
