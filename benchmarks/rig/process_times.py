"""CPU time of processes and of all their descendants. Linux counts it in steps of 10 ms."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    parent: int
    ticks: int


def children() -> set[int]:
    """Ids of the processes that this process started and that have not ended."""
    return {pid for pid, process in _processes().items() if process.parent == os.getpid()}


def cpu_time_s(roots: Collection[int]) -> float:
    """CPU seconds of these processes and their descendants, including the ended ones that they have waited for."""
    processes = _processes()
    found: set[int] = set()
    newest = {pid for pid in roots if pid in processes}
    while newest:
        found |= newest
        newest = {pid for pid, process in processes.items() if process.parent in newest} - found
    return sum(processes[pid].ticks for pid in found) / _TICKS_PER_S


def _processes() -> dict[int, _Process]:
    """All processes of this machine by their ids. See proc(5), /proc/PID/stat."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            line = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has just ended
            continue
        fields = line.rpartition(")")[2].split()  # the program's name before it may have any characters
        processes[int(entry.name)] = _Process(parent=int(fields[1]), ticks=sum(map(int, fields[11:15])))
    return processes
