"""An answer of many requests: what becomes of them if it fails while they are submitted."""

import asyncio
from pathlib import Path

from scheduler_svc.frontend.link.many_requests import SUBMITS_AT_ONCE, open_in_turns
from tests.frontend.links import in_event_loop, linked_core, submit, until
from tests.support.fake_core import silence


@in_event_loop
async def test_of_a_request_that_fails_before_all_of_it_is_submitted_nothing_is_left(tmp_path: Path):
    """A client that came back for it would be told neither that it is there nor that it is not."""
    async with linked_core(tmp_path, silence) as (core, link):
        submits = [submit(f"r-{i}") for i in range(3 * SUBMITS_AT_ONCE)]
        opening = asyncio.create_task(open_in_turns(link, submits, is_resumable=True))
        await asyncio.sleep(0)
        link.leave_all("the frontend is stopping")
        assert (await opening).has_failed
        await until(lambda: len(core.cancels) == SUBMITS_AT_ONCE)
        submitted = [request.request_id for request in core.submits]
        assert submitted == [f"r-{i}" for i in range(SUBMITS_AT_ONCE)]
        assert [cancel.request_id for cancel in core.cancels] == submitted
