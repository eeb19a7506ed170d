"""All sequences from their arrival to their end: which wait, and which run where. Pure.

Every change of a sequence's state goes through here, except for the step from running to completing, which follows from
a plan (`executor_state.py`).
"""

from collections.abc import Iterable, Iterator

import msgspec

from common.errors import RequestRejected
from common.messages import FinishReason, Submit
from common.wire import int32_array
from scheduler_svc.core.executor.capacity import Capacities, capacity, missing
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling.able_executors import able_executors
from scheduler_svc.core.scheduling.arrivals import checked_prompt, with_max_tokens
from scheduler_svc.core.scheduling.deadlines import Deadlines
from scheduler_svc.core.scheduling.pools import Pools
from scheduler_svc.core.scheduling.stats import Move, Moves, SchedulerStats
from scheduler_svc.core.scheduling.suspects import MAX_STRIKES, Suspects, is_suspect
from scheduler_svc.core.scheduling.waiting_queue import Epochs, WaitingQueue
from scheduler_svc.core.sequence import Generated, Sequence, State, largest_token, new_sequences
from scheduler_svc.core.step_output import SequenceEnd


class Sequences:
    """The sequences that have not ended, the queue, and the executors of all live epochs.

    Args:
        max_waiting: sequences of each task that may wait.
        pool_grace_s: how long one waits for an executor that fits it, beside others.
        stats: where it counts what it does.
        grammars: the library that grammars are compiled with.

    Attributes:
        executors: by epoch.
        waiting: sequences that hold no lane; for reading.
        suspects: sequences with strikes.
        capacities: what the fleet can hold; for reading.
        pools: those that wait for an executor.
        moves: since `take_moves` was called.
    """

    def __init__(
        self,
        max_waiting: int,
        pool_grace_s: float,
        stats: SchedulerStats,
        *,
        grammars: str = "",
        first_arrival: int = 0,
    ) -> None:
        self.executors: dict[int, ExecutorState] = {}
        self.waiting = WaitingQueue(self.epochs_for)
        self.suspects = Suspects()
        self.capacities = Capacities(pool_grace_s)
        self.pools = Pools()
        self.moves = Moves()
        self._open: dict[Sequence, None] = {}
        self._deadlines = Deadlines()
        self._stranded: dict[Sequence, float] = {}  # since when no executor fits it, though there are some
        self._relaxed: list[Sequence] = []
        self._awaited: list[int] = []  # epochs that ended, and whose pools sequences wait for
        self._now = 0.0
        self._max_waiting = max_waiting
        self._grammars = grammars
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
        self._now = now
        if submit.may_shorten:
            submit = with_max_tokens(submit, self.capacities.default_max_tokens(submit.params, len(prompt)))
        deadline = None if submit.timeout_s is None else now + submit.timeout_s
        one = new_sequences(msgspec.structs.replace(submit, n=1), prompt, largest, self._arrivals, deadline)[0]
        if (refusal := self.capacities.refusal(one, now)) is not None:  # before n copies of the prompt are made
            raise refusal
        if (num_waiting := self.waiting.num_of(one.params.task)) + submit.n > self._max_waiting:
            raise RequestRejected(
                f"{num_waiting} sequences are waiting, the limit is {self._max_waiting}", "queue_full"
            )
        sequences = new_sequences(submit, prompt, largest, self._arrivals, deadline)
        self._arrivals += submit.n
        for sequence in sequences:
            self._enter(sequence)
        self._stats.accept(submit.n, len(prompt))
        return sequences

    def restore(
        self,
        submit: Submit,
        arrival: int,
        outputs: Iterable[Generated],
        deadline: float | None,
        *,
        place: int | None = None,
        fits: bool,
    ) -> list[Sequence]:
        """See `Scheduler.restore`."""
        prompt = int32_array("prompt", submit.prompt)
        largest = largest_token(submit, prompt)
        sequences = new_sequences(submit, prompt, largest, arrival, deadline, place)
        self._arrivals = max(self._arrivals, arrival + submit.n)
        for sequence, output in zip(sequences, outputs, strict=True):
            sequence.take_up(output)
            if fits:
                self.capacities.has_fitted(sequence)
            self._enter(sequence)
        return sequences

    # --- moves ---

    def leave_queue(self, sequence: Sequence) -> None:
        """The sequence waits no longer. It may have been the one that an executor refused."""
        self._reopen(self.waiting.epochs_for(sequence))
        self.waiting.remove(sequence)
        self._stranded.pop(sequence, None)

    def answer_begins(self, sequence: Sequence) -> None:
        """The first token of a sequence that waits again has arrived, or the first log-probabilities of its prompt: it
        goes on with the model that gave them."""
        self.waiting.remove(sequence)
        self._join_queue(sequence)

    def preempt(self, executor: ExecutorState, sequence: Sequence) -> None:
        """Take a running sequence's blocks for another one: it waits again, at its place."""
        self._stats.preemptions += 1
        sequence.num_preemptions += 1
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

    def add_executor(self, executor: ExecutorState, now: float) -> list[SequenceEnd]:
        """An epoch begins. Returns the ends of waiting sequences that turn out never to fit."""
        self._now = max(self._now, now)
        self.executors[executor.epoch] = executor
        self._stop_awaiting(executor)
        self.capacities.joined(executor.epoch, executor.limits, self._now)
        refused = [(s, refusal) for s in self.waiting if (refusal := self.capacities.never_fits(s)) is not None]
        ends = [self.end(s, "error", str(refusal), refusal.code) for s, refusal in refused]
        self._regroup()
        return ends

    def epochs_for(self, sequence: Sequence) -> Epochs:
        """The executors that may run a sequence, see `able_executors`. One that waits for a pool has the epoch of the
        pool's last executor, so no executor looks at it."""
        if sequence.awaited:
            return (sequence.awaited,)
        return tuple(e.epoch for e in able_executors(sequence, self.executors.values(), self._grammars))

    def executor_leaves(self, epoch: int, now: float) -> None:
        """An executor takes no more sequences."""
        self._now = max(self._now, now)
        self.capacities.left(epoch, now)
        self._regroup()

    def remove_executor(self, epoch: int, now: float, pool_wait_s: float | None = None) -> list[Sequence]:
        """See `Scheduler.remove_executor`."""
        executor = self.executors.pop(epoch)
        resumed = executor.sequences()
        keeps_pool = pool_wait_s is not None and executor.membership.pool is not None
        executor.abandon(keeps_pool=keeps_pool)
        if pool_wait_s is not None and keeps_pool:
            self.pools.vacate(executor, now, pool_wait_s)
            if pool_wait_s > 0:
                self._await_pool(epoch, resumed)
        self.executor_leaves(epoch, now)
        for sequence in resumed:
            self.requeue(executor, sequence)
        self._stats.resumed += len(resumed)
        return resumed

    # --- ends ---

    def cancel(self, sequences: Iterable[Sequence]) -> list[SequenceEnd]:
        """See `Scheduler.cancel`."""
        return [self.end(s, "cancelled") for s in sequences if s.state is not State.FINISHED]

    def expire(self, now: float) -> list[SequenceEnd]:
        """End what has passed its deadline."""
        self._now = now
        self.pools.expire(now)
        self._stop_awaiting()
        late = self._deadlines.passed(now)
        ends = [self.end(s, "error", "the request's time is up", "deadline_exceeded") for s in late]
        while self._stranded and now >= (first := next(iter(self._stranded.items())))[1] + self.capacities.grace_s:
            ends += self._give_up_waiting(first[0])
        return ends

    def take_relaxed(self) -> list[Sequence]:
        """See `Scheduler.take_relaxed`."""
        relaxed, self._relaxed = self._relaxed, []
        return relaxed

    def strike(self, sequences: Iterable[Sequence], executor: str) -> list[SequenceEnd]:
        """An executor failed while it computed these: each gets a strike, and one may end by it."""
        alive = [sequence for sequence in sequences if sequence.state is not State.FINISHED]
        self._stats.strikes += len(alive)
        message = f"{MAX_STRIKES} failures in a row of executors that computed this sequence"
        guilty = self.suspects.strike(alive, executor)
        self._stats.struck_out += len(guilty)
        return [self.end(sequence, "error", message, "internal_error") for sequence in guilty]

    def end(self, sequence: Sequence, reason: FinishReason, error: str = "", code: str = "") -> SequenceEnd:
        """The sequence holds nothing any more, wherever it was (invariant 10)."""
        if sequence.state is State.WAITING:
            self.leave_queue(sequence)
        else:
            self.executors[sequence.epoch].leave(sequence)
        sequence.state = State.FINISHED
        self.suspects.forget(sequence)
        del self._open[sequence]
        return SequenceEnd(sequence, reason, error, code)

    # --- inside ---

    def _enter(self, sequence: Sequence) -> None:
        self._open[sequence] = None
        self._join_queue(sequence)
        self._deadlines.watch(sequence)

    def _join_queue(self, sequence: Sequence) -> None:
        is_first, epochs = self.waiting.add(sequence), self.waiting.epochs_for(sequence)
        if not epochs and self.capacities.has_others(sequence):
            self._stranded.setdefault(sequence, self._now)
        elif is_first:
            self._reopen(epochs)

    def _reopen(self, epochs: Epochs) -> None:
        for epoch in self.executors.keys() & epochs:  # one that is over is that of a pool that is waited for
            self.executors[epoch].reopen()

    def _regroup(self) -> None:
        """The executors that take sequences have changed."""
        self.waiting.regroup()
        for executor in self.executors.values():
            executor.reopen()
        stranded = [sequence for sequence in self.waiting.stranded() if self.capacities.has_others(sequence)]
        since = {sequence: self._stranded.get(sequence, self._now) for sequence in stranded}
        self._stranded = dict(sorted(since.items(), key=lambda item: item[1]))

    def _await_pool(self, epoch: int, resumed: Iterable[Sequence]) -> None:
        """Those that ran in an epoch that has ended, or were to run there, wait for the next executor of its pool. A
        suspect had better run elsewhere."""
        self._awaited.append(epoch)
        for sequence in [*resumed, *(s for s in self.waiting if s.placed == epoch)]:
            sequence.awaited = 0 if is_suspect(sequence) else epoch

    def _stop_awaiting(self, joined: ExecutorState | None = None) -> None:
        """Sequences wait no longer for pools that an executor has now, or that they have waited for long enough."""
        over = [epoch for epoch in self._awaited if not self.pools.is_awaited(epoch, self._now)]
        if not over:
            return
        self._awaited = [epoch for epoch in self._awaited if epoch not in over]
        for sequence in [s for s in self.waiting if s.awaited in over]:
            self.waiting.remove(sequence)
            is_back = joined is not None and sequence.awaited in joined.earlier_epochs
            sequence.awaited, sequence.placed = 0, joined.epoch if joined is not None and is_back else 0
            self._join_queue(sequence)

    def _give_up_waiting(self, sequence: Sequence) -> list[SequenceEnd]:
        """No executor that fits a sequence has been there for too long."""
        if not (ready := self.capacities.ready_for(sequence)):
            return [self.end(sequence, "error", str(missed := missing(sequence.params.task)), missed.code)]
        if not sequence.has_grammar or sequence.max_length > ready:
            return self._give_up_pool(sequence, ready)
        if sequence.takes_any_library:
            masking = [e for e in self.executors.values() if e.membership.grammars and not e.intake.is_leaving]
            if masking:  # a larger executor, without a library, is of no use
                return self._give_up_pool(sequence, max(capacity(e.limits) for e in masking))
            message = (
                f"no executor that masks tokens by grammars has been there for {self.capacities.grace_s:.0f} s; the "
                f"frontends' library is {self._grammars or 'none'}"
            )
            return [self.end(sequence, "error", message, "grammars_lost")]
        self.leave_queue(sequence)
        sequence.takes_any_library = True
        self._relaxed.append(sequence)
        self._join_queue(sequence)
        return []

    def _give_up_pool(self, sequence: Sequence, ready: int) -> list[SequenceEnd]:
        """The pools that could hold a sequence have been gone for too long: a default `max_tokens` is shortened to the
        positions that are there, and whatever asked for more ends with an error."""
        if sequence.may_shorten and len(sequence.tokens) < ready < sequence.max_length:
            self.leave_queue(sequence)
            params = msgspec.structs.replace(sequence.params, max_tokens=ready - sequence.num_prompt)
            sequence.params = params
            self._join_queue(sequence)
            return []
        if sequence.may_shorten and sequence.num_output > 0:
            return [self.end(sequence, "length")]
        needs, have = f"{sequence.max_length} positions", f"the largest executor has {ready}"
        if sequence.max_length <= ready:  # models of one tokenizer may differ in the size of their vocabularies
            needs, have = f"token id {sequence.largest_token}", "the executors' vocabularies end before it"
        message = f"the request needs {needs}; {have}, and none with more has come back within "
        message += f"{self.capacities.grace_s:.0f} s"
        return [self.end(sequence, "error", message, "capacity_lost")]
