"""A link to a fake core, in the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from common import messages as m
from scheduler_svc.frontend.link.core_link import CoreLink
from tests.support.fake_core import FakeCore, Script, echo, int32

PARAMS = m.SamplingParams(max_tokens=5)
HELLO_INTERVAL_S = 0.1


def submit(request_id: str = "r") -> m.Submit:
    return m.Submit(request_id=request_id, prompt=int32([1, 2, 3]), params=PARAMS)


@asynccontextmanager
async def running_link(endpoint: str, **how: Any) -> AsyncIterator[CoreLink]:
    """A link that runs."""
    link = CoreLink(endpoint, hello_interval_s=HELLO_INTERVAL_S, **how)
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        link.close()


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds: soon where it will, so the limit is for those that never do."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def linked_core(folder: Path, script: Script = echo, **how: Any) -> AsyncIterator[tuple[FakeCore, CoreLink]]:
    """A fake core, and a link to it that is up."""
    core = FakeCore(folder, script=script)
    try:
        async with running_link(core.endpoint, **how) as link:
            await until(lambda: link.is_up)
            yield core, link
    finally:
        core.close()


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a coroutine a test; its arguments are fixtures."""

    @wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run
