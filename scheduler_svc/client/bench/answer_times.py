"""When the chunks of one streamed answer came, and whether the answer is what was asked for."""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduler_svc.client.bench.workload import BenchRequest
from scheduler_svc.client.errors import RequestFailed
from scheduler_svc.client.http.failures import error_code, error_message
from scheduler_svc.client.http.sse import DONE
from scheduler_svc.client.progress import Tally


class _Delta(msgspec.Struct):
    """Of a chat; fields without which no chunk has a token."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def has_token(self) -> bool:
        """Whether the chunk came because of a token: the text of one may be empty, as it may be half a character."""
        delta = self.delta
        if self.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)):
            return True
        opens = delta is not None and delta.role is not None
        return self.finish_reason is None and not opens


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What the server counted."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the server had computed before; 0 if it does not say."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: dict[str, object] | None = None


@dataclass
class AnswerTimes:
    """Of one answer, by `time.perf_counter`. It is called with each event's data.

    Attributes:
        due_s: when it was to be sent; None in a closed loop.
        chunk_times_s: of the chunks with tokens.
        ended_s: when its last event came.
    """

    tally: Tally
    due_s: float | None = None
    chunk_times_s: list[float] = field(default_factory=list)
    usage: Usage | None = None
    sent_s: float = field(default_factory=time.perf_counter)
    ended_s: float = 0.0
    _decode = staticmethod(msgspec.json.Decoder(_Event).decode)

    def __call__(self, data: bytes) -> None:
        """Take one event."""
        self.ended_s = now_s = time.perf_counter()
        if data == DONE:
            return
        event = self._decode(data)
        if event.error is not None:
            answer = {"error": event.error}
            raise RequestFailed(error_message(answer), code=error_code(answer))
        if any(choice.has_token() for choice in event.choices):
            self.chunk_times_s.append(now_s)
            self.tally.tokens += 1
        self.usage = event.usage or self.usage

    def check(self, request: BenchRequest, *, is_exact: bool) -> None:
        """Raise RequestFailed unless the answer is what was asked for: a wrong answer's time does not count.

        Args:
            is_exact: whether fewer tokens than asked for are wrong.
        """
        if self.usage is None or not self.chunk_times_s:
            raise RequestFailed("an answer without text, or without `usage` at its end")
        num_tokens = self.usage.completion_tokens
        if num_tokens != request.max_tokens and (is_exact or not 0 < num_tokens < request.max_tokens):
            raise RequestFailed("an answer with another number of tokens than asked for")

    @property
    def ttft_s(self) -> float:
        """From the request to the first token."""
        return self.chunk_times_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; None if there is none."""
        num_tokens = self.usage.completion_tokens if self.usage is not None else 0
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / (num_tokens - 1) if num_tokens > 1 else None

    @property
    def e2e_s(self) -> float:
        """From the request to the end of the answer."""
        return self.ended_s - self.sent_s
