"""One HTTP request while it runs: its sequences' deltas in, pieces of text out. Streaming or not, the same path."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import NamedTuple, Self

from common import messages as m
from common.errors import RequestRejected
from common.logging import get_logger
from common.wire import int32_array
from scheduler_svc.frontend.core_link import CoreLink
from scheduler_svc.frontend.inbox import Inbox
from scheduler_svc.frontend.jobs import Job
from scheduler_svc.frontend.responses import PromptTokensDetails, Usage
from scheduler_svc.frontend.sequence_text import SequenceText
from scheduler_svc.frontend.tokenizer import Tokenizer

log = get_logger(__name__)


class Piece(NamedTuple):
    """New text of one choice, and why it ended if it did."""

    choice: int
    text: str
    finish_reason: str | None


class Generation:
    """Runs a job on the core. To be used in a `with`: on leaving it, whatever still runs is cancelled."""

    def __init__(self, link: CoreLink, tokenizer: Tokenizer, job: Job) -> None:
        self._link = link
        self._job = job
        self._texts = [SequenceText(tokenizer.token_bytes, job.stop) for _ in range(job.num_choices)]
        self._num_unfinished = job.num_choices
        self._num_cached = [0] * len(job.prompts)
        self._inbox: Inbox | None = None

    def __enter__(self) -> Self:
        """Submit the job. Raises RequestRejected if that is not possible."""
        self._inbox = self._link.open(self._job.submits())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._inbox is not None, "entered"
        self._inbox.close()
        log.debug("request ended", request=self._job.request_id, usage=self.usage, unfinished=self._num_unfinished)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What became known since the last turn, one piece at most for each choice, until all have ended.

        Raises:
            RequestRejected: the core refused or failed it, or went away.
        """
        assert self._inbox is not None, "entered"
        while self._num_unfinished:
            pieces: dict[int, Piece] = {}
            for choice, delta in await self._inbox.get():
                if self._texts[choice].has_ended:
                    continue  # its stop string was found earlier in this batch
                text, finish_reason = self._read(choice, delta)
                if finish_reason is not None:
                    self._num_unfinished -= 1
                    self._inbox.end(choice)
                earlier = pieces[choice].text if choice in pieces else ""
                pieces[choice] = Piece(choice, earlier + text, finish_reason)
            if shown := [piece for piece in pieces.values() if piece.text or piece.finish_reason]:
                yield shown

    async def whole(self) -> list[Piece]:
        """Every choice's complete text, in order of choice. Raises as `pieces` does."""
        texts: list[list[str]] = [[] for _ in self._texts]
        reasons = ["stop"] * len(texts)
        async for pieces in self.pieces():
            for piece in pieces:
                texts[piece.choice].append(piece.text)
                reasons[piece.choice] = piece.finish_reason or reasons[piece.choice]
        return [Piece(choice, "".join(texts[choice]), reasons[choice]) for choice in range(len(texts))]

    @property
    def usage(self) -> Usage:
        """Tokens so far. A prompt counts once however many sequences it has."""
        prompt = sum(map(len, self._job.prompts))
        completion = sum(sequence.num_tokens for sequence in self._texts)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._num_cached)),
        )

    def _read(self, choice: int, delta: m.TokenDelta) -> tuple[str, str | None]:
        """A delta's text, and why its sequence ended if it did."""
        if delta.finish_reason == "error":
            raise RequestRejected(delta.error or "the request failed", delta.code or "internal_error")
        if delta.finish_reason == "cancelled":
            raise RequestRejected("the request was cancelled by the server", "unavailable")
        prompt, sequence = divmod(choice, self._job.n)
        if sequence == 0:  # the others find what the first one computed, which saved the client nothing
            self._num_cached[prompt] = max(self._num_cached[prompt], delta.num_cached_tokens)
        token_ids = int32_array("token_ids", delta.token_ids).tolist()
        return self._texts[choice].feed(token_ids, delta.finish_reason)
