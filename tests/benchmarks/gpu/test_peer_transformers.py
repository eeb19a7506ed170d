"""What the peer is said to have run with is what it ran with."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import transformers

from benchmarks.gpu import peer_transformers
from benchmarks.rig.runs import TimedRun

HINTS = SimpleNamespace(WorkloadHints=SimpleNamespace)


class FakeModel:
    """Puts its own attention back when the manager stops, as transformers' models do."""

    def __init__(self):
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def to(self, device):
        return self

    def eval(self):
        return self

    @contextmanager
    def continuous_batching_context_manager(self, **options):
        self.config._attn_implementation = "paged|flash_attention_2"
        yield SimpleNamespace(continuous_batching_config=SimpleNamespace(use_cuda_graph=True, use_async_batching=False))
        self.config._attn_implementation = "sdpa"


def test_attention_is_read_before_the_manager_resets_it(monkeypatch, tmp_path):
    # Its import takes three seconds of torch's compiler; test_bench_gpu.py runs the real one.
    monkeypatch.setitem(sys.modules, "transformers.generation.continuous_batching.utils", HINTS)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: FakeModel())
    monkeypatch.setattr(peer_transformers, "run", lambda manager, requests: TimedRun(0.0, 2.0, 10))
    figures = peer_transformers.measure(tmp_path, peer_transformers.make_requests(2), 1, "cpu")
    assert figures["attention"] == "paged|flash_attention_2"
    assert figures["tok_s"] == 5.0
