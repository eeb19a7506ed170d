"""An answer of many requests, submitted some at a time."""

import asyncio
from collections.abc import Sequence

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.delta_queue import DeltaQueue

SUBMITS_AT_ONCE = 128  # about 7 ms


async def open_in_turns(link: CoreLink, submits: Sequence[m.Submit], *, is_resumable: bool = False) -> DeltaQueue:
    """As `CoreLink.open`, but others have their turns in between. When this is cancelled, so are the requests.

    Raises:
        RequestRejected: as `CoreLink.open` does, and for more sequences than may wait (`invalid_value`). If some begin
            to run while the others come, an idle core may have room for all of them; that would be luck, and the same
            request is to have the same answer.
    """
    num_sequences, limit = sum(submit.n for submit in submits), link.fleet.max_waiting
    if limit and num_sequences > limit:
        message = f"The request has {num_sequences} sequences, and {limit} may wait in this service."
        raise RequestRejected(message, "invalid_value")
    charge = submits[0].charge
    pays_first = charge is not None and charge.is_limited
    first = submits[: 1 if pays_first else SUBMITS_AT_ONCE]
    queue = link.open(first, is_resumable=is_resumable, num_following=len(submits) - len(first))
    try:
        for start in range(len(first), len(submits), SUBMITS_AT_ONCE):
            await (queue.is_counted() if pays_first else asyncio.sleep(0))
            if queue.has_failed:  # its reader is told why; nothing is left of a request that the core has a part of
                give_up(link, submits[:start])
                break
            if queue.rate_limits is not None and not queue.rate_limits.is_accepted:
                break  # likewise
            pays_first = False
            link.submit(submits[start : start + SUBMITS_AT_ONCE], queue, start)
    except asyncio.CancelledError:
        queue.close()
        raise
    return queue


def give_up(link: CoreLink, submits: Sequence[m.Submit]) -> None:
    """Have the core end requests that are not read here; it ignores those that it does not know."""
    queue = link.attach_queue()
    for prompt, submit in enumerate(submits):
        queue.add(submit.request_id, prompt, submit.n)
    queue.close()
