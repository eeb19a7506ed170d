"""What has run on a GPU: the newest result of each step on each kind of GPU, in `ledger.jsonl`, a line a result.

A result carries the key of what it depends on (`packs.Step.key`). A step whose key stands there as passed is not run
again, so whoever has the next GPU goes on where the last one stopped. Values that are right on one kind of GPU count
for all; a step that a table reads is measured on each kind.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

LEDGER = Path(__file__).with_name("ledger.jsonl")
SAID = 1500  # characters of a failure that the ledger keeps

Outcome = Literal["passed", "failed", "timed out", "skipped"]


class Result(msgspec.Struct, omit_defaults=True, kw_only=True, frozen=True):
    """What became of a step, or of one of its test files.

    Attributes:
        step: its name, or that of the test file's item.
        pack: that it ran in.
        key: of what it depends on.
        gpu: name of the GPU.
        began: ISO time, in UTC.
        rehearsal: whether no GPU computed, so that no figure means anything.
        new_kernels: that Triton compiled, since the carried cache did not have them.
        versions: of what decides a result.
        figures: the lines of JSON that the step printed.
        why: it was skipped or ended.
        said: the end of its output, if it did not pass.
    """

    step: str
    pack: str
    key: str
    outcome: Outcome
    gpu: str
    began: str
    seconds: float
    rehearsal: bool = False
    exit_code: int | None = None
    new_kernels: int = 0
    versions: dict[str, str] = {}
    figures: list[Any] = []
    why: str = ""
    said: str = ""

    @property
    def chip(self) -> str:
        """The kind of GPU in a word."""
        return chip_of(self.gpu)


def chip_of(gpu: str) -> str:
    """The kind of a GPU in a word, by the driver's name of it: H100, H200, ..."""
    found = re.search(r"\b[ABHL]\d+\w*", gpu)
    return gpu if found is None else found[0]


class Ledger:
    """Results by step and kind of GPU.

    Args:
        results: of any order; of several of a step on a kind of GPU, the last one stays.
    """

    def __init__(self, results: Iterable[Result] = ()) -> None:
        self._results: dict[tuple[str, str], Result] = {}
        for result in results:
            self._results[result.step, result.chip] = result

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def passed_keys(self, step: str, chip: str = "") -> set[str]:
        """Keys that stand as passed, on a kind of GPU or on any."""
        passed = (result for result in self if result.step == step and result.outcome == "passed")
        return {result.key for result in passed if chip in ("", result.chip)}

    def latest(self, step: str, chip: str) -> Result | None:
        """The result of a step on a kind of GPU."""
        return self._results.get((step, chip))

    def chips(self) -> list[str]:
        """Kinds of GPU that something has run on, in alphabetical order."""
        return sorted({chip for _, chip in self._results})

    def enter(self, result: Result) -> bool:
        """Enter a result of a GPU. Returns whether it says something new.

        A skip says nothing. What was cut off does not replace what has passed with the same key.

        Raises:
            ValueError: it is of a rehearsal.
        """
        if result.rehearsal:
            raise ValueError(f"{result.step} ran in a rehearsal: its figures mean nothing")
        before = self.latest(result.step, result.chip)
        if result.outcome == "skipped" or (before is not None and before.began > result.began):
            return False
        if (
            result.outcome == "timed out"
            and before is not None
            and (before.outcome, before.key) == ("passed", result.key)
        ):
            return False
        short = msgspec.structs.replace(result, said=result.said[-SAID:])
        self._results[result.step, result.chip] = short
        return before != short

    def save(self, path: Path = LEDGER) -> None:
        """Write all results, sorted, so that a change of one step is a change of one line."""
        lines = sorted(self, key=lambda result: (result.pack, result.step, result.chip))
        path.write_bytes(b"".join(msgspec.json.encode(result, order="deterministic") + b"\n" for result in lines))


def read_results(path: Path) -> list[Result]:
    """The results in a file of lines; none if there is no such file. A line that was cut off is left out."""
    results = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            results.append(msgspec.json.decode(line, type=Result))
        except msgspec.DecodeError:
            continue
    return results
