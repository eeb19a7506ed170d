"""A line of a batch whose request is complete."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from common import messages as m
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.requests.tokenized_request import core_request_id

PRIORITY = m.MAX_PRIORITY  # of a line that names none: it goes after all requests that somebody waits for


@dataclass(frozen=True)
class LineName:
    """Which line of which batch. The ids of its requests follow from it, so that they are found again."""

    batch_id: str
    number: int

    def request_id(self, prefix: str) -> str:
        """The id of its answer."""
        return f"{prefix}-{self.batch_id.removeprefix('batch_')}-{self.number}"


@dataclass(frozen=True)
class ReadyLine:
    """A line whose request is complete.

    Attributes:
        request_id: of the answer.
        submits: one for each prompt.
        answer: reads deltas to their end, and returns the answer's JSON. Raises RequestRejected as `Generation` does;
            when it is cancelled, a resumable request goes on without it.
        is_resumable: whether the core lets the request go on without a reader, and over its own restart.
    """

    client: ApiClient
    request_id: str
    submits: tuple[m.Submit, ...]
    answer: Callable[[DeltaQueue], Awaitable[bytes]]
    is_resumable: bool = True

    @property
    def num_sequences(self) -> int:
        """That the core has of it."""
        return sum(submit.n for submit in self.submits)

    def asked(self, attempt: int) -> list[m.Submit]:
        """What to ask the core for. Each attempt after the first (0) has ids of its own."""
        request_id = f"{self.request_id}.{attempt}" if attempt else self.request_id
        return [
            msgspec.structs.replace(submit, request_id=core_request_id(self.client.id, request_id, prompt))
            for prompt, submit in enumerate(self.submits)
        ]
