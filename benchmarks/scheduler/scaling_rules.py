"""Rules that say how many executors there should be, to compare: a fixed number, KEDA's usual rule, and ours, carried
out at once or by KEDA.

KEDA gives its metric to a HorizontalPodAutoscaler, which asks for it every 15 s and wants `ceil(metric / threshold)`
pods (an AverageValue), unless that metric is within 10% of the threshold for the pods that are there. More pods come
at once, at most 4 or as many as there are in 15 s; fewer only when the highest wish of the last 300 s is lower
(https://keda.sh/docs/latest/reference/scaledobject-spec/,
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/). KEDA's own polling of 30 s is between
none and one pod, which does not happen here as its `minReplicaCount` is 1. The metric is as fresh as when Prometheus
had just scraped it, which is better than it is in a cluster.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from scheduler_svc.core.core import Core

HPA_SYNC_S = 15.0
HPA_STABILIZATION_S = 300.0
HPA_TOLERANCE = 0.1
HPA_UP_PODS = 4


class Rule(Protocol):
    """Says how many executors there should be."""

    def wanted(self, core: Core, size: int, now: float) -> int:
        """How many there should be now.

        Args:
            size: executors that are there or on the way.
        """


class Fixed:
    """So many, always."""

    def __init__(self, size: int) -> None:
        self._size = size

    def wanted(self, core: Core, size: int, now: float) -> int:
        """See `Rule`."""
        return self._size


Metric = Callable[[Core], int]
METRICS: dict[str, Metric] = {
    "waiting": lambda core: core.scheduler.num_waiting,  # vllm:num_requests_waiting
    "open": lambda core: core.scheduler.num_waiting + core.scheduler.num_running,
}


class Keda:
    """A ScaledObject with one trigger and the HorizontalPodAutoscaler that KEDA makes of it, with their defaults.

    Args:
        metric: what is to be `threshold` for each executor.
    """

    def __init__(self, metric: Metric, threshold: float, least: int, most: int) -> None:
        self._metric, self._threshold = metric, threshold
        self._least, self._most = least, most
        self._wishes: deque[tuple[float, int]] = deque()
        self._next = 0.0
        self._wanted = least

    def wanted(self, core: Core, size: int, now: float) -> int:
        """See `Rule`."""
        if now < self._next:
            return self._wanted
        self._next = now + HPA_SYNC_S
        metric = self._metric(core)
        ratio = metric / (self._threshold * size) if size else math.inf
        wish = size if abs(ratio - 1.0) <= HPA_TOLERANCE else math.ceil(metric / self._threshold)
        wish = min(self._most, max(self._least, wish))
        self._wishes.append((now, wish))
        while self._wishes[0][0] < now - HPA_STABILIZATION_S:
            self._wishes.popleft()
        highest = max(each for _, each in self._wishes)
        if wish >= size:
            self._wanted = min(wish, size + max(HPA_UP_PODS, size))
        else:
            self._wanted = min(size, highest)
        return self._wanted


class Ours:
    """What the core itself reports."""

    def wanted(self, core: Core, size: int, now: float) -> int:
        """See `Rule`."""
        report = core.scale_report()
        return size if report is None else report.wanted


class OursByKeda:
    """What the core reports, as `deploy/kubernetes/keda` carries it out: read every 15 s, without a wait of the
    autoscaler's own, and unchanged where the difference is within its tolerance."""

    def __init__(self) -> None:
        self._next = 0.0

    def wanted(self, core: Core, size: int, now: float) -> int:
        """See `Rule`."""
        report = core.scale_report()
        if now < self._next or report is None:
            return size
        self._next = now + HPA_SYNC_S
        return size if size and abs(report.wanted / size - 1.0) <= HPA_TOLERANCE else report.wanted
