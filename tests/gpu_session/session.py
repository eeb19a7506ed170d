"""Runs the steps of a pack on a borrowed GPU machine within its time; each result is written as its step ends.

A step is a command with a limit. When it ends, or one of the test files that it runs, a line of JSON is appended to
`results.jsonl` in the folder that comes back: a pack that is ended from outside leaves what it has. A step that no
longer fits is skipped, and its line says so. No step depends on another one's success.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tests.gpu_session.ledger import Outcome, Result
from tests.gpu_session.packs import Item, Step

RESULTS = "results.jsonl"
MOST_FILES = 8  # that come back
TAIL = 3000  # characters of a step's output that its result keeps
HAS_NOT_RUN = "it has not run"
BY_FILE_HAS_RUN = (0, 1, 3)  # exit codes of by_file, which ends in time by itself


@dataclass(frozen=True)
class Session:
    """One run of a pack.

    Attributes:
        pack: its name.
        deadline_s: of the monotonic clock; nothing runs past it.
        scratch: folder of checkpoints, logs and whatever steps write.
        carried: folder of what came along.
        out: folder that comes back.
        gpu: name of the GPU.
        versions: of what results depend on.
        rehearsal: whether no GPU computes here, so that no figure means anything.
        packing_s: kept for the end of the pack.
        interrupt_s: that a step has to stop its services in.
        start_s: from a step's start until it has read how long it has.
    """

    pack: str
    deadline_s: float
    scratch: Path
    carried: Path
    out: Path
    gpu: str
    versions: Mapping[str, str]
    rehearsal: bool = False
    packing_s: float = 4.0
    interrupt_s: float = 6.0
    start_s: float = 4.0

    def run(self, steps: Sequence[Step], done: Mapping[str, str] | None = None) -> list[Result]:
        """Run the steps that are due, in their order. Returns their results, one for each item.

        Args:
            done: keys of what has passed, by the item's name.
        """
        for folder in (self.scratch, self.out):
            folder.mkdir(parents=True, exist_ok=True)
        results = []
        for step in steps:
            keys = {item.name: step.key(item, self.versions) for item in step.parts}
            due = [item for item in step.parts if step.is_always_due or (done or {}).get(item.name) != keys[item.name]]
            if not due:
                print(f"=== {step.name}: has passed already", flush=True)
                continue
            running = _Running(self, step, due, keys)
            results += running.results(self._time_for(step))
            self._keep(step)
        return results

    def write(self, result: Result) -> None:
        """Append a line to what comes back, and print it in short."""
        with (self.out / RESULTS).open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        new = f", {result.new_kernels} kernels compiled" if result.new_kernels else ""
        print(
            f"=== {result.step}: {result.outcome} after {result.seconds:.0f} s{new} {result.why}".rstrip(), flush=True
        )
        for figures in result.figures:
            print(json.dumps(figures)[:600], flush=True)
        if result.said:
            print(result.said[-1200:], flush=True)

    def fill(self, text: str, seconds: float = 0.0) -> str:
        """A part of a command with its placeholders filled in."""
        values = {"python": sys.executable, "scratch": self.scratch, "carried": self.carried.resolve()}
        values["seconds"] = f"{max(1.0, seconds - self.interrupt_s - self.start_s):.0f}"
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def _time_for(self, step: Step) -> float:
        return min(step.limit_s, self.deadline_s - self.packing_s - time.monotonic())

    def _keep(self, step: Step) -> None:
        folder = Path(self.fill(step.keep)) if step.keep else None
        if folder is not None and folder.exists() and len(list(self.out.iterdir())) < MOST_FILES:
            with tarfile.open(self.out / f"{step.name.replace(' ', '_')}.tar.gz", "w:gz") as archive:
                archive.add(folder, step.name)


class _Running:
    """A step that runs."""

    def __init__(self, session: Session, step: Step, due: Sequence[Item], keys: Mapping[str, str]) -> None:
        self._session = session
        self._step = step
        self._due = due
        self._keys = keys
        self._began = datetime.now(UTC).isoformat(timespec="seconds")
        self._began_s = time.monotonic()
        self._figures: list[Any] = []
        self._printed = ""
        self._ended: dict[str, Result] = {}

    def results(self, limit_s: float) -> list[Result]:
        """Run the step for at most `limit_s` seconds; the result of each item that is due."""
        step = self._step
        if limit_s < step.least_s:
            why = f"{max(0.0, limit_s):.0f} s are left, and it takes {step.least_s:.0f} at least"
            return [self._end(item, "skipped", why=why) for item in self._due]
        files = [item.file for item in self._due]
        command = [
            text
            for part in step.command
            for text in (files if part == "{files}" else [self._session.fill(part, limit_s)])
        ]
        known = _num_entries()
        code, said, why = self._run(command, limit_s)
        new = _num_entries() - known
        if step.items:
            print(f"{new} kernels compiled", flush=True)
            was_late = bool(why) or code in BY_FILE_HAS_RUN
            for item in [item for item in self._due if item.name not in self._ended]:
                self._end(item, "timed out" if was_late else "failed", code, why or HAS_NOT_RUN, said)
            return list(self._ended.values())
        outcome: Outcome = "timed out" if why else "passed" if code in step.settled else "failed"
        said = said if outcome != "passed" else ""
        return [self._end(step.parts[0], outcome, code, why, said, self._figures, new)]

    def _run(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str, str]:
        """Run a command. Returns its exit code, the end of what it said, and why it was ended, if it was."""
        log_path = self._session.scratch / f"{self._step.name.replace(' ', '_')}.log"
        try:
            with log_path.open("wb") as log:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        except OSError as error:
            return 127, f"{command[0]}: {error.strerror}", ""
        assert process.stdout is not None
        lines: Any = process.stdout
        reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        reader.start()
        interrupt_s = self._session.interrupt_s
        in_time = _wait(process, limit_s - interrupt_s, interrupt_s)
        reader.join(timeout=2.0)
        said = self._printed[-TAIL:] + log_path.read_text(errors="replace")[-TAIL:]
        return process.returncode, said, "" if in_time else f"it was ended after {limit_s:.0f} s"

    def _read(self, lines: Iterator[bytes]) -> None:
        """Take what the step prints. A line of JSON is a figure; one that names a file ends that file's item."""
        for line in lines:
            text = line.decode(errors="replace")
            figures = _json(text)
            if figures is None:
                self._printed = (self._printed + text)[-TAIL:]
                continue
            item = next((item for item in self._due if item.file and item.file == figures.get("file")), None)
            if item is None:
                self._figures.append(figures)
            else:
                outcome = figures.pop("outcome", "failed")
                said = json.dumps(figures.get("first_failing") or figures.get("problem") or "")
                figures = [figures]
                self._end(item, outcome, said="" if outcome == "passed" else said, figures=figures)

    def _end(
        self,
        item: Item,
        outcome: Outcome,
        exit_code: int | None = None,
        why: str = "",
        said: str = "",
        figures: Sequence[Any] = (),
        new_kernels: int = 0,
    ) -> Result:
        session = self._session
        seconds = round(time.monotonic() - self._began_s, 1)
        if figures and isinstance(figures[0], dict) and "file" in figures[0]:
            seconds = figures[0].get("seconds", seconds)
        result = Result(
            step=item.name,
            pack=session.pack,
            key=self._keys[item.name],
            outcome=outcome,
            gpu=session.gpu,
            began=self._began,
            seconds=seconds,
            rehearsal=session.rehearsal,
            exit_code=exit_code,
            new_kernels=new_kernels,
            versions=dict(session.versions),
            figures=list(figures),
            why=why,
            said=said,
        )
        self._ended[item.name] = result
        session.write(result)
        return result


def _num_entries() -> int:
    """Kernels in Triton's cache."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR", "/nonexistent"))
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _wait(process: subprocess.Popen[bytes], limit_s: float, interrupt_s: float) -> bool:
    """Wait for a process group to end, and end it when the time is up. Returns whether its leader ended by itself."""
    try:
        process.wait(limit_s)
        in_time = True
    except subprocess.TimeoutExpired:
        in_time = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.send_signal(signal.SIGINT)
            process.wait(interrupt_s - 1.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return in_time


def _json(line: str) -> dict[str, Any] | None:
    if line.startswith("{"):
        with contextlib.suppress(json.JSONDecodeError):
            found: dict[str, Any] = json.loads(line)
            return found
    return None
