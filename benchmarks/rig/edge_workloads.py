"""Workloads on which it is hard to know how long answers will be, and so what memory they will take.

All requests arrive at once, and memory is scarce: what decides is how many are admitted.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.rig.workloads import MAX_TOKEN_ID, WorkloadRequest, nano

EndsBy = Literal["length", "stop", "cancel"]


class EdgeWorkload(NamedTuple):
    """Requests, and the positions of the pool that they share."""

    requests: list[WorkloadRequest]
    num_tokens: int


def stop_tokens() -> EdgeWorkload:
    """Answers of 50 to 400 tokens that end by a stop token, and ask for 4,096."""
    rng = np.random.default_rng(0)
    lengths = zip(rng.integers(100, 1024, 1024), rng.integers(50, 400, 1024), strict=True)
    return EdgeWorkload([_request(rng, *pair, 4096, "stop") for pair in lengths], 80_000)


def stop_strings() -> EdgeWorkload:
    """Answers of 20 to 120 tokens in which frontends find a stop string; each asks for half of the pool."""
    rng = np.random.default_rng(0)
    lengths = zip(rng.integers(100, 300, 256), rng.integers(20, 120, 256), strict=True)
    return EdgeWorkload([_request(rng, *pair, 8000, "cancel") for pair in lengths], 16_000)


def cancels() -> EdgeWorkload:
    """Half of the clients hang up early, the answers of the others end by a stop token."""
    rng = np.random.default_rng(0)
    requests = []
    for prompt, length, early in zip(
        rng.integers(100, 600, 512), rng.integers(100, 1024, 512), rng.integers(5, 60, 512), strict=True
    ):
        hangs_up = rng.random() < 0.5
        requests.append(_request(rng, prompt, early if hangs_up else length, 2048, "cancel" if hangs_up else "stop"))
    return EdgeWorkload(requests, 48_000)


def cold_start() -> EdgeWorkload:
    """The requests of nano-vllm's benchmark, whose answers end by a stop token, and nothing is known of them before."""
    requests = [replace(request, max_tokens=4096, ends_by="stop") for request in nano(256)]
    return EdgeWorkload(requests, 80_000)


def outlier() -> EdgeWorkload:
    """Short answers, and 1 in 64 that is forty times as long."""
    rng = np.random.default_rng(0)
    lengths = zip(rng.integers(50, 200, 768), rng.integers(50, 150, 768), strict=True)
    requests = [
        _request(rng, prompt, 4000 if i % 64 == 8 else n, 8192, "stop") for i, (prompt, n) in enumerate(lengths)
    ]
    return EdgeWorkload(requests, 17_600)


def mixed_max_tokens() -> EdgeWorkload:
    """Answers whose lengths are log-normal, under a `max_tokens` of 128, 1,024 or 8,192."""
    rng = np.random.default_rng(0)
    requests = []
    for prompt, length, most in zip(
        rng.integers(50, 800, 512), rng.lognormal(5.3, 0.8, 512), rng.choice([128, 1024, 8192], 512), strict=True
    ):
        requests.append(_request(rng, prompt, min(1 + int(length), most), most, "stop"))
    return EdgeWorkload(requests, 32_000)


CASES: dict[str, Callable[[], EdgeWorkload]] = {
    function.__name__.replace("_", "-"): function
    for function in (stop_tokens, stop_strings, cancels, cold_start, outlier, mixed_max_tokens)
}


def _request(
    rng: np.random.Generator, prompt: int, num_output: int, max_tokens: int, ends_by: EndsBy
) -> WorkloadRequest:
    tokens = rng.integers(0, MAX_TOKEN_ID + 1, prompt, np.int32)
    return WorkloadRequest(0.0, tokens, int(num_output), int(max_tokens), ends_by)
