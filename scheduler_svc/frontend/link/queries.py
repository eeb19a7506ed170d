"""Questions to the core that it answers with one message each."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from common import messages as m
from common.errors import RequestRejected

QUERY_TIMEOUT_S = 5.0

Query = m.StatusQuery | m.MetricsQuery | m.DrainExecutor | m.LifeQuery | m.BlockQuery
Answer = m.Status | m.Metrics | m.DrainReply | m.Life | m.BlockHolders
Reply = TypeVar("Reply", m.Status, m.Metrics, m.DrainReply, m.Life, m.BlockHolders)


class Queries:
    """Those that the core has not answered yet.

    Args:
        send: to the core. Raises RequestRejected if it cannot be reached.
        timeout_s: in which the core answers, or does not.
    """

    def __init__(self, send: Callable[[Query], None], timeout_s: float = QUERY_TIMEOUT_S) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()

    async def ask(self, query: Callable[..., Query], expected: type[Reply]) -> Reply:
        """The core's answer. Raises RequestRejected if there is none."""
        query_id = next(self._ids) % 2**31
        answer = self._unanswered[query_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(query(query_id=query_id))
            async with asyncio.timeout(self._timeout_s):
                reply = await answer
        except TimeoutError:
            raise RequestRejected(f"the scheduler gave no answer in {self._timeout_s:.0f} s", "unavailable") from None
        finally:
            del self._unanswered[query_id]
        if not isinstance(reply, expected):
            raise RequestRejected("the scheduler answered another question", "internal_error")
        return reply

    def answered(self, reply: Answer) -> None:
        """The core has answered a query, which may have been given up."""
        answer = self._unanswered.get(reply.query_id)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def fail_all(self, reason: str) -> None:
        """No answer will come."""
        for answer in self._unanswered.values():
            if not answer.done():
                answer.set_exception(RequestRejected(reason, "unavailable"))
