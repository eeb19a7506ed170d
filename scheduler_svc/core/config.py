"""How the core is to work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from common.messages import Task
from common.vocabulary import Vocabulary
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from scheduler_svc.core.fleet.step_clock import DEFAULT_FLOOR_S
from scheduler_svc.core.observability.sequence_lives import MAX_ENDED
from scheduler_svc.core.requests.frontends import END_AFTER_S
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.request_manager import RECONNECT_GRACE_S
from scheduler_svc.core.requests.retention import MAX_RETAINED
from scheduler_svc.core.requests.returning_clients import RETURN_WITHIN_S
from scheduler_svc.core.scheduling.config import SchedulerConfig


@dataclass(frozen=True)
class CoreConfig:
    """How the core works.

    Attributes:
        model: the name shown in the status.
        scheduler: window and limits.
        vocabulary: of the model that is served, which executors must have; None takes that of the first executor.
        pooling_vocabularies: of tasks that have a model of their own, which executors that take them must have instead.
        first_epoch, first_arrival: above any epoch, and any arrival of a sequence, of an earlier life.
        step_floor_s: what any step may take before its executor counts as hung.
        reconnect_grace_s: how long a request without a reader goes on.
        return_within_s: how long a request of an earlier life waits for its client; the grace, if that is longer.
        journal: OK with a journal, else OFF.
        first_batch: number of the first batch for the journal; above all that are in it.
        scale: between which sizes the fleet is to move; None if its size is not decided here.
        client_ids: of all API keys, by their names, for a journal of a release without ids; None if nobody needs a key.
        end_frontend_after_s: how long a frontend may be silent before it is ended.
        max_retained: requests that have ended and are kept for clients that come back.
        max_lives: requests that have ended and whose lives are remembered.
        wall_offset_s: what to add to the caller's time to get the time on the journal's timeline (`journal_time.py`).
    """

    model: str = ""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    vocabulary: Vocabulary | None = None
    pooling_vocabularies: Mapping[Task, Vocabulary] = field(default_factory=dict)
    first_epoch: int = 1
    first_arrival: int = 0
    step_floor_s: float = DEFAULT_FLOOR_S
    reconnect_grace_s: float = RECONNECT_GRACE_S
    return_within_s: float = RETURN_WITHIN_S
    journal: JournalState = JournalState.OFF
    first_batch: int = 1
    scale: ScaleSettings | None = None
    client_ids: Mapping[str, str] | None = None
    end_frontend_after_s: float = END_AFTER_S
    max_retained: int = MAX_RETAINED
    max_lives: int = MAX_ENDED
    wall_offset_s: float = 0.0

    @property
    def vocabularies(self) -> dict[Task, Vocabulary]:
        """By task; none for those that take the vocabulary of their first executor."""
        served = {} if self.vocabulary is None else dict.fromkeys(get_args(Task), self.vocabulary)
        return served | dict(self.pooling_vocabularies)
