"""An answer of many requests: what becomes of them if it fails while they are submitted."""

import asyncio
from types import SimpleNamespace

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.link.many_requests import SUBMITS_AT_ONCE, open_in_turns
from tests.frontend.links import in_event_loop


class Link:
    """Notes what the core is told."""

    def __init__(self) -> None:
        self.fleet = SimpleNamespace(max_waiting=0)
        self.submitted: list[str] = []
        self.told: list[m.Cancel | m.Detach] = []

    def attach_queue(self) -> DeltaQueue:
        return DeltaQueue(self.told.append, lambda _: None, is_streamed=True, is_resumable=True)

    def open(self, submits: list[m.Submit], *, is_resumable: bool, num_following: int) -> DeltaQueue:
        self.queue = self.attach_queue()
        self.submit(submits, self.queue)
        return self.queue

    def submit(self, submits: list[m.Submit], queue: DeltaQueue, first_prompt: int = 0) -> None:
        for prompt, submit in enumerate(submits, first_prompt):
            self.submitted.append(submit.request_id)
            queue.add(submit.request_id, prompt, submit.n)


@in_event_loop
async def test_of_a_request_that_fails_before_all_of_it_is_submitted_nothing_is_left():
    """A client that came back for it would be told neither that it is there nor that it is not."""
    link = Link()
    params = m.SamplingParams(max_tokens=1)
    submits = [m.Submit(request_id=f"r-{i}", prompt=b"\0\0\0\0", params=params) for i in range(3 * SUBMITS_AT_ONCE)]
    opening = asyncio.create_task(open_in_turns(link, submits, is_resumable=True))
    await asyncio.sleep(0)
    link.queue.detach()
    link.queue.fail(RequestRejected("the frontend is stopping", "unavailable"))
    assert (await opening).has_failed
    assert len(link.submitted) == SUBMITS_AT_ONCE
    cancelled = [told.request_id for told in link.told if isinstance(told, m.Cancel)]
    assert cancelled == link.submitted
