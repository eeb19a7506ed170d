"""Whose requests go on without their connection, or their scheduler: those whose clients can come back for them. Pure.

A client that did not send `"resumable": true` learns from a broken connection that its request has failed, and sends a
new one at most. So the journal has nothing of such a request, what it is told waits for no disk, and it is forgotten
when it has ended.
"""

from common.messages import Submit
from scheduler_svc.core.requests.journal_records import SubmitRecord

RETURN_WITHIN_S = 120.0  # of the restart; `baton` commands look for the service every 30 s at least


def can_return(submit: Submit | SubmitRecord) -> bool:
    """Whether a client can come back for a request."""
    return submit.is_resumable
