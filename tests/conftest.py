"""Settings for every test process: two cores are shared by several of them."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.support import effort, file_times, gpu

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin would take the core of another process's tests
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
gpu.choose_interpreter()

effort.load_profiles()

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every process they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where a scheduler keeps its journal if no option says: not among the journals of the user who runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="baton-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Where a scheduler that is given no API keys looks for some: not in the user's `baton-keys`.
os.environ["BATON_KEYS_DIR"] = os.environ["XDG_STATE_HOME"]

# Where executors look for a keeper if no option says: not where the user's own one listens.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="baton-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of this project's tests."""
    file_times.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Count the CPU time of each file."""
    config.pluginmanager.register(file_times.FileTimes(config.getoption("--file-bound")), "file-times")


def pytest_collection_finish() -> None:
    """Keep ten thousand tests and their modules from the collector: each look through them stops all threads for half a
    second, the client's and the fake server's of a test with a time-out among them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that would begin too late (in seconds since 1970), and fail one of the GPU that would skip wrongly.

    Such a test would skip because this file took a machine with a GPU for one without.
    """
    if time.time() > float(os.environ.get("BATON_TESTS_UNTIL", "inf")):
        pytest.skip("out of time (BATON_TESTS_UNTIL)")
    if item.get_closest_marker("gpu") is not None and (problem := gpu.contradiction()) is not None:
        pytest.fail(problem, pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat what fresh seeds have found (`tests/fresh.py`) where it cannot be missed: just above the last line."""
    warnings = os.environ.get("BATON_WARNINGS", "")
    if warnings and Path(warnings).is_file():
        terminalreporter.section("WARNING", sep="!", red=True, bold=True)
        terminalreporter.write_line(Path(warnings).read_text().rstrip(), red=True, bold=True)
