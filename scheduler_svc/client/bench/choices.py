"""Which requests a benchmark sends, as its options say."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from scheduler_svc.client.bench.target import Target
from scheduler_svc.client.bench.trace import TraceFormat, read_trace, speed, trace_requests
from scheduler_svc.client.bench.workload import (
    MIN_TOKENS,
    BenchRequest,
    draw_requests,
    spelled,
    with_arrivals,
    with_prompts,
)

_NUM_REQUESTS = 256
_MAX_TOKENS = 1024


@dataclass(frozen=True)
class BenchChoices:
    """Each field is the option of its name; None is its default."""

    num_requests: int | None
    max_prompt: int | None
    max_output: int | None
    prompts: Literal["ids", "words"] | None
    prompt_file: Path | None
    trace: Path | None
    trace_format: TraceFormat | None
    rate: float | None
    speedup: float | None
    concurrency: int | None
    vocab_size: int | None

    def check(self, target_endpoint: str) -> None:
        """Raise UsageError if options contradict each other."""
        if (self.trace is None) != (self.trace_format is None):
            raise click.UsageError("--trace and --trace-format belong together")
        if self.speedup is not None and (self.trace is None or self.rate is not None):
            raise click.UsageError("--speedup is for a --trace without --rate")
        if self.concurrency is not None and (self.trace or self.rate):
            raise click.UsageError("--concurrency does not go with --trace or --rate: requests are sent when due")
        if self.prompt_file is not None and (self.trace or self.prompts == "ids"):
            raise click.UsageError("--prompt-file goes neither with --trace nor with --prompts ids")
        if self.prompts == "ids" and target_endpoint == "chat":
            raise click.UsageError("--prompts ids is for completions: the messages of chats are text")
        for name, length in (("--max-prompt", self.max_prompt), ("--max-output", self.max_output)):
            if self.trace is None and length is not None and length < MIN_TOKENS:
                raise click.UsageError(f"{name} is {length}, and {MIN_TOKENS} tokens are the least that is drawn")

    def requests(self, target: Target) -> tuple[int, Iterable[BenchRequest]]:
        """How many requests there are, and the requests.

        Raises:
            click.ClickException: a file is not what it should be.
        """
        num_requests, requests = self._drawn(target) if self.trace is None else self._recorded(self.trace, target)
        takes_ids = target.endpoint == "completions" and (target.is_exact or self.prompts == "ids")
        return num_requests, requests if takes_ids and self.prompts != "words" else spelled(requests)

    def _drawn(self, target: Target) -> tuple[int, Iterable[BenchRequest]]:
        num_requests = self.num_requests or _NUM_REQUESTS
        lengths = (self.max_prompt or _MAX_TOKENS, self.max_output or _MAX_TOKENS)
        requests = draw_requests(num_requests, *lengths, self.vocab_size or target.vocab_size)
        if self.prompt_file is not None:
            requests = with_prompts(requests, _lines(self.prompt_file))
        return num_requests, requests if self.rate is None else with_arrivals(requests, self.rate)

    def _recorded(self, trace: Path, target: Target) -> tuple[int, Iterable[BenchRequest]]:
        assert self.trace_format is not None, "checked"
        rows = read_trace(trace, self.trace_format, self.num_requests)
        return len(rows), trace_requests(
            rows,
            speedup=(self.speedup or 1.0) if self.rate is None else speed(rows, self.rate),
            vocab_size=self.vocab_size or target.vocab_size,
            max_prompt=self.max_prompt,
            max_output=self.max_output,
        )


def _lines(path: Path) -> Sequence[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--prompt-file {path}: {error}") from error
    if not lines:
        raise click.UsageError(f"--prompt-file {path} has no lines")
    return lines
