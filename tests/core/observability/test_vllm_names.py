"""What an inference gateway's endpoint picker reads at /metrics, by its own rules.

The rules are those of llm-d-router, where the Gateway API inference extension's picker lives now: the default specs of
`extractor/metrics/factories.go` (08cbacc), how a spec finds its series in `spec.go` (045f973 of the extension), and
what `extractor.go` (03a70c3) does with it.
"""

import re

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from common import messages as m
from scheduler_svc.core.observability.vllm_names import vllm_metrics
from tests.support.hello import LIMITS
from tests.support.service import Service

DEFAULT_SPECS = {
    "queued": "vllm:num_requests_waiting",
    "running": "vllm:num_requests_running",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "cache_info": "vllm:cache_config_info",
}


class NotFoundError(Exception):
    """The picker logs it, and keeps what it knew before."""


def families(service):
    text = service.say(m.MetricsQuery(query_id=1)).text.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def latest(spec, told):
    """A spec is a selector, `name{label=value}` with or without quotes; the first series that it selects is taken, as
    none has a time."""
    name, _, selector = spec.partition("{")
    labels = dict(re.findall(r'(\w+)\s*=\s*"?([^",}\s]+)"?', selector))
    if name not in told or not told[name].samples:
        raise NotFoundError(name)
    for sample in told[name].samples:
        assert sample.timestamp is None
        if labels.items() <= sample.labels.items():
            return sample
    raise NotFoundError(spec)


def extract(service, specs=DEFAULT_SPECS):
    """What the picker knows of an endpoint after a scrape."""
    told = families(service)
    known = {what: int(latest(specs[what], told).value) for what in ("queued", "running")}
    known["kv_usage"] = latest(specs["kv_usage"], told).value
    assert all(told[spec].type == "gauge" for spec in specs.values()), "the protocol asks for gauges"
    info = latest(specs["cache_info"], told)
    known["block_size"], known["num_blocks"] = (int(info.labels[label]) for label in ("block_size", "num_gpu_blocks"))
    return known


def status(service):
    return service.say(m.StatusQuery(query_id=2)).report


def test_the_picker_reads_what_the_status_says():
    service = Service(model="demo")
    service.join("one")
    service.submit("a", max_tokens=8, n=2)
    service.turn(num_answers=2)
    for i in range(40):
        service.submit(f"waits {i}", max_tokens=50)
    report, known = status(service), extract(service)
    (executor,) = report.executors
    assert (known["queued"], known["running"]) == (report.waiting, report.running)
    assert known["queued"] > 0 < known["running"]
    assert known["kv_usage"] == pytest.approx(1 - executor.free_blocks / executor.num_blocks)
    assert (known["block_size"], known["num_blocks"]) == (executor.block_size, executor.num_blocks)
    selected = {**DEFAULT_SPECS, "cache_info": f"vllm:cache_config_info{{block_size={executor.block_size}}}"}
    assert latest(selected["cache_info"], families(service)).value == 1


def test_blocks_of_all_executors_are_counted():
    service = Service(model="demo")
    service.join("one")
    service.join("two")
    assert (
        extract(service)["num_blocks"] == 2 * LIMITS.num_blocks == sum(e.num_blocks for e in status(service).executors)
    )


def test_the_block_size_with_the_most_positions_is_the_one_that_is_found():
    service = Service(model="demo")
    service.join("one")
    (executor,) = status(service).executors
    kinds = [(16, 100), (256, 10), (16, 20)]
    report = replace(status(service), executors=[replace(executor, block_size=b, num_blocks=n) for b, n in kinds])
    *_, info = vllm_metrics(families(service).values(), report)
    series = [(s.labels["block_size"], s.labels["num_gpu_blocks"], s.value) for s in info.samples]
    assert series == [("256", "10", 1.0), ("16", "120", 1.0)]


def test_without_an_executor_the_picker_keeps_what_it_knew():
    service = Service(model="demo")
    with pytest.raises(NotFoundError, match="cache_config_info"):
        extract(service)
    told = families(service)
    assert latest(DEFAULT_SPECS["queued"], told).value == 0
    assert latest(DEFAULT_SPECS["kv_usage"], told).value == 0


def test_nothing_is_said_of_adapters():
    """There are none, and the protocol asks for `vllm:lora_requests_info` only of servers that have some."""
    service = Service(model="demo")
    service.join("one")
    assert not [name for name in families(service) if "lora" in name]
