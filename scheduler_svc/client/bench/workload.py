"""The requests of a benchmark, drawn from fixed seeds, and when they are sent; pure.

The workload is that of `bench.py` in https://github.com/GeeeekExplorer/nano-vllm, drawn in the same order from the same
seed, so that numbers can be compared: 256 prompts of 100 to 1024 random tokens, 100 to 1024 tokens to generate.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

MIN_TOKENS = 100  # of a prompt that is drawn, and of its answer
MAX_TOKEN_ID = 10000
# One token each to most tokenizers, with the space before.
_TEXT = """
the of and to in is that for it was on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way
find use may water long little very after words called just where most know get through back much before go good new
write our used me man too any day same right look think also around another came come work three word must because does
part even place well such here take why things help put years different away again off went old number
"""
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class BenchRequest:
    """One request.

    Attributes:
        prompt: token ids or text.
        max_tokens: to generate; where the server can be told so, exactly as many.
        at_s: when it is sent, in seconds since the start; None for as soon as fewer than the limit are open.
    """

    prompt: list[int] | str
    max_tokens: int
    at_s: float | None = None


def draw_requests(num_requests: int, max_prompt: int, max_output: int, vocab_size: int | None) -> list[BenchRequest]:
    """nano-vllm's workload: all prompts are drawn first, then all output lengths.

    Args:
        max_prompt, max_output: greatest lengths in tokens; the least is 100.
        vocab_size: ids are taken modulo this, for models with fewer than 10001 tokens; None leaves them as they are.
    """
    draw = random.Random(0)  # noqa: S311 (no secret)
    prompts = [
        [draw.randint(0, MAX_TOKEN_ID) for _ in range(draw.randint(MIN_TOKENS, max_prompt))]
        for _ in range(num_requests)
    ]
    lengths = [draw.randint(MIN_TOKENS, max_output) for _ in range(num_requests)]
    modulus = vocab_size or MAX_TOKEN_ID + 1
    return [
        BenchRequest([token % modulus for token in prompt], length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]


def with_prompts(requests: Sequence[BenchRequest], prompts: Sequence[str]) -> list[BenchRequest]:
    """The same requests with these prompts, which begin again when there are fewer of them."""
    return [replace(request, prompt=prompts[number % len(prompts)]) for number, request in enumerate(requests)]


def with_arrivals(requests: Sequence[BenchRequest], rate_per_s: float) -> list[BenchRequest]:
    """The same requests, arriving at random (a Poisson process), the first one at once."""
    gaps_s = np.random.default_rng(0).exponential(1 / rate_per_s, len(requests))
    times_s = np.cumsum(gaps_s) - gaps_s[0]
    return [replace(request, at_s=at_s) for request, at_s in zip(requests, times_s.tolist(), strict=True)]


def spelled(requests: Iterable[BenchRequest]) -> Iterator[BenchRequest]:
    """The same requests with a word for each token id: equal ids are equal words."""
    for request in requests:
        if isinstance(request.prompt, str):
            yield request
        else:
            yield replace(request, prompt=" ".join(_WORDS[token % len(_WORDS)] for token in request.prompt))
