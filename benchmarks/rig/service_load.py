"""A workload as both services get it: its requests as messages, and the KV pool that holds all of them."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.rig import workloads
from benchmarks.rig.workloads import WorkloadRequest
from common import messages as m

TEMPERATURE = 0.6
LARGEST_BLOCK = 256  # tokens
SPARE = 1.05


def make_requests(num_seqs: int, max_tokens: int | None = None) -> list[WorkloadRequest]:
    """nano-vllm's workload; with `max_tokens`, prompts and outputs are cut to so many tokens."""
    requests = workloads.nano(num_seqs)
    if max_tokens is None:
        return requests
    return [
        replace(request, prompt=request.prompt[:max_tokens], num_output=min(request.num_output, max_tokens))
        for request in requests
    ]


def with_outputs(requests: Sequence[WorkloadRequest], num_output: int) -> list[WorkloadRequest]:
    """The same prompts, each with this number of tokens to generate."""
    return [replace(request, num_output=num_output) for request in requests]


def submits(requests: Sequence[WorkloadRequest], salt: str) -> list[m.Submit]:
    """The requests as messages. Runs with different salts share no cached prompts."""
    return [
        m.Submit(
            request_id=f"{salt}-{number}",
            prompt=request.prompt.tobytes(),
            params=m.SamplingParams(max_tokens=request.num_output, temperature=TEMPERATURE, seed=number),
            cache_salt=salt,
        )
        for number, request in enumerate(requests)
    ]


def pool_positions(requests: Sequence[WorkloadRequest]) -> int:
    """Positions of a KV pool that holds all requests at once, with blocks of up to 256, and some to spare."""
    lengths = [len(request.prompt) + request.num_output for request in requests]
    return int(SPARE * sum(LARGEST_BLOCK * -(-length // LARGEST_BLOCK) for length in lengths))
