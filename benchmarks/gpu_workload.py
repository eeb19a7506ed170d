"""The requests that bench_gpu.py sends, and what it measures of a run of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import workloads

from common import messages as m

TEMPERATURE = 0.6
LARGEST_BLOCK = 256  # tokens
SPARE = 1.05


@dataclass(frozen=True)
class Run:
    """From the first request to the last token, in seconds of the monotonic clock."""

    start_s: float
    end_s: float
    num_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.num_tokens / (self.end_s - self.start_s)


def make_requests(num_seqs: int, max_tokens: int | None = None) -> list[workloads.Request]:
    """nano-vllm's workload; with `max_tokens`, prompts and outputs are cut to so many."""
    requests = workloads.nano(num_seqs)
    if max_tokens is None:
        return requests
    return [
        replace(request, prompt=request.prompt[:max_tokens], num_output=min(request.num_output, max_tokens))
        for request in requests
    ]


def with_outputs(requests: Sequence[workloads.Request], num_output: int) -> list[workloads.Request]:
    """The same prompts, all with as many tokens to generate."""
    return [replace(request, num_output=num_output) for request in requests]


def submits(requests: Sequence[workloads.Request], salt: str) -> list[m.Submit]:
    """As messages. Runs with different salts share no cached prompts."""
    return [
        m.Submit(
            request_id=f"{salt}-{number}",
            prompt=request.prompt.tobytes(),
            params=m.SamplingParams(max_tokens=request.num_output, temperature=TEMPERATURE, seed=number),
            cache_salt=salt,
        )
        for number, request in enumerate(requests)
    ]


def pool_positions(requests: Sequence[workloads.Request]) -> int:
    """Positions of a KV pool in which all requests fit at once, with blocks of up to 256, and some to spare."""
    lengths = [len(request.prompt) + request.num_output for request in requests]
    return int(SPARE * sum(LARGEST_BLOCK * -(-length // LARGEST_BLOCK) for length in lengths))
