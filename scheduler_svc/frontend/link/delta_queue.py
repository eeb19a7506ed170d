"""Where the core's deltas wait for the coroutine that answers one HTTP request."""

import asyncio
from collections.abc import Callable

from common import messages as m
from common.errors import RequestRejected, WireError
from scheduler_svc.frontend.link.pooled_check import PooledCheck

MAX_WAITING_TOKENS = 65_536  # limit for a streamed request whose reader is slower than the model


class DeltaQueue:
    """Deltas of the sequences of one HTTP request: the link puts them, one coroutine gets them.

    A *choice* is what OpenAI's API calls a sequence of the answer: sequence j of prompt i is choice `i * n + j`.
    Everything that arrived since the last `get` comes in one batch, so a slow reader costs fewer, larger chunks.

    Args:
        tell: sends a message to the core.
        forget: tells the link that this queue takes no more deltas.
        is_streamed: whether its reader may be slow; otherwise only the core can be.
        is_resumable: whether the requests continue for a while when the reader leaves.
        asked: what is asked of all requests, if these are pooled results; None for tokens.

    Attributes:
        rate_limits: what the client has left of its limits; None if it has none, or the core has not said so yet.
    """

    def __init__(
        self,
        tell: Callable[[m.Cancel | m.Detach], None],
        forget: Callable[["DeltaQueue"], None],
        *,
        is_streamed: bool,
        is_resumable: bool,
        asked: m.SamplingParams | None = None,
    ) -> None:
        self.is_resumable = is_resumable
        self.rate_limits: m.RateLimits | None = None
        self._is_counted = asyncio.Event()
        self._pooled = PooledCheck(asked) if asked is not None and asked.pooling != "none" else None
        self._tell = tell
        self._forget = forget
        self._is_streamed = is_streamed
        self._requests: dict[str, range] = {}  # requests of the core, each with its choices
        self._live: dict[int, str] = {}  # choices that have not ended, each with its request
        self._silent: set[int] = set()  # choices without a token so far
        self._batch: list[tuple[int, m.TokenDelta]] = []
        self._waiting_bytes = 0
        self._failure: RequestRejected | None = None
        self._ready = asyncio.Event()
        self._unaccepted: set[str] = set()  # requests that the core may still refuse, as far as is known
        self._all_accepted = asyncio.Event()

    @property
    def has_failed(self) -> bool:
        """Whether `get` raises."""
        return self._failure is not None

    @property
    def request_ids(self) -> list[str]:
        """The core's requests whose deltas come here."""
        return list(self._requests)

    def add(self, request_id: str, prompt: int, n: int) -> None:
        """Expect the deltas of a prompt's request with n sequences; all prompts have the same n."""
        choices = range(prompt * n, (prompt + 1) * n)
        self._requests[request_id] = choices
        self._unaccepted.add(request_id)
        self._all_accepted.clear()
        self._live |= dict.fromkeys(choices, request_id)
        self._silent.update(choices)

    def accept(self, request_id: str) -> None:
        """The core has said that it took this request."""
        self._unaccepted.discard(request_id)
        if not self._unaccepted:
            self._all_accepted.set()

    async def accepted(self) -> None:
        """Return when the core has taken all requests of the queue: none will be refused. A queue that is attached to
        requests is not told."""
        await self._all_accepted.wait()

    def counted(self, limits: m.RateLimits) -> None:
        """The core has counted the first request for its client's limits."""
        self.rate_limits = limits
        self._is_counted.set()

    async def is_counted(self) -> None:
        """Return once the core has counted the first request for its client's limits, or `get` raises."""
        await self._is_counted.wait()

    def put(self, delta: m.TokenDelta) -> None:
        """Take a delta from the core. Raises WireError if it cannot belong to this request."""
        choices = self._requests[delta.request_id]
        if delta.index >= len(choices):
            raise WireError(f"delta of sequence {delta.index}, request {delta.request_id} has {len(choices)}")
        if len(delta.token_ids) % 4:
            raise WireError(f"token_ids has {len(delta.token_ids)} bytes, not a multiple of 4")
        if len(delta.logprob_ids) != len(delta.logprobs) or len(delta.logprobs) % max(len(delta.token_ids), 4):
            have = f"{len(delta.logprob_ids)} and {len(delta.logprobs)} bytes"
            raise WireError(f"logprob_ids and logprobs have {have} for {len(delta.token_ids)} of token_ids")
        if len(delta.prompt_logprob_ids) != len(delta.prompt_logprobs) or len(delta.prompt_logprobs) % 4:
            have = f"{len(delta.prompt_logprob_ids)} and {len(delta.prompt_logprobs)} bytes"
            raise WireError(f"prompt_logprob_ids and prompt_logprobs have {have}")
        if self._pooled is not None:
            self._pooled(delta)
        elif delta.pooled:
            raise WireError(f"{len(delta.pooled)} bytes of pooled, and tokens were asked for")
        if delta.code == "taken_over":
            self.fail(taken_over())
            return
        choice = choices[delta.index]
        if choice not in self._live:
            return  # its stop string was found, or the request failed, while this delta was in flight
        if delta.code == "request_exists":  # another request has this id; the core must not be asked to cancel it
            for other in choices:
                self._live.pop(other, None)
        elif delta.finish_reason is not None:
            del self._live[choice]
        if delta.finish_reason != "error" and self._unaccepted:
            self.accept(delta.request_id)
        self._batch.append((choice, delta))
        self._ready.set()
        self._count(choice, len(delta.token_ids))

    async def get(self) -> list[tuple[int, m.TokenDelta]]:
        """All (choice, delta) since the last call, at least one. Raises RequestRejected after `fail`."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        self._ready.clear()
        batch, self._batch, self._waiting_bytes = self._batch, [], 0
        return batch

    def end(self, choice: int) -> None:
        """This choice needs no more tokens (its stop string was found): the core can stop computing it."""
        if (request_id := self._live.pop(choice, None)) is not None:
            self._tell(m.Cancel(request_id=request_id, index=choice - self._requests[request_id].start))

    def cancel(self) -> None:
        """Have the core end all sequences. Their last deltas still come here."""
        for request_id in dict.fromkeys(self._live.values()):
            self._tell(m.Cancel(request_id=request_id))

    def close(self) -> None:
        """Cancel what has not ended. Every reader calls it, when the answer is complete or has no reader any more."""
        self.cancel()
        self._live.clear()
        self._forget(self)

    def detach(self) -> None:
        """Let what has not ended continue for a while: the client may come back."""
        for request_id in dict.fromkeys(self._live.values()):
            self._tell(m.Detach(request_id=request_id))
        self._live.clear()
        self._forget(self)

    def leave(self) -> None:
        """The client's connection broke: detach if the request is resumable, else close."""
        if self.is_resumable:
            self.detach()
        else:
            self.close()

    def fail(self, failure: RequestRejected) -> None:
        """End the answer with an error that `get` raises. The core is told nothing."""
        if self._failure is None:
            self._failure = failure
        self._is_counted.set()
        self._live.clear()
        self._batch.clear()
        self._ready.set()
        self._forget(self)

    def _count(self, choice: int, num_bytes: int) -> None:
        if choice in self._silent:  # after an attach the first delta with tokens has all earlier ones, however many
            if num_bytes:
                self._silent.remove(choice)
            return
        self._waiting_bytes += num_bytes
        if self._is_streamed and self._waiting_bytes > 4 * MAX_WAITING_TOKENS:
            self.leave()
            self.fail(RequestRejected(f"the client left {MAX_WAITING_TOKENS} tokens unread", "reader_too_slow"))


def taken_over() -> RequestRejected:
    """The error of a connection whose request another connection reads now."""
    return RequestRejected("another connection reads this request now", "taken_over")
