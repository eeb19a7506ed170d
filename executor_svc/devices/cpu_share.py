"""Which CPUs a process may compute on, and with how many threads."""

import os
from collections.abc import Mapping

from common.cgroups import paid_cpus


def own_cpus(environment: Mapping[str, str] = os.environ) -> list[int]:
    """Numbers of the CPUs that this process may run on; ranks that torchrun started on this machine divide them.

    With more ranks than CPUs each rank gets one, which other ranks use too.
    """
    cpus = sorted(os.sched_getaffinity(0))
    ranks, rank = _num_ranks(environment), int(environment.get("LOCAL_RANK", "0"))
    each = len(cpus) // ranks
    return cpus[rank * each : (rank + 1) * each] or [cpus[rank % len(cpus)]]


def own_num_threads(environment: Mapping[str, str] = os.environ) -> int:
    """How many threads to compute with: one for each of `own_cpus`, or as many as a rank's share of a quota pays."""
    return paid_cpus(len(own_cpus(environment)), _num_ranks(environment))


def _num_ranks(environment: Mapping[str, str]) -> int:
    return int(environment.get("LOCAL_WORLD_SIZE", "1"))
