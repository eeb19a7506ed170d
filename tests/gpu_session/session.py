"""Runs the steps of a call on a borrowed GPU machine within its time, and keeps what they give.

A step is a command with a limit. Its JSON goes to the state folder as soon as it has ended, and to the folder that
comes back. A call first runs its own steps, then those that earlier calls have left undone; a step that is done does
not run again. A step that no longer fits is skipped, and its JSON says so.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

SUMMARY, STATE_ARCHIVE = "session.json", "state.tar.gz"
MOST_FILES = 8  # that come back
PACKING_S = 10.0  # kept for the end of a call
INTERRUPT_S = 6.0  # that a step has to stop its services in
START_S = 4.0  # from a step's start until it has read how long it has
TAIL = 3000  # characters of a step's output that its JSON keeps

Status = Literal["done", "failed", "timed out", "skipped"]


@dataclass(frozen=True)
class Step:
    """A command of a call.

    Attributes:
        name: also of its JSON file.
        command: `{seconds}` in it stands for the step's limit when it starts, less what it takes to start and stop.
        limit_s: the most seconds it may take.
        least_s: with less than that left it is not started.
        report: a JSON file that it writes, below the state folder.
        keep: a folder that comes back as NAME.tar.gz.
        settled: exit codes that say that it is done.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    least_s: float = 10.0
    report: str = ""
    keep: Path | None = None
    settled: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Result:
    """What became of a step.

    Attributes:
        figures: the lines of its standard output that are JSON.
        report: what it wrote as a report.
        said: the end of its output.
    """

    step: str
    call: str
    status: Status
    rehearsal: bool
    exit_code: int | None = None
    began: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    command: str = ""
    why: str = ""
    figures: list[Any] = field(default_factory=list)
    report: Any = None
    said: str = ""


@dataclass(frozen=True)
class Session:
    """One call.

    Attributes:
        call: its name.
        deadline_s: of the monotonic clock; nothing runs past it.
        state: folder that keeps results, logs and records for the next call, while the machine is held.
        out: folder that comes back.
        rehearsal: whether no GPU computes here, so that no figure means anything.
    """

    call: str
    deadline_s: float
    state: Path
    out: Path
    rehearsal: bool

    def run(self, own: Sequence[Step], others: Sequence[Step] = ()) -> list[Result]:
        """Run what is not done. Returns the results of this call's own steps, earlier ones included.

        Args:
            own: the steps of this call.
            others: those of earlier calls.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        for step in (*own, *others):
            before = self.result(step.name)
            if before is not None and before["status"] == "done":
                print(f"=== {step.name}: done by an earlier call", flush=True)
                continue
            result = self._run(step)
            # What a step gave before it was cut off is worth more than that it did not fit this time.
            if result.status != "skipped" or before is None:
                self._keep(result, step)
            print(f"=== {step.name}: {result.status} after {result.seconds:.0f} s {result.why}".rstrip(), flush=True)
            if result.said and result.status not in ("done", "skipped"):
                print(result.said[-1200:], flush=True)
        self.pack()
        return [Result(**found) for step in own if (found := self.result(step.name)) is not None]

    def result(self, name: str) -> dict[str, Any] | None:
        """A step's result as JSON, if it has one."""
        path = self.state / f"{name}.json"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found

    def unpack(self, carried: Path) -> None:
        """Take an earlier call's state from its archive, on a machine that has none yet."""
        if carried.exists() and not self.state.exists():
            self.state.mkdir(parents=True)
            with tarfile.open(carried) as archive:
                archive.extractall(self.state, filter="data")

    def pack(self) -> None:
        """Write the state's archive, and all results in one file."""
        paths = sorted(self.state.glob("*.json"))
        results = [found for path in paths if (found := json.loads(path.read_text())).get("step") == path.stem]
        summary = {"call": self.call, "rehearsal": self.rehearsal, "packed": _now(), "steps": results}
        (self.out / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        with tarfile.open(self.out / STATE_ARCHIVE, "w:gz") as archive:
            for path in sorted(self.state.iterdir()):
                archive.add(path, path.name)

    def _run(self, step: Step) -> Result:
        left_s = self.deadline_s - PACKING_S - time.monotonic()
        limit_s = min(step.limit_s, left_s)
        if limit_s < step.least_s:
            why = f"{max(0.0, left_s):.0f} s are left, and it takes {step.least_s:.0f} at least"
            return Result(step.name, self.call, "skipped", self.rehearsal, began=_now(), why=why)
        seconds = f"{max(1.0, limit_s - INTERRUPT_S - START_S):.0f}"
        command = [part.replace("{seconds}", seconds) for part in step.command]
        report = self.state / step.report if step.report else None
        if report is not None:
            report.unlink(missing_ok=True)
        began, began_s = _now(), time.monotonic()
        out_path, log_path = self.state / f"{step.name}.out", self.state / f"{step.name}.log"
        with out_path.open("wb") as out, log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=out, stderr=log, start_new_session=True)
            in_time = _wait(process, limit_s - INTERRUPT_S)
        said, printed = log_path.read_text(errors="replace"), out_path.read_text(errors="replace")
        status: Status = "timed out" if not in_time else "done" if process.returncode in step.settled else "failed"
        return Result(
            step.name,
            self.call,
            status,
            self.rehearsal,
            exit_code=process.returncode,
            began=began,
            seconds=round(time.monotonic() - began_s, 1),
            limit_s=round(limit_s, 1),
            command=" ".join(command),
            figures=_json_lines(printed),
            report=_read_json(report),
            said=(printed[-TAIL:] if report is not None or not _json_lines(printed) else "") + said[-TAIL:],
        )

    def _keep(self, result: Result, step: Step) -> None:
        path = self.state / f"{step.name}.json"
        path.write_text(json.dumps(asdict(result), indent=1) + "\n")
        if self._has_room():
            shutil.copy(path, self.out)
        if step.keep is not None and step.keep.exists() and self._has_room():
            with tarfile.open(self.out / f"{step.name}.tar.gz", "w:gz") as archive:
                archive.add(step.keep, step.name)
        self.pack()  # a call that is ended from outside leaves what it has

    def _has_room(self) -> bool:
        """Whether another file may come back, besides the two that each call leaves."""
        return len([path for path in self.out.iterdir() if path.name not in (SUMMARY, STATE_ARCHIVE)]) < MOST_FILES - 2


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait for a process group to end, and end it when the time is up. Returns whether its leader ended by itself."""
    try:
        process.wait(limit_s)
        in_time = True
    except subprocess.TimeoutExpired:
        in_time = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.send_signal(signal.SIGINT)
            process.wait(INTERRUPT_S - 1.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return in_time


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _json_lines(text: str) -> list[Any]:
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def _read_json(path: Path | None) -> Any:
    if path is None or not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        return {"error": f"{path.name} is no JSON: {error}"}
