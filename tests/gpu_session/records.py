"""What is written down of a test file's processes, and what follows from that: pure, but for reading and appending."""

import contextlib
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tests.gpu_session.ledger import Outcome

# After one of these every later call of CUDA in the process fails (cuda.h: the errors that "the process must be
# terminated" after). Out of memory and a refused launch are not among them.
LASTING = re.compile(
    r"an illegal memory access was encountered|device-side assert|unspecified launch failure|misaligned address"
    r"|an illegal instruction was encountered|hardware stack error|invalid program counter|launch timed out"
    r"|address space is not valid|uncorrectable ECC error|CUDA error: unknown error|CUDNN_STATUS_EXECUTION_FAILED"
    r"|CUDA_ERROR_(?:ILLEGAL_\w+|LAUNCH_\w+|ASSERT|MISALIGNED_ADDRESS|INVALID_PC|HARDWARE_STACK_ERROR)",
    re.IGNORECASE,
)
PYTEST_HAS_RUN = (0, 1, 5)  # exit codes: all passed, some failed, none was left to run


class Entry(msgspec.Struct, omit_defaults=True):
    """A line of a record.

    Attributes:
        event: `collected` (tests of the file, settled ones too), `started`, `ended`, or `spoilt`: the test has spoilt
            or ended its process.
        outcome: of a test that ended: `passed`, `failed` or `skipped`.
        said: what a failure or a skip said; of `spoilt`: by what.
    """

    event: Literal["collected", "started", "ended", "spoilt"]
    test: str = ""
    outcome: str = ""
    said: str = ""
    count: int = 0


def append(path: Path, entry: Entry) -> None:
    """Write an entry to the end of a record; the line is in the file when this returns."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")


def read(path: Path) -> list[Entry]:
    """A record's entries; none if there is no such file. A line that was cut off is left out."""
    entries = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            entries.append(msgspec.json.decode(line, type=Entry))
    return entries


def lasting_fault(text: str) -> str | None:
    """The CUDA error in a text after which a process can use its GPU no more."""
    found = LASTING.search(text)
    return None if found is None else found[0]


def settled_tests(entries: Iterable[Entry]) -> set[str]:
    """Tests that need not run again."""
    return {entry.test for entry in entries if entry.event in ("ended", "spoilt")}


def running_test(entries: Sequence[Entry]) -> str | None:
    """The test that had started and not ended when the record broke off."""
    if entries and entries[-1].event == "started":
        return entries[-1].test
    return None


def end_in_words(returncode: int) -> str:
    """`signal SIGSEGV`, `exit code 3`."""
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"


@dataclass(frozen=True)
class FileReport:
    """What is known of a file's tests.

    Attributes:
        collected: tests marked gpu; -1 if collecting failed.
        passed, failed, skipped: how many ended so. A test that ended its process counts as failed.
        spoilt: each test that spoilt its process, and by what.
        failures: each test that failed or was skipped, with the end of what it said, in the order they ran.
        problem: why the file has no verdict of its tests: it does not import, or it has no test.
        seconds: wall time of its processes in this call.
        processes: started in this call.
    """

    file: str
    collected: int
    passed: int
    failed: int
    skipped: int
    spoilt: dict[str, str]
    failures: dict[str, str]
    problem: str
    seconds: float
    processes: int

    @property
    def has_passed(self) -> bool:
        """Whether each of its tests has passed: none was skipped, and there was one."""
        return 0 < self.collected == self.passed and not self.problem

    @property
    def is_finished(self) -> bool:
        """Whether no test is left to run."""
        return bool(self.problem) or 0 <= self.collected <= self.passed + self.failed + self.skipped

    def to_json(self) -> dict[str, Any]:
        """A line of JSON, with the first failing test apart."""
        first = next(iter(self.failures.items()), None)
        ended: Outcome = "passed" if self.has_passed else "failed" if self.is_finished or self.failed else "timed out"
        return {
            "file": self.file,
            "outcome": ended,
            "collected": self.collected,
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.skipped,
            "not_run": max(0, self.collected - self.passed - self.failed - self.skipped),
            "spoilt": [{"test": test, "by": by} for test, by in self.spoilt.items()],
            "problem": self.problem,
            "seconds": round(self.seconds, 1),
            "processes": self.processes,
            "first_failing": None if first is None else {"test": first[0], "said": first[1][-1500:]},
            "failing": list(self.failures),
        }


def report_of(
    file: str, entries: Sequence[Entry], problem: str = "", seconds: float = 0.0, processes: int = 0
) -> FileReport:
    """A file's report by its record; the last outcome of a test counts."""
    spoilt = {entry.test: entry.said for entry in entries if entry.event == "spoilt"}
    outcomes = {entry.test: entry for entry in entries if entry.event == "ended"}
    for test, by in spoilt.items():
        outcomes.setdefault(test, Entry("ended", test, "failed", by))
    counts = [entry.count for entry in entries if entry.event == "collected"]
    num = {kind: sum(entry.outcome == kind for entry in outcomes.values()) for kind in ("passed", "failed", "skipped")}
    return FileReport(
        file=file,
        collected=counts[-1] if counts else -1,
        **num,
        spoilt=spoilt,
        failures={test: entry.said for test, entry in outcomes.items() if entry.outcome != "passed"},
        problem=problem or ("no test was found" if counts and not counts[-1] else ""),
        seconds=seconds,
        processes=processes,
    )
