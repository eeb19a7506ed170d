"""The same requests again and again: their answers, token by token, with the log-probability of each token."""

import asyncio
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.service.endless_streams import PAUSE_LIMIT_S, VOCABULARY
from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.http.sse import DONE
from scheduler_svc.client.service_address import ServiceAddress


@dataclass(frozen=True)
class RequestSizes:
    """What all requests have in common.

    Attributes:
        prompt_tokens: of each request; prompts differ from their first tokens on.
        max_tokens: of each answer; no answer ends before.
        temperature: of every second request; the others are greedy.
    """

    prompt_tokens: int
    max_tokens: int
    temperature: float


@dataclass
class Answer:
    """What came of one request.

    Attributes:
        number: of the request.
        tokens: their texts; a token that is no text by itself is named by its bytes.
        logprobs: of those tokens.
        faults: how many faults struck while it was computed.
    """

    number: int
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    faults: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest tokens were asked for."""
        return self.number % 2 == 0

    def first_difference(self, other: "Answer") -> int | None:
        """The place of the first token that is not the same; None if all are."""
        return _first_difference(self.tokens, other.tokens)

    def has_other_logprobs(self, other: "Answer") -> bool:
        """Whether, up to the first token that differs, a log-probability does."""
        num_same = self.first_difference(other)
        return self.logprobs[:num_same] != other.logprobs[:num_same]


class FixedStreams:
    """Asks numbered requests; a number always means the same request.

    Args:
        url: of the service.
        model: that is served.
        sizes: of the requests.

    Attributes:
        num_tokens: that have come, of all answers.
        num_faults: that have struck; counted here by what strikes.
    """

    def __init__(self, url: str, model: str, sizes: RequestSizes) -> None:
        self.num_tokens = 0
        self.num_faults = 0
        self._streams = EventStreams(ServiceAddress(url, timeout_s=PAUSE_LIMIT_S))
        self._sizes = sizes
        self._asked = {"model": model, "max_tokens": sizes.max_tokens, "ignore_eos": True, "stream": True}

    async def ask(self, requests: Iterable[tuple[int, str]], at_once: int) -> list[Answer]:
        """The answers to requests, in the order in which they ended.

        Args:
            requests: numbers and salts, in the order in which they are sent; the next one is drawn when there is room
                for it. A request finds no blocks in the prefix cache that were computed for another salt.
            at_once: requests that are open at a time.
        """
        answers: list[Answer] = []
        left = iter(requests)

        async def some() -> None:
            for number, salt in left:
                answers.append(await self._ask(number, salt))

        await asyncio.gather(*(some() for _ in range(at_once)))
        return answers

    async def progress(self, num_tokens: int) -> None:
        """Wait until so many more tokens have come."""
        wanted = self.num_tokens + num_tokens
        while self.num_tokens < wanted:
            await asyncio.sleep(0.005)

    async def _ask(self, number: int, salt: str) -> Answer:
        answer, faults_before = Answer(number), self.num_faults

        def take(data: bytes) -> None:
            if data == DONE:
                return
            for choice in json.loads(data)["choices"]:
                if (logprobs := choice["logprobs"]) is not None:
                    answer.tokens += logprobs["tokens"]
                    answer.logprobs += logprobs["token_logprobs"]
                    self.num_tokens += len(logprobs["tokens"])

        await self._streams.post("/v1/completions", self._body(answer, salt), take)
        answer.faults = self.num_faults - faults_before
        return answer

    def _body(self, answer: Answer, salt: str) -> dict[str, Any]:
        prompt = random.Random(answer.number).choices(VOCABULARY, k=self._sizes.prompt_tokens)
        temperature = 0.0 if answer.is_greedy else self._sizes.temperature
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "seed": answer.number, "logprobs": 0}
        return self._asked | {"prompt": prompt, "cache_salt": salt} | sampling


def _first_difference(ours: Sequence[str], theirs: Sequence[str]) -> int | None:
    shared = min(len(ours), len(theirs))
    places = (i for i in range(shared) if ours[i] != theirs[i])
    return next(places, None if len(ours) == len(theirs) else shared)
