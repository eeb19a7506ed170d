"""What the core exports to Prometheus. One registry of the core's own: frontends only pass its text on."""

from collections import Counter as PlainCounter
from collections import deque
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.messages import StatusReport

RATE_WINDOW_S = 10.0
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters and histograms that events move; everything that is a state is read from a StatusReport.

    Args:
        report: gives the service's state at the time of a scrape.
    """

    def __init__(self, report: Callable[[], StatusReport]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series and nobody charts them
        self.registry = CollectorRegistry()
        self.sequences_ended = Counter(
            "baton_sequences_ended", "Sequences that ended.", ["outcome"], registry=self.registry
        )
        self.epochs_ended = Counter(
            "baton_executor_epochs_ended", "Epochs that ended.", ["cause"], registry=self.registry
        )
        self.resumed = Counter("baton_sequences_resumed", "Sequences handed over.", registry=self.registry)
        self.step_seconds = Histogram(
            "baton_step_seconds", "Computing one plan, as executors say.", buckets=SECONDS, registry=self.registry
        )
        self.first_token_seconds = Histogram(
            "baton_time_to_first_token_seconds", "Submit to first token.", buckets=SECONDS, registry=self.registry
        )
        self.sequence_seconds = Histogram(
            "baton_sequence_seconds", "Submit to the end of a sequence.", buckets=SECONDS, registry=self.registry
        )
        self.registry.register(_StateCollector(report))

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _StateCollector(Collector):
    """Turns a StatusReport into gauges and counters when it is scraped."""

    def __init__(self, report: Callable[[], StatusReport]) -> None:
        self._report = report

    def describe(self) -> Iterable[Metric]:
        """Nothing: the report's metrics are known when it is read."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The report as metrics."""
        report = self._report()
        sequences = GaugeMetricFamily("baton_sequences", "Sequences that have not ended.", labels=["state"])
        sequences.add_metric(["waiting"], report.waiting)
        sequences.add_metric(["running"], report.running)
        yield sequences
        executors = GaugeMetricFamily("baton_executors", "Executors in the fleet.", labels=["state"])
        for state in ("ready", "draining"):
            executors.add_metric([state], sum(e.state == state for e in report.executors))
        yield executors
        blocks = GaugeMetricFamily("baton_blocks", "KV blocks.", labels=["executor", "state"])
        used, free = PlainCounter[str](), PlainCounter[str]()  # sums, because nobody keeps names from being used twice
        for e in report.executors:
            used[e.executor] += e.num_blocks - e.free_blocks
            free[e.executor] += e.free_blocks
        for name in used:
            blocks.add_metric([name, "used"], used[name])
            blocks.add_metric([name, "free"], free[name])
        yield blocks
        for name, text, value in (
            ("baton_preemptions", "Sequences that lost their blocks to an older one.", report.preemptions),
            ("baton_prompt_tokens", "Prompt tokens accepted.", report.prompt_tokens),
            ("baton_cached_prompt_tokens", "Prompt tokens found in the prefix cache.", report.cached_prompt_tokens),
            ("baton_output_tokens", "Tokens generated.", report.output_tokens),
            ("baton_messages_dropped", "Malformed or foreign messages.", report.messages_dropped),
        ):
            yield CounterMetricFamily(name, text, value=value)


class Rate:
    """Growth of a count over the last `RATE_WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, total: int) -> None:
        """Note the count; to be called about once a second."""
        self._samples.append((now, total))
        while now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> float:
        """The rate, 0 before there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._samples[0], self._samples[-1]
        return (n1 - n0) / (t1 - t0)
