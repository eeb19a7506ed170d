"""The places that clients' requests get, in all lives of the scheduler, and that those who are owed a lane have it."""

from collections import Counter
from itertools import pairwise

from common import messages as m
from scheduler_svc.core.core import Core
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.requests.journal_records import SharesRecord
from scheduler_svc.core.scheduling.suspects import is_suspect

MAX_DENIED = 8  # plans in a row, without one of a suspect
CERTAIN = 2.0  # mean sequences that the other one has had more, at least: the means of a moment ago may have differed


class ShareBook:
    """Of one run.

    Args:
        moments: what happened, and how often.
    """

    def __init__(self, moments: Counter[str]) -> None:
        self._moments = moments
        self._owners: dict[str, str] = {}  # by request
        self._places: dict[tuple[str, int], tuple[int, float]] = {}
        self._virtual_time = 0.0  # in this life
        self._written = 0.0  # the latest that a journal told
        self._denied: Counter[int] = Counter()  # by epoch: plans in a row

    def started(self) -> None:
        """Begin a life of the scheduler, which knows keys and no addresses of an earlier one."""
        self._virtual_time = 0.0
        self._owners = {request_id: owner for request_id, owner in self._owners.items() if owner.isalpha()}

    def submitted(self, core: Core, submit: m.Submit) -> None:
        """Check a request that was accepted: none of its client's own that is open starts later."""
        request = core.requests.table.find(submit.request_id)
        assert request is not None
        first, *others = sequences = request.sequences
        num_prompt = len(submit.prompt) // 4
        owner = self._owners[submit.request_id] = submit.client or submit.address
        mine = [
            s
            for s in core.scheduler
            if s not in sequences and self._owners.get(s.request_id) == owner and s.yields == first.yields
        ]
        assert all(s.start <= first.start for s in mine), f"{submit.request_id} overtakes its client's own"
        for before, after in pairwise(sequences):
            step = after.start - before.start
            assert step * submit.weight >= num_prompt - 1e-6, f"{submit.request_id} is charged {step} for a sequence"
        assert first.start >= self._virtual_time, "virtual time falls"
        assert submit.priority or first.place == int(first.start), f"{submit.request_id} is moved without a priority"
        self._virtual_time = core.scheduler.sequences.shares.virtual_time
        self._moments["behind its client's own"] += bool(mine)
        self._places.update({(s.request_id, s.index): (s.place, s.start) for s in (first, *others)})

    def took_up(self, shares: SharesRecord, *, is_true: bool) -> None:
        """A scheduler reads its journal."""
        assert not is_true or shares.virtual_time >= self._written, "the journal's virtual time falls"
        self._written = shares.virtual_time

    def restored(self, core: Core, *, is_certain: bool) -> None:
        """It has taken up what an earlier life had."""
        self._virtual_time = core.scheduler.sequences.shares.virtual_time
        assert self._virtual_time >= self._written, "a life begins before what is written"
        self._moments["lives with a virtual time"] += self._written > 0
        for sequence in core.scheduler:
            known = self._places.get((sequence.request_id, sequence.index))
            is_same = known == (sequence.place, sequence.start)
            assert is_same or not is_certain, f"the place of {sequence.request_id} was {known}"

    def planned(self, core: Core, executor: ExecutorState) -> None:
        """Check a plan that was built: one that waits and has had less is not kept from a lane for long."""
        if executor.is_suspects:
            return
        owed = self._owed(core, executor)
        self._denied[executor.epoch] = self._denied[executor.epoch] + 1 if owed is not None else 0
        assert self._denied[executor.epoch] <= MAX_DENIED, f"{owed} waits, and others have had more"

    @staticmethod
    def _owed(core: Core, executor: ExecutorState) -> str | None:
        """Return the request whose sequence is first in the queue, if others have its lane that have had more."""
        sequences, running, blocks = core.scheduler.sequences, executor.running, executor.blocks
        first = sequences.waiting.first(executor.epoch)
        if first is None or first.yields or first.num_inflight or first.awaited or is_suspect(first):
            return None
        able = sequences.waiting.executors_for(first)
        is_paused = first.doubt is not None or first.lateness is not None or executor.is_emptying
        is_spent = len(running) >= executor.limits.max_batch_tokens
        if is_paused or is_spent or any(each.running.has_free_lane for each in able):
            return None
        margin = CERTAIN * sequences.shares.cost.value
        givers = [s for s in running if s.rank > first.rank and s.client != first.client]
        has_memory = blocks.num_free > blocks.num_blocks // 10 + blocks.blocks_for(len(first.tokens))
        return first.request_id if has_memory and any(s.start > first.start + margin for s in givers) else None
