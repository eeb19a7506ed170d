"""What each process of the scheduler's side takes of its machine, under the names of Prometheus' own clients."""

import os
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

CORE = "core"
LEFT_OUT = "process_virtual_memory_bytes"  # says nothing of a process that maps files


class ProcessUse(Collector):
    """Reads /proc at each scrape. A process that has just ended has no values.

    Args:
        beside: names and ids of the processes beside this one.
    """

    def __init__(self, beside: Callable[[], Mapping[str, int]]) -> None:
        self._beside = beside

    def collect(self) -> Iterable[Metric]:
        """Return one metric of each name, with a value for each process."""
        metrics: dict[str, Metric] = {}
        for process, pid in {CORE: os.getpid(), **self._beside()}.items():
            for read in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                if read.name != LEFT_OUT:
                    metric = metrics.setdefault(read.name, Metric(read.name, read.documentation, read.type))
                    for sample in read.samples:
                        metric.add_sample(sample.name, {"process": process}, sample.value)
        return metrics.values()
