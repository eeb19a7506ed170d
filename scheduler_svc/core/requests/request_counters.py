"""What the request manager tells of requests to what counts them (`observability/service_counters.py`). Pure."""

from collections.abc import Sequence as Lists
from typing import Protocol

from common.messages import Submit
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd, StepOutput


class RequestCounters(Protocol):
    """Counts what happens to requests, and decides nothing. `now` is the caller's time."""

    def request_refused(self, code: str) -> None:
        """A request was not taken."""

    def request_taken(self, submit: Submit) -> None:
        """A request was taken, for the first time in all lives of the scheduler."""

    def request_ended(self, submit: Submit, num_output: int) -> None:
        """All sequences of a request have ended, with so many tokens together."""

    def requests_restored(self, count: int) -> None:
        """So many open requests came back from the journal."""

    def submitted(self, sequences: Lists[Sequence], now: float, *, is_restored: bool = False) -> None:
        """A request with these sequences was taken, or taken up from the journal."""

    def stepped(self, output: StepOutput, now: float) -> None:
        """Sequences have new tokens; some have ended."""

    def ended(self, end: SequenceEnd, now: float) -> None:
        """A sequence has ended other than by a step."""
