"""The processes that a process has started."""

from pathlib import Path

from tests.support.processes import is_running


def children_of(pid: int) -> set[int]:
    """Return the ids of those that run."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found |= {int(child) for child in (task / "children").read_text().split()}
    return {child for child in found if is_running(child)}
