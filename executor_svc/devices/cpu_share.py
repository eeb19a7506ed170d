"""Which CPUs a process may compute on."""

import os
from collections.abc import Mapping
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def own_cpus(environment: Mapping[str, str] = os.environ) -> list[int]:
    """Numbers of the CPUs that this process may run on; ranks that torchrun started on this machine divide them.

    With more ranks than CPUs each rank gets one, which other ranks use too.
    """
    cpus = sorted(os.sched_getaffinity(0))
    ranks, rank = int(environment.get("LOCAL_WORLD_SIZE", "1")), int(environment.get("LOCAL_RANK", "0"))
    each = len(cpus) // ranks
    return cpus[rank * each : (rank + 1) * each] or [cpus[rank % len(cpus)]]


def cgroup_cpus(cgroup_root: Path = _CGROUP_ROOT) -> int | None:
    """CPUs' worth of time that the container's quota gives (cgroup v2, v1), rounded down, but 1 at least; None for all.

    With more threads than that, the system would stop all of them whenever the quota is used up.
    """
    try:
        quota, period = (cgroup_root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((cgroup_root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    if not quota.strip().isdigit():  # `max`, or -1
        return None
    return max(1, int(quota) // int(period))
