"""Runs the tests marked gpu, each file in processes of its own, some files at once.

    python -m tests.gpu_session.by_file --seconds 150 tests/kernels/gpu/layers/test_norm.py tests/kernels/gpu/moe

One illegal access spoils every later test of its process. Here a process that a test has spoilt or ended is followed by
another one, with the file's next tests, and the file's report says which test it was and by what: an error of CUDA, a
signal, an exit code, or a test that took too long. When the seconds are up no file is started and those that run are
ended; their tests that did not end count neither as passed nor as failed.

Each test has to pass: one that is skipped fails its file, and so does a file in which no test is found. A line of JSON
is printed for each file as it ends. Exits with 0 if all have passed, with 1 if not, and with 3 if all that ran passed
and some did not run.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import ROOT
from tests.gpu_session import recorder
from tests.gpu_session.records import (
    PYTEST_HAS_RUN,
    Entry,
    FileReport,
    append,
    end_in_words,
    read,
    report_of,
    running_test,
)

# Of the kernels' tests, `tests/kernels/gpu/conftest.py` marks what takes `device`.
MARKED = re.compile(r"mark\.gpu\b|\bdevice: torch\.device\b")
# They take tens of GB of the GPU's memory, or measure it.
ALONE = ("tests/executor_svc/devices/test_gpu.py", "tests/kernels/gpu/moe/test_experts.py")
MOST_PROCESSES = 20  # of a file: so many tests may spoil theirs
POLL_S, WEIGHED_EVERY_S = 0.05, 1.0
SPARE_GIB = 16.0  # of the GPU's memory: with less free, no file is started beside `at_once` others
# The machine's own plugins are made for another pytest than the one that came along.
PLUGINS = ("-p", "pytest_timeout")


@dataclass(frozen=True)
class Limits:
    """How the files run.

    Attributes:
        deadline_s: of the monotonic clock: when all has to have ended.
        test_s: seconds that one test may take, with its process's start.
        grace_s: that it may take longer, since pytest-timeout is to tell first.
        at_once: files that run beside each other, except those in `alone`.
        most_at_once: likewise, while the GPU has `SPARE_GIB` free.
        marked: as pytest's -m.
        chosen: as pytest's -k.
        host_gib: memory of the machine for the processes of a file: where a GPU is pretended, its memory is that.
    """

    deadline_s: float
    test_s: float = 200.0
    grace_s: float = 15.0
    at_once: int = 4
    most_at_once: int = 0
    marked: str = "gpu"
    chosen: str = ""
    alone: tuple[str, ...] = ALONE
    host_gib: float = float("inf")


@dataclass(frozen=True)
class Place:
    """Where the files are, and what is known of them.

    Attributes:
        root: the files' names are relative to this folder, and it is their processes' working folder.
        state: folder of the records and logs.
    """

    root: Path
    state: Path

    def record(self, file: str) -> Path:
        """The record of a file's tests."""
        return self.state / f"{file.replace('/', '.')}.jsonl"

    def log(self, file: str) -> Path:
        """What a file's processes print."""
        return self.state / f"{file.replace('/', '.')}.log"


def marked_files(root: Path) -> list[str]:
    """Test files with tests that are marked gpu on a GPU, relative to `root`, in alphabetical order."""
    paths = sorted((root / "tests").rglob("test_*.py"))
    return [str(path.relative_to(root)) for path in paths if MARKED.search(path.read_text())]


@dataclass
class FileRun:
    """A file of tests that is being run: one process after the other."""

    file: str
    place: Place
    limits: Limits
    problem: str = ""
    num_processes: int = 0
    seconds: float = 0.0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _started_s: float = 0.0
    _weighed_s: float = 0.0

    def start(self) -> None:
        """Start the file's next process."""
        self.num_processes += 1
        self._started_s = time.monotonic()
        record = self.place.record(self.file)
        options = ["-p", "no:cacheprovider", f"--timeout={self.limits.test_s:.0f}", "-m", self.limits.marked]
        options += ["-k", self.limits.chosen] if self.limits.chosen else []
        command = [sys.executable, "-m", "pytest", *PLUGINS, "-p", recorder.__name__, *options, self.file]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        added = {recorder.VARIABLE: str(record.resolve()), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        added["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        with self.place.log(self.file).open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.place.root, env=os.environ | added, stdout=log, stderr=log, start_new_session=True
            )

    def is_over(self, now_s: float) -> bool:
        """Look after the process. Returns whether the file is done; if its process has ended early, starts the next."""
        assert self._process is not None
        returncode = self._process.poll()
        if returncode is None:
            if now_s >= self.limits.deadline_s:
                self.stop()
                return True
            may_take_s = self.limits.test_s + self.limits.grace_s
            if now_s - max(self._started_s, self._last_entry_s()) > may_take_s:
                self.stop()
                self._spoilt(f"timeout: it had not ended after {may_take_s:.0f} s")
                return self._is_over_or_restarted(now_s)
            if now_s >= self._weighed_s + WEIGHED_EVERY_S and (taken := self._host_gib()) > self.limits.host_gib:
                self.stop()
                self._spoilt(f"memory: it took {taken:.1f} GiB of the machine's")
                return self._is_over_or_restarted(now_s)
            return False
        self.stop()
        if returncode not in PYTEST_HAS_RUN or running_test(read(self.place.record(self.file))) is not None:
            self._spoilt(end_in_words(returncode))
        return self._is_over_or_restarted(now_s)

    def stop(self) -> None:
        """End the process, and all that it started in its group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.seconds += time.monotonic() - self._started_s
        self._process = None

    def report(self) -> FileReport:
        """What is known of the file."""
        entries = read(self.place.record(self.file))
        return report_of(self.file, entries, self.problem, self.seconds, self.num_processes)

    def _last_entry_s(self) -> float:
        """When the process last wrote an entry, by the monotonic clock."""
        try:
            return time.monotonic() - (time.time() - self.place.record(self.file).stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def _host_gib(self) -> float:
        """Resident memory of the process and of those that it started in its group; 0 if there is no limit of it."""
        self._weighed_s = time.monotonic()
        if self.limits.host_gib == float("inf") or self._process is None:
            return 0.0
        pages = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = stat.read_text().rpartition(") ")[2].split()  # from the state on: the group is 3rd, pages 22nd
                pages += int(fields[21]) if int(fields[2]) == self._process.pid else 0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**30

    def _spoilt(self, by: str) -> None:
        """The process died, or had to be ended: the test that was running is to blame, or the file."""
        record = self.place.record(self.file)
        test = running_test(read(record))
        if test is not None:
            append(record, Entry("spoilt", test, said=by))
        else:
            said = self.place.log(self.file).read_text(errors="replace")[-1500:]
            self.problem = f"{by} while no test ran: {said}"

    def _is_over_or_restarted(self, now_s: float) -> bool:
        if self.report().is_finished or self.num_processes >= MOST_PROCESSES or now_s >= self.limits.deadline_s:
            return True
        self.start()
        return False


def run_files(
    files: Sequence[str], place: Place, limits: Limits, tell: Callable[[FileReport], None] = lambda _: None
) -> list[FileReport]:
    """Run the files; those that are to run alone come last. Returns their reports, in the order of `files`.

    Args:
        tell: is called with the report of each file that is done, or was ended.
    """
    reports = {file: report_of(file, read(place.record(file))) for file in files}
    waiting = [file for file in files if not reports[file].is_finished]
    waiting.sort(key=lambda file: file in limits.alone)
    running: list[FileRun] = []
    try:
        while waiting or running:
            for run in list(running):
                if run.is_over(time.monotonic()):
                    running.remove(run)
                    reports[run.file] = run.report()
                    tell(reports[run.file])
            if time.monotonic() >= limits.deadline_s:
                waiting.clear()
            while waiting and may_start(waiting[0], running, limits):
                running.append(FileRun(waiting.pop(0), place, limits))
                running[-1].start()
            time.sleep(POLL_S)
    finally:  # an interrupt leaves no process behind
        for run in running:
            run.stop()
    return list(reports.values())


def may_start(
    file: str, running: Sequence[FileRun], limits: Limits, free_gib: Callable[[], float] | None = None
) -> bool:
    """Whether a file may start beside those that run; `free_gib` tells the GPU's free memory, by default the driver."""
    if file in limits.alone:
        return not running
    if any(run.file in limits.alone for run in running) or len(running) >= max(limits.at_once, limits.most_at_once):
        return False
    return len(running) < limits.at_once or (free_gib or free_memory_gib)() >= SPARE_GIB


def free_memory_gib() -> float:
    """Free memory of the first GPU, which takes some 20 ms to ask; 0 where nobody tells."""
    command = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "--id=0")
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
        return float(done.stdout) / 1024
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0


def exit_code(reports: Sequence[FileReport]) -> int:
    """What the command exits with."""
    if any(report.failed or report.skipped or report.problem for report in reports):
        return 1
    return 0 if all(report.has_passed for report in reports) else 3


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.gpu_session.by_file", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="test files; by default all that name the marker gpu")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which all has to have ended")
    parser.add_argument("--test-seconds", type=float, default=Limits.test_s, help="of one test at most")
    parser.add_argument("--at-once", type=int, default=Limits.at_once, help="files that share the GPU")
    parser.add_argument("--most-at-once", type=int, default=0, help="the same while the GPU has memory to spare")
    parser.add_argument("--marked", default=Limits.marked, help="only tests with such marks, as pytest's -m does")
    parser.add_argument("--chosen", default="", help="only tests that this names, as pytest's -k does")
    parser.add_argument("--host-gib", type=float, default=Limits.host_gib, help="of memory for the processes of a file")
    options = parser.parse_args()
    limits = Limits(
        deadline_s=time.monotonic() + options.seconds,
        test_s=options.test_seconds,
        at_once=options.at_once,
        most_at_once=options.most_at_once,
        marked=options.marked,
        chosen=options.chosen,
        host_gib=options.host_gib,
    )
    with tempfile.TemporaryDirectory(prefix="baton-tests-") as folder:
        reports = run_files(
            options.files or marked_files(ROOT),
            Place(ROOT, Path(folder)),
            limits,
            lambda report: print(json.dumps(report.to_json()), flush=True),
        )
    return exit_code(reports)


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"
    sys.exit(main())
