"""What frontends have counted, added up: a scrape reaches any of them, and the counts of one that ended stay. Pure."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from common import messages as m

MAX_SERIES = 1024  # of each metric; frontends send few, and what else there is counts as OTHER
OTHER = "other"
REFUSAL_CODES = (
    *("queue_full", "too_many_requests", "rate_limit_exceeded", "request_exists", "context_length_exceeded"),
    *("invalid_value", "invalid_type", "invalid_json", "invalid_grammar", "unknown_parameter", "unsupported_parameter"),
    *("missing_required_parameter", "model_not_found", "request_not_found", "unknown_url", "method_not_allowed"),
    *("body_too_large", "invalid_api_key", "forbidden", "host_not_allowed", "origin_not_allowed", "unavailable"),
    *("internal_error", "no_executor", "task_not_served", "store_gone", "insufficient_storage"),
)


# Series that are there before anything happens: Prometheus sees no increase to a first 1.
GENERATING = ("/v1/chat/completions", "/v1/completions")
STATUSES = ("200", "400", "401", "404", "422", "429", "499", "500", "503", "504", "507")


class FrontendTotals:
    """Sums over all frontends, those that are gone included."""

    def __init__(self) -> None:
        self._http: Counter[tuple[str, str]] = Counter({(path, code): 0 for path in GENERATING for code in STATUSES})
        self._ignored: Counter[str] = Counter({OTHER: 0})
        self._codes = set(REFUSAL_CODES)

    def add(self, counts: m.FrontendCounts) -> Counter[str]:
        """Add what a frontend has counted. Returns its refusals by code, for the counter that the core's own are in."""
        for http in counts.http:
            key = (http.path, str(http.status))
            self._http[key if key in self._http or len(self._http) < MAX_SERIES else (OTHER, OTHER)] += http.count
        for place in counts.ignored:
            known = place.name in self._ignored or len(self._ignored) < MAX_SERIES
            self._ignored[place.name if known else OTHER] += place.count
        refused: Counter[str] = Counter()
        for each in counts.refused:
            if len(self._codes) < MAX_SERIES:
                self._codes.add(each.name)
            refused[each.name if each.name in self._codes else OTHER] += each.count
        return refused

    def families(self) -> Iterator[Metric]:
        """The sums as metrics."""
        requests = CounterMetricFamily(
            "baton_http_requests", "HTTP requests that were answered.", labels=["path", "code"]
        )
        for (path, code), count in self._http.items():
            requests.add_metric([path, code], count)
        yield requests
        ignored = CounterMetricFamily("baton_ignored_fields", "Fields of requests that were ignored.", labels=["place"])
        for place, count in self._ignored.items():
            ignored.add_metric([place], count)
        yield ignored
