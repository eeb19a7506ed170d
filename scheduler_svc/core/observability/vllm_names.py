"""Metrics under the names that vLLM gives them, so that dashboards and autoscalers made for vLLM work. Pure.

Each is one of ours, read when it is asked for; nothing is counted twice. vLLM labels all of them with `model_name`. Its
"requests" are our sequences: it counts each of a request's `n` answers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from common.messages import StatusReport

FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error", "deadline": "error"}


@dataclass(frozen=True)
class Alias:
    """A metric of vLLM.

    Attributes:
        name: without the suffix that Prometheus' text format gives counters.
        ours: the metric that it is.
        only: labels that our series must have; they are left out.
        label, values: the label that is left, if any, and vLLM's value for each of ours; several may share one.
    """

    name: str
    ours: str
    only: tuple[tuple[str, str], ...] = ()
    label: tuple[str, str] = ("", "")
    values: Mapping[str, str] | None = None


ALIASES = (
    Alias("vllm:num_requests_running", "baton_sequences", (("state", "running"),)),
    Alias("vllm:num_requests_waiting", "baton_sequences", (("state", "waiting"),)),
    Alias("vllm:prompt_tokens", "baton_prompt_tokens"),
    Alias("vllm:generation_tokens", "baton_output_tokens"),
    Alias("vllm:prefix_cache_queries", "baton_queried_prompt_tokens"),
    Alias("vllm:prefix_cache_hits", "baton_cached_prompt_tokens"),
    Alias("vllm:num_preemptions", "baton_preemptions"),
    Alias("vllm:time_to_first_token_seconds", "baton_time_to_first_token_seconds"),
    Alias("vllm:inter_token_latency_seconds", "baton_inter_token_seconds"),
    Alias("vllm:request_time_per_output_token_seconds", "baton_output_token_seconds"),
    Alias("vllm:e2e_request_latency_seconds", "baton_sequence_seconds"),
    Alias("vllm:request_queue_time_seconds", "baton_queue_seconds"),
    Alias("vllm:request_prompt_tokens", "baton_sequence_prompt_tokens"),
    Alias("vllm:request_generation_tokens", "baton_sequence_output_tokens"),
    Alias("vllm:request_success", "baton_sequences_ended", label=("outcome", "finished_reason"), values=FINISHED),
)


def vllm_metrics(ours: Iterable[Metric], report: StatusReport) -> Iterator[Metric]:
    """Our metrics under vLLM's names."""
    by_name = {metric.name: metric for metric in ours}
    for alias in ALIASES:
        yield _renamed(by_name[alias.ours], alias, report.model)
    usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", labels=["model_name"])
    usage.add_metric([report.model], _used_share(report))
    yield usage
    yield _cache_config(report)


def _renamed(ours: Metric, alias: Alias, model: str) -> Metric:
    renamed = Metric(alias.name, ours.documentation, ours.type)
    summed: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in ours.samples:
        labels = dict(sample.labels)
        if any(labels.pop(label) != value for label, value in alias.only):
            continue
        if alias.values is not None:
            value = alias.values.get(labels.pop(alias.label[0]))
            if value is None:
                continue
            labels[alias.label[1]] = value
        key = alias.name + sample.name.removeprefix(ours.name), tuple(labels.items())
        summed[key] = summed.get(key, 0.0) + sample.value
    for (name, labelled), total in summed.items():
        renamed.add_sample(name, {"model_name": model, **dict(labelled)}, total)
    return renamed


def _used_share(report: StatusReport) -> float:
    """Of the blocks of all executors; 0 without any."""
    total = sum(executor.num_blocks for executor in report.executors)
    return 1.0 - sum(executor.free_blocks for executor in report.executors) / total if total else 0.0


def _cache_config(report: StatusReport) -> Metric:
    """How large the KV memory is: a series for each block size, with the blocks of all executors that have it.

    vLLM has one, with a value of 1 and the facts in labels, which is what the Gateway API inference extension's model
    server protocol reads block size and number of blocks from. Its endpoint picker takes the first series that it
    finds (llm-d-router, `extractor/metrics/spec.go`), so the block size with the most positions comes first. Without
    executors there is no series: what the next one will have is not known.
    """
    num_blocks: dict[int, int] = {}
    for executor in report.executors:
        num_blocks[executor.block_size] = num_blocks.get(executor.block_size, 0) + executor.num_blocks
    info = GaugeMetricFamily(
        "vllm:cache_config_info",
        "1; size and number of KV blocks are in the labels.",
        labels=["model_name", "block_size", "num_gpu_blocks"],
    )
    for size, count in sorted(num_blocks.items(), key=lambda each: (-each[0] * each[1], each[0])):
        info.add_metric([report.model, str(size), str(count)], 1.0)
    return info
