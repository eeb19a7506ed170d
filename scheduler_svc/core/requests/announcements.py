"""What frontends are to be told of requests, once the journal has what it depends on. Pure."""

from dataclasses import dataclass

from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.journal_records import Progress
from scheduler_svc.core.requests.request_table import Request
from scheduler_svc.core.step_output import SequenceEnd, StepOutput


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A request that streams was accepted for this frontend."""

    peer: Peer
    request: Request


@dataclass(frozen=True, slots=True)
class Attachment:
    """A request that is read by another frontend from now on; `progress` is what it has told until now."""

    peer: Peer
    request: Request
    progress: tuple[Progress, ...]


Announcement = StepOutput | SequenceEnd | Acceptance | Attachment
