"""The CPU time and the memory that the control groups of this process leave it (cgroup v1 and v2).

A container's limit stands at the top of what it sees. Those of systemd (CPUQuota, MemoryMax) and of Slurm stand in the
group of the process, or in one above it, of which the smallest limit counts.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_MOUNT = "sys/fs/cgroup"  # where all systems have it; for a /proc that tells less
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a space, tab, line end or backslash in mountinfo


def paid_cpus(num_cpus: int, num_processes: int = 1, root: Path = _ROOT) -> int:
    """How many CPUs a process may keep busy: all that it has, or as many as its share of the quota pays for, rounded
    down, but 1 at least. With more threads than that, the system would stop all of them whenever the quota is used up.

    Args:
        num_processes: that share the quota.
        root: folder with proc and sys.
    """
    quota = _cpu_quota(root)
    return num_cpus if quota is None else max(1, min(num_cpus, int(quota) // num_processes))


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time; None without a quota."""
    quotas = []
    for folder in _groups("cpu", root):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            try:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            except (OSError, ValueError):
                continue
        if quota.isdecimal() and period.isdecimal() and int(period):  # not `max`, or -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_room(root: Path = _ROOT) -> int | None:
    """Bytes that the limits leave this process; None without one.

    Clean page cache counts as room, as in Kubernetes' working set: reading the weights has just filled it.

    Args:
        root: folder with proc and sys.
    """
    rooms = []
    for folder in _groups("memory", root):
        for limit_file, usage_file, cache_field in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read_bytes(folder / limit_file), _read_bytes(folder / usage_file)
            if limit is not None and usage is not None:
                used = max(0, usage - _read_field(folder / "memory.stat", cache_field))
                rooms.append(max(0, limit - used))
    return min(rooms, default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's groups that may have limits of a controller, each with those above it, as far up as
    they are mounted here; and the usual tops, for where its group is not mounted."""
    paths = _own_paths(controller, root)
    for mount, top, kind in _mounts(controller, root):
        below = _below(paths[kind], top) if kind in paths else None
        if below is not None and os.path.isdir(mount / below):  # False also where this user may not look
            folder = mount / below
            yield folder
            while folder != mount:
                folder = folder.parent
                yield folder
    yield from (root / _MOUNT, root / _MOUNT / controller)


def _own_paths(controller: str, root: Path) -> dict[str, str]:
    """The path of this process's group in its hierarchies: `cgroup2`'s, and the one of version 1 with a controller."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not path.startswith("/"):
            continue
        if not controllers:
            paths["cgroup2"] = path
        elif controller in controllers.split(","):
            paths["cgroup"] = path
    return paths


def _mounts(controller: str, root: Path) -> Iterator[tuple[Path, str, str]]:
    """Where these hierarchies are mounted: the folder, the path of the group that is its top, and the file system."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, *options = after.split(" ")
        places = before.split(" ")[3:5]
        if len(places) == 2 and (kind == "cgroup2" or (kind == "cgroup" and controller in options[-1].split(","))):
            top, mount = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), text) for text in places)
            yield root / mount.lstrip("/"), top, kind


def _below(path: str, top: str) -> str | None:
    """A group's path below a group above it; None if that is not above it, or if it cannot be told: groups beyond a
    cgroup namespace have no names in there, but `..`."""
    if ".." in f"{path}/{top}".split("/"):
        return None
    below = os.path.relpath(path, top)
    return None if below.startswith("..") else below


def _lines(path: Path) -> list[str]:
    """Those of a file of the kernel's; none where there is no such file, as on other systems."""
    try:
        text = path.read_text(errors="surrogateescape")
    except OSError:
        return []
    return [line for line in text.split("\n") if line]


def _read_bytes(path: Path) -> int | None:
    """The number in a cgroup file; None if there is no such file or no limit (`max`)."""
    try:
        text = path.read_text().strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _read_field(path: Path, field: str) -> int:
    """A number in a cgroup's statistics; 0 if there is none."""
    values = [line.split()[1:] for line in _lines(path) if line.split()[:1] == [field]]
    return int(values[0][0]) if values and values[0] and values[0][0].isdecimal() else 0
