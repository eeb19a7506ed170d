"""Attaches that the core has not answered yet, and which queue gets the deltas that each asks for."""

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.link.delta_queue import DeltaQueue, taken_over


class PendingAttach(NamedTuple):
    """An Attach that was sent.

    Attributes:
        prompt: number of the prompt whose request it asks for.
        queue: where the request's deltas go.
        answer: set when the core has answered.
    """

    prompt: int
    queue: DeltaQueue
    answer: "asyncio.Future[m.Attached]"


@dataclass
class _NewestAttach:
    """The newest Attach of a request, and how many answers of the core are outstanding up to its own."""

    attach: PendingAttach
    num_unanswered: int = 1


class PendingAttaches:
    """Matches the core's answers to Attaches.

    The newest Attach gets the request; earlier ones fail at once, so that from then on their readers tell the core
    nothing about it. The core answers every Attach, in order, and starts anew with each: only the last answer counts.
    """

    def __init__(self) -> None:
        self._newest: dict[str, _NewestAttach] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._newest

    def expect(self, request_id: str, prompt: int, queue: DeltaQueue) -> "asyncio.Future[m.Attached]":
        """An Attach was sent. Returns its answer to be."""
        answer: asyncio.Future[m.Attached] = asyncio.get_running_loop().create_future()
        attach = PendingAttach(prompt, queue, answer)
        earlier = self._newest.get(request_id)
        if earlier is None or earlier.attach.answer.done():  # its reader gave up, as no answer came in time
            self._newest[request_id] = _NewestAttach(attach)
            return answer
        earlier.attach.queue.fail(taken_over())
        earlier.attach.answer.set_exception(taken_over())
        self._newest[request_id] = _NewestAttach(attach, earlier.num_unanswered + 1)
        return answer

    def answered(self, request_id: str) -> PendingAttach | None:
        """The core has answered an Attach. Returns the one that this answer decides; None if later answers decide.

        Raises:
            KeyError: no Attach of this request is outstanding, or it was given up.
        """
        newest = self._newest[request_id]
        newest.num_unanswered -= 1
        if newest.num_unanswered:
            return None
        return self._newest.pop(request_id).attach

    def fail_all(self, reason: str) -> None:
        """No answer will come."""
        for newest in self._newest.values():
            if not newest.attach.answer.done():
                newest.attach.answer.set_exception(RequestRejected(reason, "unavailable"))
        self._newest.clear()
