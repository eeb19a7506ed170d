"""Where the core's deltas wait for the coroutine that answers one HTTP request."""

import asyncio
from collections.abc import Callable, Sequence

from common import messages as m
from common.errors import RequestRejected, WireError
from common.logging import get_logger

log = get_logger(__name__)

MAX_WAITING_TOKENS = 65_536  # of a streamed request whose reader is slower than the model


class Inbox:
    """Deltas of the sequences of one HTTP request, put by the link and got by one coroutine.

    A *choice* is what OpenAI's API calls a sequence of the answer: sequence j of prompt i is choice `i * n + j`.
    Everything that arrived since the last `get` comes in one batch, so a slow reader costs fewer, larger chunks.

    Args:
        submits: the requests, one for each prompt, all with the same n.
        cancel: sends Cancel(request_id, index).
        forget: tells the link that no more deltas of a request are wanted.
    """

    def __init__(
        self, submits: Sequence[m.Submit], cancel: Callable[[str, int], None], forget: Callable[[str], None]
    ) -> None:
        self._n = submits[0].n
        self._request_ids = [submit.request_id for submit in submits]
        self._first_choices = {request_id: i * self._n for i, request_id in enumerate(self._request_ids)}
        self._live = dict.fromkeys(range(len(submits) * self._n))
        self._is_streamed = submits[0].stream
        self._cancel = cancel
        self._forget = forget
        self._batch: list[tuple[int, m.TokenDelta]] = []
        self._waiting_bytes = 0
        self._failure: RequestRejected | None = None
        self._ready = asyncio.Event()

    def put(self, delta: m.TokenDelta) -> None:
        """Take a delta from the core. Raises WireError if it cannot belong to this request."""
        if delta.index >= self._n:
            raise WireError(f"delta of sequence {delta.index}, request {delta.request_id} has {self._n}")
        if len(delta.token_ids) % 4:
            raise WireError(f"token_ids has {len(delta.token_ids)} bytes, not a multiple of 4")
        choice = self._first_choices[delta.request_id] + delta.index
        if choice not in self._live:
            return  # its stop string was found, or the request failed, while this was under way
        if delta.finish_reason is not None:
            del self._live[choice]
        self._batch.append((choice, delta))
        self._waiting_bytes += len(delta.token_ids)
        self._ready.set()
        if self._is_streamed and self._waiting_bytes > 4 * MAX_WAITING_TOKENS:
            log.warning("reader dropped", request=self._request_ids[0], waiting_tokens=self._waiting_bytes // 4)
            self.fail(RequestRejected(f"the client left {MAX_WAITING_TOKENS} tokens unread", "reader_too_slow"))

    async def get(self) -> list[tuple[int, m.TokenDelta]]:
        """All (choice, delta) since the last call, at least one. Raises RequestRejected after `fail`."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        self._ready.clear()
        batch, self._batch, self._waiting_bytes = self._batch, [], 0
        return batch

    def end(self, choice: int) -> None:
        """No more of this choice is wanted (its stop string was found): the core can stop computing it."""
        if choice in self._live:
            del self._live[choice]
            self._cancel(self._request_ids[choice // self._n], choice % self._n)

    def fail(self, failure: RequestRejected) -> None:
        """End the request with an error that `get` raises."""
        self._failure = failure
        self._batch.clear()
        self._ready.set()
        self.close()

    def close(self) -> None:
        """Cancel what has not ended. To be called in any case, when the answer is complete or not wanted any more."""
        for request_id in dict.fromkeys(self._request_ids[choice // self._n] for choice in self._live):
            self._cancel(request_id, -1)
        self._live.clear()
        for request_id in self._request_ids:
            self._forget(request_id)
