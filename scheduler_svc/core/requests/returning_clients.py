"""Whose requests go on after a restart of the scheduler: those whose clients can come back for them. Pure.

A restart breaks the connection of every client. A client that did not send `"resumable": true` learns that its request
has failed, and sends a new one at most: what the journal has of the old one would run to its end for no reader, before
all that came later.
"""

from scheduler_svc.core.requests.journal_records import Ending
from scheduler_svc.core.requests.request_table import Request
from scheduler_svc.core.scheduling.scheduler import Scheduler

RETURN_WITHIN_S = 120.0  # of the restart; `baton` commands look for the service every 30 s at least


def cancelled_for_its_client(request: Request, scheduler: Scheduler) -> bool:
    """End a restored request whose client cannot come back; to be called before the request enters the table.

    Returns:
        Whether it was open and is cancelled now.
    """
    if request.submit.is_resumable or None not in request.endings:
        return False
    for end in scheduler.cancel(request.sequences):
        request.endings[end.sequence.index] = Ending.of(end)
    return True
