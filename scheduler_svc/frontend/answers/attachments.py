"""Attaches that the core has not answered yet, and who gets what they ask for."""

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.answers.inbox import Inbox, taken_over


class Attachment(NamedTuple):
    """Somebody who waits for the answer to an Attach.

    Attributes:
        prompt: number of the prompt whose request it is.
        inbox: where its deltas go.
        answer: set when the core has answered.
    """

    prompt: int
    inbox: Inbox
    answer: "asyncio.Future[m.Attached]"


@dataclass
class _Waiting:
    """The last one who wants a request, and how many answers will have come with his."""

    attachment: Attachment
    num_unanswered: int = 1


class Attachments:
    """Matches answers to those who wait.

    Who asks last gets the request; those before are told so at once, so that from then on none of them tells the core
    anything about it. The core answers every Attach, in order, and starts anew with each: only the last answer counts.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def expect(self, request_id: str, prompt: int, inbox: Inbox) -> "asyncio.Future[m.Attached]":
        """An Attach was sent. Returns its answer to be."""
        answer: asyncio.Future[m.Attached] = asyncio.get_running_loop().create_future()
        attachment = Attachment(prompt, inbox, answer)
        earlier = self._waiting.get(request_id)
        if earlier is None or earlier.attachment.answer.done():  # that one has lost patience, as no answer came
            self._waiting[request_id] = _Waiting(attachment)
            return answer
        earlier.attachment.inbox.fail(taken_over())
        earlier.attachment.answer.set_exception(taken_over())
        self._waiting[request_id] = _Waiting(attachment, earlier.num_unanswered + 1)
        return answer

    def answered(self, request_id: str) -> Attachment | None:
        """The core has answered an Attach. Returns whose answer it is; None if a later one has yet to come.

        Raises:
            KeyError: nobody has asked for it, or for so long that he was given up.
        """
        waiting = self._waiting[request_id]
        waiting.num_unanswered -= 1
        if waiting.num_unanswered:
            return None
        return self._waiting.pop(request_id).attachment

    def fail_all(self, reason: str) -> None:
        """No answer will come."""
        for waiting in self._waiting.values():
            if not waiting.attachment.answer.done():
                waiting.attachment.answer.set_exception(RequestRejected(reason, "unavailable"))
        self._waiting.clear()
