"""nano-vllm's benchmark as a load on a running service, and the report.

The workload is that of `bench.py` in https://github.com/GeeeekExplorer/nano-vllm, drawn in the same order from the
same seed, so that numbers can be compared: 256 prompts of 100 to 1024 random tokens, 100 to 1024 tokens to generate.
"""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np

from scheduler_svc.client.errors import RequestFailed
from scheduler_svc.client.http.api import error_code, error_message
from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.http.sse import DONE
from scheduler_svc.client.progress import Tally
from scheduler_svc.client.service_address import ServiceAddress

_PATH = "/v1/completions"
_PERCENTILES = (50, 90, 99)
_MIN_TOKENS = 100
_MAX_TOKEN_ID = 10000


@dataclass(frozen=True)
class BenchRequest:
    """One request of the workload: a prompt as token ids, and how many tokens to generate, EOS or not."""

    prompt: list[int]
    max_tokens: int


def draw_requests(num_seqs: int, max_prompt: int, max_output: int, vocab_size: int | None) -> list[BenchRequest]:
    """nano-vllm's workload: all prompts are drawn first, then all output lengths.

    Args:
        max_prompt, max_output: greatest lengths in tokens; the least is 100.
        vocab_size: ids are taken modulo this, for models with fewer than 10001 tokens; None leaves them as they are.
    """
    draw = random.Random(0)  # noqa: S311 (no secret)
    prompts = [
        [draw.randint(0, _MAX_TOKEN_ID) for _ in range(draw.randint(_MIN_TOKENS, max_prompt))] for _ in range(num_seqs)
    ]
    lengths = [draw.randint(_MIN_TOKENS, max_output) for _ in range(num_seqs)]
    modulus = vocab_size or _MAX_TOKEN_ID + 1
    return [
        BenchRequest([token % modulus for token in prompt], length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of times in milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Percentiles | None":
        """The percentiles; None if there are no times."""
        return cls(*np.percentile(np.array(seconds) * 1000, _PERCENTILES).round(3).tolist()) if seconds else None


class BenchReport(msgspec.Struct, frozen=True):
    """What a run measured. All numbers but the failures are from complete answers.

    Attributes:
        seconds: from the first request sent to the end of the last answer.
        ttft_ms: time to first token: request sent to first chunk with text.
        tpot_ms: time per output token of one answer: (last chunk - first chunk) / (tokens - 1).
        chunk_gap_ms: between consecutive chunks of one answer, over all answers; a chunk may hold several tokens.
        errors: message of each failure, and how often it occurred.
    """

    num_requests: int
    num_failed: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    chunk_gap_ms: Percentiles | None
    errors: dict[str, int]


class _TextChoice(msgspec.Struct):
    text: str
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Event(msgspec.Struct):
    choices: list[_TextChoice] = []
    usage: _Usage | None = None
    error: dict[str, object] | None = None


@dataclass
class Trace:
    """When an answer's chunks came, by `time.perf_counter`. It is called with each event's data."""

    tally: Tally
    chunk_times_s: list[float] = field(default_factory=list)
    usage: _Usage | None = None
    sent_s: float = field(default_factory=time.perf_counter)
    _decode = staticmethod(msgspec.json.Decoder(_Event).decode)

    def __call__(self, data: bytes) -> None:
        """Take one event."""
        now_s = time.perf_counter()
        if data == DONE:
            return
        event = self._decode(data)
        if event.error is not None:
            answer = {"error": event.error}
            raise RequestFailed(error_message(answer), code=error_code(answer))
        if any(choice.text or choice.finish_reason is None for choice in event.choices):
            self.chunk_times_s.append(now_s)
            self.tally.tokens += 1
        self.usage = event.usage or self.usage

    def check(self, request: BenchRequest) -> None:
        """Raise RequestFailed unless the answer is what was asked for: a wrong answer's time does not count."""
        if self.usage is None or not self.chunk_times_s:
            raise RequestFailed("an answer without text, or without `usage` at its end")
        if self.usage.completion_tokens != request.max_tokens:
            raise RequestFailed("an answer with another number of tokens than asked for")


async def run_load(
    requests: list[BenchRequest], service: ServiceAddress, model: str, concurrency: int, tally: Tally
) -> BenchReport:
    """Send all requests, at most `concurrency` at a time, and measure.

    Args:
        tally: counts requests and chunks; kept up to date.

    Raises:
        ServiceUnreachable: the service is gone.
    """
    streams = EventStreams(service)
    slots = asyncio.Semaphore(concurrency)
    errors: Counter[str] = Counter()
    complete: list[Trace] = []

    async def run(request: BenchRequest) -> None:
        async with slots:
            trace = Trace(tally)
            try:
                await streams.post(_PATH, _body(request, model), trace)
                trace.check(request)
                complete.append(trace)
            except RequestFailed as error:
                errors[error.message] += 1
            tally.done += 1

    started_s = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(run(request))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others have the same cause
    return _report(complete, errors, time.perf_counter() - started_s)


def _body(request: BenchRequest, model: str) -> dict[str, object]:
    return {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0.6,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _report(traces: list[Trace], errors: Counter[str], seconds: float) -> BenchReport:
    usages = [trace.usage for trace in traces if trace.usage is not None]
    output_tokens = sum(usage.completion_tokens for usage in usages)
    per_token_s = [
        (trace.chunk_times_s[-1] - trace.chunk_times_s[0]) / (usage.completion_tokens - 1)
        for trace, usage in zip(traces, usages, strict=True)
        if usage.completion_tokens > 1
    ]
    gaps_s = [gap for trace in traces for gap in np.diff(trace.chunk_times_s).tolist()]
    return BenchReport(
        num_requests=len(traces) + errors.total(),
        num_failed=errors.total(),
        seconds=round(seconds, 3),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        output_tokens=output_tokens,
        output_tokens_per_s=round(output_tokens / seconds, 1),
        ttft_ms=Percentiles.of([trace.chunk_times_s[0] - trace.sent_s for trace in traces]),
        tpot_ms=Percentiles.of(per_token_s),
        chunk_gap_ms=Percentiles.of(gaps_s),
        errors=dict(errors),
    )
