"""The core's metrics in Prometheus' text format. The registry is the core's own: frontends only pass its text on."""

from collections import Counter as PlainCounter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.messages import FrontendCounts, StatusReport
from scheduler_svc.core.fleet.fleet import FAILURES
from scheduler_svc.core.observability.frontend_counts import OTHER, REFUSAL_CODES, FrontendTotals
from scheduler_svc.core.observability.histogram import WeightedHistogram
from scheduler_svc.core.observability.vllm_names import vllm_metrics

OUTCOMES = ("stop", "length", "cancelled", "deadline", "error", "refused")
CAUSES = (*FAILURES, "restarted", "drained", "shutdown")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_SECONDS = (*SECONDS, 120.0, 300.0, 600.0, 1800.0)  # for what may take minutes
BETWEEN_TOKENS = (  # finer where a step's time mostly is
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1),
    *(0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
MAX_CLIENTS = 1024  # names with series of their own; there may be more keys, and others in their place later

AnyMetric = TypeVar("AnyMetric", Counter, Histogram)


@dataclass(frozen=True)
class Gauges:
    """The state at the time of a scrape.

    Attributes:
        open_requests: by client.
        messages_dropped: by link.
        keys_unreadable: 1 or 0, by whose keys they are.
        process_failures: by the kind of process.
        collectors: of metrics that only the process around the core can read.
    """

    report: StatusReport
    open_requests: Mapping[str, int]
    num_frontends: int
    messages_dropped: Mapping[str, int]
    queried_prompt_tokens: int
    strikes: int
    struck_out: int
    numberless: int
    late_rows: int
    model_changes: int
    journal_bytes: int
    journal_batches: int
    journal_failures: int
    keys_unreadable: Mapping[str, int]
    process_failures: Mapping[str, int]
    collectors: tuple[Collector, ...] = ()


class PrometheusMetrics:
    """Counters and histograms that events move; everything that is a state comes with `text`."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series, and no chart uses them
        self._registry = CollectorRegistry()
        self.sequences_ended = self._counter("baton_sequences_ended", "Sequences that ended.", outcome=OUTCOMES)
        self.requests_refused = self._counter(
            "baton_requests_refused", "Requests that were not taken.", code=REFUSAL_CODES
        )
        self.frontends = FrontendTotals()
        self.requests_restored = self._counter("baton_requests_restored", "Open requests found in the journal.")
        self.epochs_started = self._counter("baton_executor_epochs_started", "Times an executor joined.")
        self.epochs_ended = self._counter("baton_executor_epochs_ended", "Times an executor left.", cause=CAUSES)
        self.executors_rejected = self._counter("baton_executors_rejected", "Executors that may not join.")
        self.resumed = self._counter(
            "baton_sequences_resumed", "Sequences that lost their executor and went on elsewhere.", cause=CAUSES
        )
        self.resume_seconds = self._histogram(
            "baton_resume_seconds", "End of an executor's epoch to its sequences' next tokens.", cause=CAUSES
        )
        self.step_seconds = self._histogram("baton_step_seconds", "Computing one plan, as executors say.")
        self.first_token_seconds = self._weighted(
            "baton_time_to_first_token_seconds", "Submit to first token.", SECONDS
        )
        self.sequence_seconds = self._weighted(
            "baton_sequence_seconds", "Submit to the end of a sequence.", LONG_SECONDS
        )
        self.queue_seconds = self._weighted("baton_queue_seconds", "Submit to first admission.", LONG_SECONDS)
        self.inter_token_seconds = self._weighted(
            "baton_inter_token_seconds", "A sequence's token to its next one.", BETWEEN_TOKENS
        )
        self.output_token_seconds = self._weighted(
            "baton_output_token_seconds", "Mean time to each further token of a sequence that ended.", BETWEEN_TOKENS
        )
        self.prompt_lengths = self._weighted(
            "baton_sequence_prompt_tokens", "Prompt tokens of sequences that ended.", TOKENS
        )
        self.output_lengths = self._weighted(
            "baton_sequence_output_tokens", "Tokens generated of sequences that ended.", TOKENS
        )
        self._client_requests = self._counter("baton_client_requests", "HTTP requests accepted.", client=())
        self._client_prompts = self._counter("baton_client_prompt_tokens", "Prompt tokens accepted.", client=())
        self._client_outputs = self._counter(
            "baton_client_output_tokens", "Tokens generated, of requests that ended.", client=()
        )
        self._clients: set[str] = set()

    def client_asked(self, name: str, num_prompt: int, *, is_first: bool) -> None:
        """A request of the API key with this name was accepted.

        Args:
            is_first: whether it is the first prompt of its HTTP request.
        """
        name = self._client_label(name)
        self._client_requests.labels(name).inc(int(is_first))
        self._client_prompts.labels(name).inc(num_prompt)
        self._client_outputs.labels(name)  # a series of its own, before its first answer has ended

    def client_got(self, name: str, num_output: int) -> None:
        """A request of the API key with this name has ended, with so many tokens."""
        self._client_outputs.labels(self._client_label(name)).inc(num_output)

    def frontend_counted(self, counts: FrontendCounts) -> None:
        """A frontend has said what it counted."""
        for code, count in self.frontends.add(counts).items():
            self.requests_refused.labels(code).inc(count)

    def text(self, gauges: Gauges) -> bytes:
        """Everything in Prometheus' text format."""
        ours = [*self._registry.collect(), *self.frontends.families(), *_states(gauges)]
        ours += [metric for collector in gauges.collectors for metric in collector.collect()]
        whole = CollectorRegistry()
        whole.register(_Fixed([*ours, *vllm_metrics(ours, gauges.report)]))
        return generate_latest(whole)

    def _client_label(self, name: str) -> str:
        if len(self._clients) < MAX_CLIENTS:
            self._clients.add(name)
        return name if name in self._clients else OTHER

    def _counter(self, name: str, text: str, **label: tuple[str, ...]) -> Counter:
        return _with_series(Counter(name, text, list(label), registry=self._registry), label)

    def _histogram(self, name: str, text: str, **label: tuple[str, ...]) -> Histogram:
        return _with_series(Histogram(name, text, list(label), buckets=SECONDS, registry=self._registry), label)

    def _weighted(self, name: str, text: str, bounds: tuple[float, ...]) -> WeightedHistogram:
        histogram = WeightedHistogram(name, text, bounds)
        self._registry.register(histogram)
        return histogram


def _with_series(metric: AnyMetric, label: Mapping[str, tuple[str, ...]]) -> AnyMetric:
    """Give the metric a series for each value of its label now: Prometheus sees no increase to a first 1."""
    for values in label.values():
        for value in values:
            metric.labels(value)
    return metric


class _Fixed(Collector):
    """Metrics that were gathered already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """All metrics."""
        return self._metrics


def _states(gauges: Gauges) -> Iterator[Metric]:
    report = gauges.report
    yield _gauge("baton_build_info", "1; the label says what runs.", "version", {report.version: 1})
    yield _gauge(
        *("baton_sequences", "Sequences that have not ended.", "state"),
        {"waiting": report.waiting, "running": report.running},
    )
    states = PlainCounter(executor.state for executor in report.executors)
    by_state = {state: states[state] for state in ("ready", "finishing", "draining")}
    yield _gauge("baton_executors", "Executors in the fleet.", "state", by_state)
    with_standby = sum(executor.has_standby for executor in report.executors)
    yield GaugeMetricFamily("baton_executors_with_standby", "Executors with a standby that waits.", value=with_standby)
    yield from _scale(report)
    yield from _store(report)
    yield _blocks(report)
    yield _gauge("baton_open_requests", "Requests that have not ended.", "client", gauges.open_requests)
    yield GaugeMetricFamily("baton_frontends", "Frontends that are connected.", value=gauges.num_frontends)
    failures = CounterMetricFamily(
        "baton_process_failures", "Times that a process beside the core ended by itself.", labels=["process"]
    )
    for kind in ("frontend", "worker"):
        failures.add_metric([kind], gauges.process_failures.get(kind, 0))
    yield failures
    dropped = CounterMetricFamily("baton_messages_dropped", "Malformed or foreign messages.", labels=["link"])
    for link, count in gauges.messages_dropped.items():
        dropped.add_metric([link], count)
    yield dropped
    journal = {state: int(report.journal == state) for state in ("ok", "failed", "off")}
    yield _gauge("baton_journal_state", "1 for the journal's present state.", "state", journal)
    yield GaugeMetricFamily("baton_journal_lag_seconds", "Age of what is not on disk.", value=report.journal_lag_s)
    yield GaugeMetricFamily("baton_journal_bytes", "Length of the journal on disk.", value=gauges.journal_bytes)
    unreadable = "1 while keys cannot be read, so that those of before stay."
    yield _gauge("baton_keys_unreadable", unreadable, "whose", gauges.keys_unreadable)
    for name, text, value in (
        ("baton_journal_batches", "Batches written to the journal.", gauges.journal_batches),
        ("baton_journal_failures", "Writes to the journal that failed or got stuck.", gauges.journal_failures),
        ("baton_preemptions", "Sequences that lost their blocks to an older one.", report.preemptions),
        ("baton_strikes", "Failures of executors, once for each sequence they computed.", gauges.strikes),
        ("baton_sequences_ended_by_strikes", "Sequences that executors failed of again and again.", gauges.struck_out),
        ("baton_rows_without_numbers", "Rows whose scores, or results, were no numbers.", gauges.numberless),
        ("baton_rows_late", "Rows whose grammars' masks were not there in time.", gauges.late_rows),
        ("baton_model_changes", "Sequences that went on with another model.", gauges.model_changes),
        ("baton_prompt_tokens", "Prompt tokens accepted.", report.prompt_tokens),
        ("baton_queried_prompt_tokens", "Prompt tokens looked up in the prefix cache.", gauges.queried_prompt_tokens),
        ("baton_cached_prompt_tokens", "Prompt tokens found in the prefix cache.", report.cached_prompt_tokens),
        ("baton_pools_adopted", "Pools that another epoch continued with what was in them.", report.pools_adopted),
        ("baton_recomputed_tokens", "Positions written before, and computed again.", report.recomputed_tokens),
        ("baton_output_tokens", "Tokens generated.", report.output_tokens),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge


def _scale(report: StatusReport) -> Iterator[Metric]:
    """Without a value while no number is wanted: an autoscaler then leaves the fleet as it is."""
    wanted = GaugeMetricFamily("baton_executors_wanted", "Executors that the load asks for.")
    forecast = GaugeMetricFamily("baton_forecast_ttft_seconds", "Time to the first token of a request that comes now.")
    if (scale := report.scale) is not None:
        wanted.add_metric([], scale.wanted)
        forecast.add_metric([], scale.forecast_ttft_s)
    yield from (wanted, forecast)


def _store(report: StatusReport) -> Iterator[Metric]:
    """Without values where there is no store, and while it cannot be read."""
    if (store := report.store) is None:
        return
    for name, text, value in (
        ("baton_store_bytes", "What the store takes on its disk.", store.bytes_on_disk),
        ("baton_store_free_bytes", "Room that is left on the store's disk.", store.free_bytes),
        ("baton_store_disk_bytes", "Size of the store's disk.", store.disk_bytes),
        ("baton_store_limit_bytes", "What each API key may have in the store, 0 for no limit.", store.limit_bytes),
        ("baton_store_open_batches", "Batches that have not ended.", store.open_batches),
        ("baton_store_open_responses", "Responses in the background that have not ended.", store.open_responses),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    yield _gauge("baton_store_client_bytes", "What the fullest API keys have in the store.", "client", store.clients)
    states = {state: int(store.worker == state) for state in ("idle", "running", "down")}
    yield _gauge("baton_store_worker_state", "1 for the background worker's present state.", "state", states)


def _blocks(report: StatusReport) -> Metric:
    blocks = GaugeMetricFamily("baton_blocks", "KV blocks.", labels=["executor", "state"])
    used, free = PlainCounter[str](), PlainCounter[str]()  # sums, because two executors may have one name
    for executor in report.executors:
        used[executor.executor] += executor.num_blocks - executor.free_blocks
        free[executor.executor] += executor.free_blocks
    for name in used:
        blocks.add_metric([name, "used"], used[name])
        blocks.add_metric([name, "free"], free[name])
    return blocks
