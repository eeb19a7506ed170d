"""What a PromQL query asks for, held against what is exported. It is parsed by promql-parser.

A query of a metric or label that does not exist is no error to Prometheus: it gives nothing, and a panel or alert of
it is silent for ever.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import promql_parser as pq
from prometheus_client.parser import text_string_to_metric_families

FROM_THE_SCRAPE = {"job", "instance"}  # labels that Prometheus adds
FROM_PROMETHEUS = {"up"}  # a metric that it makes
ANYTHING = frozenset({"$job", "baton"})  # values of job


@dataclass
class Exported:
    """Names of metrics, and the values of each label of each.

    Attributes:
        series: metric to label to the values seen.
    """

    series: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))

    @classmethod
    def of(cls, text: str) -> "Exported":
        """What stands in Prometheus' text format."""
        exported = cls()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = exported.series[sample.name]
                for label, value in sample.labels.items():
                    labels[label].add(value)
        return exported


def complaints(query: str, exported: Exported) -> list[str]:
    """What in a query does not exist; nothing if all does."""
    try:
        expression = pq.parse(_without_variables(query))
    except ValueError as error:
        return [f"{query!r} is no PromQL: {error}"]
    return list(_walk(expression, exported))


def metrics_of(query: str) -> set[str]:
    """Names of the metrics in a query."""
    return {selector.name for selector in _selectors(pq.parse(_without_variables(query)))}


def _without_variables(query: str) -> str:
    """Grafana replaces its variables before Prometheus sees the query; those in strings may stay."""
    return query.replace("$__rate_interval", "5m").replace("$__range", "1h")


def _walk(expression: Any, exported: Exported) -> Iterator[str]:
    for node in _nodes(expression):
        match node:
            case pq.VectorSelector():
                yield from _selector_complaints(node, exported)
            case pq.AggregateExpr(modifier=modifier) if modifier is not None:
                yield from _label_complaints(node, modifier.labels, exported)
            case pq.BinaryExpr(modifier=modifier) if modifier is not None:
                named = [*(modifier.matching.labels if modifier.matching else []), *(modifier.group_labels or [])]
                yield from _label_complaints(node, named, exported)


def _selector_complaints(selector: Any, exported: Exported) -> Iterator[str]:
    if selector.name in FROM_PROMETHEUS:
        return
    if selector.name not in exported.series:
        yield f"there is no metric {selector.name}"
        return
    labels = exported.series[selector.name]
    for matcher in selector.matchers.matchers:
        if matcher.name in FROM_THE_SCRAPE:
            if matcher.value not in ANYTHING:
                yield f"{selector.name} is asked for {matcher.name} {matcher.value!r}"
        elif matcher.name not in labels:
            yield f"{selector.name} has no label {matcher.name}"
        else:
            values = matcher.value.split("|") if matcher.op in (pq.MatchOp.Re, pq.MatchOp.NotRe) else [matcher.value]
            unknown = sorted(set(values) - labels[matcher.name])
            if unknown:
                yield f"{selector.name} has no {matcher.name} {', '.join(unknown)}"


def _label_complaints(node: Any, named: list[str], exported: Exported) -> Iterator[str]:
    known = set(FROM_THE_SCRAPE)
    for selector in _selectors(node):
        known |= exported.series.get(selector.name, {}).keys()
    for label in named:
        if label not in known:
            yield f"nothing in {node.prettify()} has a label {label}"


def legend_complaints(legend: str, query: str, exported: Exported) -> list[str]:
    """Labels that a legend shows and no metric of its query has."""
    labels = {label for name in metrics_of(query) for label in exported.series.get(name, {})}
    return [
        f"no label {found} in {query}" for found in re.findall(r"\{\{\s*(\w+)\s*\}\}", legend) if found not in labels
    ]


def _selectors(expression: Any) -> list[Any]:
    return [node for node in _nodes(expression) if isinstance(node, pq.VectorSelector)]


def _nodes(expression: Any) -> list[Any]:
    nodes: list[Any] = []
    pq.walk(expression, nodes.append)
    return nodes
