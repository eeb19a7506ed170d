"""Count the CPU seconds that each file of tests takes, show the largest, and fail where one takes more than its bound.

CPU time of the process that runs the tests, and of what it started and has waited for: a busy machine hardly changes
it, so that a bound can hold everywhere. `pytest --file-bound SECONDS` sets the bound; `make test` does.
"""

import resource
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.forked_frontends import ForkedFrontend

NUM_SHOWN = 10
_OUTPUT = "file_times"  # the key under which a worker of pytest-xdist hands its counts to the process that reports


def add_option(parser: pytest.Parser) -> None:
    """Declare `--file-bound`."""
    parser.addoption(
        "--file-bound", type=float, metavar="SECONDS", help="fail if a file of tests takes more CPU time than this"
    )


def cpu_seconds() -> float:
    """Return what this process and those that it has waited for have computed so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + ForkedFrontend.cpu_seconds


class FileTimes:
    """A plugin of pytest, in the process that reports and in each worker of pytest-xdist.

    Attributes:
        seconds: of CPU time, by the path of a file.
    """

    def __init__(self, bound_s: float | None) -> None:
        self.seconds: Counter[str] = Counter()
        self._bound_s = bound_s

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count a test with its fixtures."""
        before = cpu_seconds()
        result = yield
        self.seconds[item.nodeid.split("::")[0]] += cpu_seconds() - before  # type: ignore[assignment]  # floats count as well
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended: add what it has counted."""
        self.seconds.update(getattr(node, "workeroutput", {}).get(_OUTPUT, {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over what was counted, or fail the run."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = dict(self.seconds)
        elif self.over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the files that take most, and those that take too much."""
        if len(self.seconds) > 1:
            terminalreporter.section(f"CPU seconds of {NUM_SHOWN} files, and of all {len(self.seconds)}")
            for path, seconds in [*self.seconds.most_common(NUM_SHOWN), ("all", self.seconds.total())]:
                terminalreporter.write_line(f"{seconds:7.1f}  {path}")
        for path, seconds in self.over.items():
            terminalreporter.write_line(f"{path} takes {seconds:.1f} s, more than {self._bound_s:g}", red=True)

    @property
    def over(self) -> dict[str, float]:
        """The files that take more than their bound."""
        if self._bound_s is None:
            return {}
        return {path: seconds for path, seconds in self.seconds.items() if seconds > self._bound_s}
