"""All sequences from their arrival to their end: which wait, and which run where. Pure.

Every change of a sequence's state goes through here, except for the step from running to completing, which follows from
a plan (`executor_state.py`).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from common.errors import RequestRejected
from common.messages import FinishReason, Submit, Task
from common.wire import int32_array
from scheduler_svc.core.executor.capacity import Capacities, Capacity, capacity
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling.arrivals import checked_prompt, with_max_tokens
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.deadlines import Deadlines
from scheduler_svc.core.scheduling.fair_shares import FairShares
from scheduler_svc.core.scheduling.needs import Needs, able_executors, kinds_of
from scheduler_svc.core.scheduling.pools import Pools
from scheduler_svc.core.scheduling.queue_pace import QueuePace
from scheduler_svc.core.scheduling.stats import Move, Moves, SchedulerStats
from scheduler_svc.core.scheduling.suspects import MAX_STRIKES, Suspects, is_suspect
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Doubt, Earlier, Lateness, Sequence, Share, State, largest_token, new_sequences
from scheduler_svc.core.step_output import SequenceEnd

MAX_LATE_PAUSE = 32  # plans: half a second of steps of 16 ms; a mask that takes ten times as long costs few starts


class Sequences:
    """The sequences that have not ended, the queue, and the executors of all live epochs.

    Args:
        config: its limits.
        stats: where it counts what it does.
        first_arrival: of the sequences to come.

    Attributes:
        executors: by epoch.
        waiting: sequences that hold no lane; for reading.
        shares: the accounts of clients.
        suspects: sequences with strikes.
        capacities: what the fleet can hold; for reading.
        pools: those that wait for an executor.
        in_doubt: sequences that are computed once more because a row had no numbers.
        moves: since `take_moves` was called.
    """

    def __init__(self, config: SchedulerConfig, stats: SchedulerStats, first_arrival: int = 0) -> None:
        self.executors: dict[int, ExecutorState] = {}
        self.capacities = Capacities(config.pool_grace_s, config.task_grace_s)
        self.waiting = WaitingQueue(config.grammars)
        self.shares = FairShares(config.address_key)
        self.suspects = Suspects()
        self.pools = Pools()
        self.in_doubt: dict[Sequence, None] = {}
        self.moves = Moves()
        self._open: dict[Sequence, None] = {}
        self._deadlines = Deadlines()
        self._relaxed: list[Sequence] = []
        self._paces: dict[Task, QueuePace] = {}
        self._awaited: list[int] = []  # epochs that ended, and whose pools sequences wait for
        self._changed_at: float | None = None  # when other executors began or ceased to take sequences
        self._now = 0.0
        self._max_waiting = config.max_waiting
        self._grammars = config.grammars
        self._stats = stats
        self._arrivals = first_arrival

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of their arrival, or of their return from the journal."""
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    # --- arrivals ---

    def add(self, submit: Submit, now: float) -> list[Sequence]:
        """See `Scheduler.add`."""
        prompt, largest = checked_prompt(submit)
        self._now = max(self._now, now)
        if submit.may_shorten:
            submit = with_max_tokens(
                submit, self.capacities.of(submit.params.task).default_max_tokens(len(prompt), submit.params.max_tokens)
            )
        deadline = None if submit.timeout_s is None else now + submit.timeout_s
        self._advance()
        share = self.shares.share_for(submit)
        one = new_sequences(msgspec.structs.replace(submit, n=1), prompt, largest, self._arrivals, deadline)[0]
        if (refusal := self.capacities.refusal(one, now)) is not None:  # before n copies of the prompt are made
            raise refusal
        pace, num_waiting = self._paces.setdefault(one.params.task, QueuePace()), self.waiting.num_of(one.params.task)
        if num_waiting + submit.n > self._max_waiting:
            message = f"{num_waiting} sequences are waiting, the limit is {self._max_waiting}"
            retry_after_s = pace.retry_after_s(submit.n, num_waiting, self._max_waiting, self._now)
            raise RequestRejected(message, "queue_full", retry_after_s)
        sequences = new_sequences(submit, prompt, largest, self._arrivals, deadline, share)
        self._arrivals += submit.n
        for sequence in sequences:
            self._enter(sequence)
        pace.accepted(submit.n, num_waiting + submit.n, self._now)
        self._stats.accept(submit.n, len(prompt))
        return sequences

    def restore(
        self, submit: Submit, arrival: int, earlier: Iterable[Earlier], deadline: float | None, share: Share
    ) -> list[Sequence]:
        """See `Scheduler.restore`."""
        prompt = int32_array("prompt", submit.prompt)
        largest = largest_token(submit, prompt)
        sequences = new_sequences(submit, prompt, largest, arrival, deadline, share)
        self._arrivals = max(self._arrivals, arrival + submit.n)
        for sequence, had in zip(sequences, earlier, strict=True):
            sequence.take_up(had)
            if had.ended is None:
                self._enter(sequence)
            else:
                sequence.state = State.FINISHED
        return sequences

    # --- moves ---

    def leave_queue(self, sequence: Sequence) -> None:
        """The sequence waits no longer."""
        self.waiting.remove(sequence)

    def await_pool(self, sequence: Sequence) -> bool:
        """Let a waiting sequence wait for the pool of the epoch that it was to run in, if others do.

        Returns:
            Whether it does.
        """
        if sequence.placed not in self._awaited or is_suspect(sequence):
            return False
        self.waiting.remove(sequence)
        sequence.awaited = sequence.placed
        self._join_queue(sequence)
        return True

    def answer_begins(self, sequence: Sequence) -> None:
        """The first token of a sequence that waits again has arrived, or the first log-probabilities of its prompt: it
        goes on with the model that gave them."""
        self.waiting.remove(sequence)
        self._join_queue(sequence)

    def preempt(self, executor: ExecutorState, sequence: Sequence) -> None:
        """Take a running sequence's blocks for another one: it waits again, at its place."""
        self._stats.preemptions += 1
        self.requeue(executor, sequence)

    def requeue(self, executor: ExecutorState, sequence: Sequence) -> None:
        """Back to its place among the waiting, with its tokens and without blocks. Its blocks are cached there."""
        executor.leave(sequence)
        if executor.epoch in self.executors:  # and the epoch has not ended
            self.moves.moves.append(Move("preempted", sequence, executor.epoch))
        sequence.state, sequence.placed = State.WAITING, executor.epoch
        if sequence.num_output > 0:
            self.moves.interrupted.append((sequence, executor.epoch))
        self._join_queue(sequence)

    def take_moves(self) -> Moves:
        """See `Scheduler.take_moves`."""
        moves, self.moves = self.moves, Moves()
        return moves

    # --- executors ---

    def remember(self, executors: Mapping[str, Capacity]) -> None:
        """See `Scheduler.remember`."""
        for name, known in executors.items():
            self.capacities.remember(name, known)
            self.waiting.know(known.positions, known.vocabulary)
        self._changed_at = self._now

    def add_executor(self, executor: ExecutorState, now: float) -> None:
        """An epoch begins."""
        self._now = max(self._now, now)
        self.executors[executor.epoch] = executor
        self._stop_awaiting(executor)
        known = Capacity.of(executor.limits)
        self.capacities.joined(executor.epoch, executor.name, known, self._now)
        self.waiting.know(known.positions, known.vocabulary)
        self._changed_at = self._now
        self.regroup()  # now: it may leave in the same turn, and what only it could run waits anew

    def regroup(self) -> None:
        """Find out which executors may run what waits, if these have changed: once for all that left in a turn."""
        if self._changed_at is not None:
            self.waiting.regroup(self.executors.values(), self._changed_at)
            self._changed_at = None

    def executor_leaves(self, epoch: int, now: float, *, in_order: bool = True) -> None:
        """An executor takes no more sequences."""
        self._now = max(self._now, now)
        self.capacities.left(epoch, now, in_order=in_order)
        self._changed_at = self._now

    def remove_executor(self, epoch: int, now: float, pool_wait_s: float | None = None) -> list[Sequence]:
        """See `Scheduler.remove_executor`."""
        executor = self.executors.pop(epoch)
        resumed = executor.sequences()
        keeps_pool = pool_wait_s is not None and executor.membership.pool is not None
        executor.abandon(keeps_pool=keeps_pool)
        if pool_wait_s is not None and keeps_pool:
            self.pools.vacate(executor, now, pool_wait_s)
            if pool_wait_s > 0:
                self._awaited.append(epoch)
                for sequence in resumed:  # a suspect had better run elsewhere
                    sequence.awaited = 0 if is_suspect(sequence) else epoch
        self.executor_leaves(epoch, now, in_order=False)
        for sequence in resumed:
            self.requeue(executor, sequence)
        self._stats.resumed += len(resumed)
        return resumed

    # --- ends ---

    def cancel(self, sequences: Iterable[Sequence]) -> list[SequenceEnd]:
        """See `Scheduler.cancel`."""
        return [self.end(s, "cancelled") for s in sequences if s.state is not State.FINISHED]

    def expire(self, now: float) -> Iterator[list[SequenceEnd]]:
        """See `Scheduler.expire`."""
        self.tick(now)
        self._advance()
        self.pools.expire(now)
        self._stop_awaiting()
        self.regroup()
        for sequence in self._deadlines.passed(now):
            yield [self.end(sequence, "error", "the request's time is up", "deadline_exceeded")]
        for sequence in self.waiting.hopeless(self.capacities.can_hold):
            yield self._give_up_hope(sequence)
        for sequence in self.waiting.stranded(now - self.capacities.grace_s, self.capacities.others_since):
            yield self._give_up(sequence)

    def tick(self, now: float) -> None:
        """See `Scheduler.tick`."""
        self._now = max(self._now, now)

    def take_relaxed(self) -> list[Sequence]:
        """See `Scheduler.take_relaxed`."""
        relaxed, self._relaxed = self._relaxed, []
        return relaxed

    def strike(self, involved: Mapping[Sequence, int], executor: str) -> list[SequenceEnd]:
        """An executor failed while it computed these up to these positions: each gets a strike, and one may end."""
        alive = {s: end for s, end in involved.items() if s.state is not State.FINISHED}
        self._stats.strikes += len(alive)
        message = f"{MAX_STRIKES} failures in a row of executors that computed this sequence"
        guilty = self.suspects.strike(alive, executor)
        self._stats.struck_out += len(guilty)
        return [self.end(sequence, "error", message, "internal_error") for sequence in guilty]

    def doubt(self, executor: ExecutorState, sequence: Sequence) -> list[SequenceEnd]:
        """A row of a sequence had no numbers: it is computed once more, without the prefix cache, and elsewhere if that
        is possible. If it was computed once more already, the sequence is why, and ends."""
        self._stats.numberless += 1
        if sequence.doubt is not None:
            message = "the model's scores for this request are no numbers: it was computed twice"
            return [self.end(sequence, "error", message, "internal_error")]
        self._compute_again(executor, sequence)
        self.in_doubt[sequence] = None
        sequence.doubt = Doubt(executor.epoch, executor.name, executor.origin)
        executor.num_doubts += 1
        return []

    def mask_was_late(self, executor: ExecutorState, sequence: Sequence) -> None:
        """A row of a sequence had no mask in time: it is computed once more, after a pause of few plans that doubles
        each time, since each start of a lane tells the executor all tokens and the grammar again."""
        self._stats.late_rows += 1
        self._compute_again(executor, sequence)
        before, num_tokens = sequence.lateness, len(sequence.tokens)
        count = before.count + 1 if before is not None and before.num_tokens == num_tokens else 1
        until_step = executor.next_step + min(2**count, MAX_LATE_PAUSE)
        sequence.lateness = Lateness(executor.epoch, num_tokens, count, until_step)

    def settle(self, sequence: Sequence) -> Doubt | None:
        """A sequence that was in doubt has ended, or what was computed again has numbers. Returns the doubt."""
        if (doubt := sequence.doubt) is not None:
            sequence.doubt = None
            del self.in_doubt[sequence]
            if (executor := self.executors.get(doubt.epoch)) is not None:
                executor.num_doubts -= 1
        return doubt

    def convict(self, sequence: Sequence, doubt: Doubt) -> None:
        """An executor, or its prefix cache, was why a row had no numbers: what the row may have hit is forgotten."""
        for executor in self.executors.values():
            if executor.origin == doubt.origin:
                executor.running.forget(sequence)

    def end(self, sequence: Sequence, reason: FinishReason, error: str = "", code: str = "") -> SequenceEnd:
        """The sequence holds nothing any more, wherever it was (invariant 10)."""
        if sequence.state is State.WAITING:
            self.leave_queue(sequence)
        else:
            self.executors[sequence.epoch].leave(sequence)
        sequence.state = State.FINISHED
        self.suspects.forget(sequence)
        self.settle(sequence)
        self.shares.ended(sequence, is_whole=reason != "error")
        del self._open[sequence]
        return SequenceEnd(sequence, reason, error, code)

    def check(self) -> None:
        """Assert the invariants that can be seen from here."""
        self.regroup()
        kinds = kinds_of(self.executors.values())
        for sequence in self.waiting:
            able = able_executors(Needs.of(sequence, self._grammars), kinds)
            assert self.waiting.executors_for(sequence) == able, "it waits for other executors than those that fit it"
            assert (sequence.state, sequence.epoch, sequence.lane) == (State.WAITING, 0, -1)
        ranks = [sequence.rank for sequence in self.waiting]
        assert ranks == sorted(ranks), "waiting sequences are out of order"
        self.shares.check(self._open)

    # --- inside ---

    def _enter(self, sequence: Sequence) -> None:
        self._open[sequence] = None
        self.shares.opened(sequence)
        self._join_queue(sequence)
        self._deadlines.watch(sequence)

    def _advance(self) -> None:
        """Move the virtual time to the least that a running sequence has had; while none runs, to where the first that
        waits starts. Executors that hang do not hold it up."""
        busy = [e.running for e in self.executors.values() if len(e.running) and not e.membership.is_late]
        if busy:
            self.shares.advance(min([running.lanes.least_served for running in busy]))
        elif (first := next(iter(self.waiting), None)) is not None:
            self.shares.advance(first.start)

    def _join_queue(self, sequence: Sequence) -> None:
        self.waiting.add(sequence, self._now)

    def _compute_again(self, executor: ExecutorState, sequence: Sequence) -> None:
        """A row brought no token, so the rows after it, which are in flight, were computed with none: they are void."""
        if sequence.state is not State.WAITING:
            self.requeue(executor, sequence)
        sequence.num_void = sequence.num_inflight
        sequence.num_written = max(sequence.num_written, len(sequence.tokens))

    def _stop_awaiting(self, joined: ExecutorState | None = None) -> None:
        """Sequences wait no longer for pools that an executor has now, or that they have waited for long enough."""
        over = [epoch for epoch in self._awaited if not self.pools.is_awaited(epoch, self._now)]
        if not over:
            return
        self._awaited = [epoch for epoch in self._awaited if epoch not in over]
        for sequence in [sequence for epoch in over for sequence in self.waiting.awaiting(epoch)]:
            self.waiting.remove(sequence)
            is_back = joined is not None and sequence.awaited in joined.earlier_epochs
            sequence.awaited, sequence.placed = 0, joined.epoch if joined is not None and is_back else 0
            self._join_queue(sequence)

    def _give_up_hope(self, sequence: Sequence) -> list[SequenceEnd]:
        """No executor that was ever seen could hold a sequence, which was accepted before the first one was."""
        capacities = self.capacities.of(sequence.params.task)
        least = min(sequence.num_prompt + 1, sequence.num_positions) if sequence.may_shorten else sequence.num_positions
        if (objection := capacities.objection(sequence, least, capacities.seen)) is not None:
            return [self.end(sequence, "error", str(objection), objection.code)]
        return self._give_up_length(sequence, capacities.seen)

    def _give_up(self, sequence: Sequence) -> list[SequenceEnd]:
        """No executor that has what a sequence needs has been there for too long: see `needs.py`."""
        task = sequence.params.task
        if not (ready := self.capacities.of(task).ready):
            missed = self.capacities.missing(task, self._now)
            return [self.end(sequence, "error", str(missed), missed.code)]
        if not sequence.has_grammar or sequence.num_positions > ready:
            return self._give_up_length(sequence, ready)
        if not sequence.takes_any_library:
            self.leave_queue(sequence)
            sequence.takes_any_library = True
            self._relaxed.append(sequence)
            self._join_queue(sequence)
            return []
        if masking := [e for e in self.executors.values() if e.membership.grammars and not e.is_leaving]:
            return self._give_up_length(sequence, max(capacity(e.limits) for e in masking))
        message = (
            f"no executor that masks tokens by grammars has been there for {self.capacities.grace_s:.0f} s; the "
            f"frontends' library is {self._grammars or 'none'}"
        )
        return [self.end(sequence, "error", message, "grammars_lost")]

    def _give_up_length(self, sequence: Sequence, ready: int) -> list[SequenceEnd]:
        """Shorten a default `max_tokens` to the positions that are there; end what asked for more."""
        if sequence.may_shorten and len(sequence.tokens) < ready < sequence.max_length:
            self.leave_queue(sequence)
            sequence.params = msgspec.structs.replace(sequence.params, max_tokens=ready - sequence.num_prompt)
            self._join_queue(sequence)
            return []
        if sequence.may_shorten and sequence.num_output > 0:
            return [self.end(sequence, "length")]
        needs, have = f"{sequence.num_positions} positions", f"the largest executor has {ready}"
        if sequence.num_positions <= ready:  # models of one tokenizer may differ in the size of their vocabularies
            needs, have = f"token id {sequence.largest_token}", "the executors' vocabularies end before it"
        message = f"the request needs {needs}; {have}, and none with more has come back within "
        message += f"{self.capacities.grace_s:.0f} s"
        return [self.end(sequence, "error", message, "capacity_lost")]
