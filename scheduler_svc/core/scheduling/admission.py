"""Which sequences have an executor's memory: waiting ones that are admitted, running ones that lose theirs. Pure.

Waiting sequences are admitted in the order of their rank. Memory that runs short is taken from the last in rank.
"""

from collections.abc import Collection
from collections.abc import Sequence as Lists
from itertools import takewhile

from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.executor.memory_forecast import Forecast
from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.scheduling.placement import PlacementRule, Room
from scheduler_svc.core.scheduling.plan_budget import PlanBudget
from scheduler_svc.core.scheduling.sequences import Sequences
from scheduler_svc.core.scheduling.stats import Move, SchedulerStats
from scheduler_svc.core.scheduling.suspects import is_suspect
from scheduler_svc.core.scheduling.yielding import yields_to
from scheduler_svc.core.sequence import Sequence, State

Rooms = dict[int, Room]  # by the list of executors; the queue keeps these lists while nothing changes
MAX_OVERTAKEN = 64  # waiting sequences, bound for another executor, that a plan looks past
MAX_TAKEN = 2  # a line whose lane was taken so often is the last to give it again
MAX_LOOKS = 1024  # at executors, by a plan that finds other ones for waiting sequences, and at sequences that pause


class Admission:
    """Preempts and admits for a plan that is being made.

    Args:
        sequences: which wait, and which run where.
        stats: where it counts what it does.
        placement: which executor a waiting sequence is for.
        look_ahead: whether admission asks what memory running sequences will still take, and not only what is free.
    """

    def __init__(
        self,
        sequences: Sequences,
        stats: SchedulerStats,
        placement: PlacementRule,
        *,
        look_ahead: bool,
    ) -> None:
        self._sequences = sequences
        self._stats = stats
        self._placement = placement
        self._look_ahead = look_ahead

    # --- memory for sequences that run ---

    def make_room(self, executor: ExecutorState, sitting: Collection[Sequence] = ()) -> tuple[list[Sequence], bool]:
        """A block for each sequence that decodes and whose blocks are full, taken from newer ones if need be.

        Args:
            sitting: sequences that sit this plan out in any case.

        Returns:
            The sequences for which there is none, which sit this step out; and whether a sequence was preempted.
        """
        skipped: list[Sequence] = []
        preempted, running = False, executor.running
        short = running.extend_all(sitting)
        for sequence in short:
            if not running.decodes(sequence):
                continue  # an older one took its blocks a moment ago
            while not running.extend(sequence):
                if (victim := self._giver(executor, sequence)) is None:
                    skipped.append(sequence)
                    break
                self._sequences.preempt(executor, victim)
                preempted = True
        return skipped, preempted

    def is_contested(self, executor: ExecutorState, sitting: Collection[Sequence] = ()) -> bool:
        """Tell whether prompts of several clients want rows of the next plan: they run, or are next to be admitted."""
        running = executor.running
        prompts = running.prompts()
        if not prompts and not running.has_free_lane:
            return False  # as in nearly all plans of a full executor
        both = [*prompts, *self._sequences.waiting.heads(executor.epoch)]
        return len(both) > 1 and len({s.client for s in both if not s.yields and s not in sitting}) > 1

    def continue_prompts(
        self,
        executor: ExecutorState,
        budget: PlanBudget,
        skipped: Collection[Sequence],
        sitting: Collection[Sequence] = (),
    ) -> tuple[list[PromptRow], bool]:
        """Rows for the next chunks of running sequences' prompts, with blocks of newer sequences if need be.

        Args:
            budget: what the plan may still have.
            skipped: sequences that decode and sit this step out.
            sitting: sequences whose prompts do so, too.

        Returns:
            The rows, and whether a sequence was preempted.
        """
        rows: list[PromptRow] = []
        preempted, running = False, executor.running
        for sequence in running.prompts():
            if not running.has_prompt(sequence) or sequence in sitting:
                continue  # an older one took its blocks a moment ago
            if (num_tokens := budget.tokens_for(sequence, running.num_computed(sequence))) == 0:
                break
            while (row := running.reserve_more(sequence, num_tokens)) is None:
                # Sequences that decode have a row in this plan already, except for those that sit it out.
                spared = set(running.decode_rows().sequences).difference(skipped)
                if (victim := self._giver(executor, sequence, spared)) is None:
                    break
                self._sequences.preempt(executor, victim)
                preempted = True
            if row is not None:
                rows.append(row)
                budget.take(row)
        return rows, preempted

    # --- memory for sequences that wait ---

    def may_admit(self, executor: ExecutorState) -> bool:
        """Tell whether anything could be admitted; nearly never where all lanes are taken: then it takes one that
        started later."""
        if (first := self._sequences.waiting.first(executor.epoch)) is None:
            return False
        running = executor.running
        if not running.has_free_lane and running.last.rank < first.rank:
            return False
        return not (executor.is_leaving or executor.is_emptying or executor.has_refused(first))

    def admit(
        self,
        executor: ExecutorState,
        budget: PlanBudget,
        begun: Lists[PromptRow] = (),
        *,
        suspect: bool = False,
    ) -> list[PromptRow]:
        """Rows for waiting sequences, in the order of the queue, as far as memory, lanes and budget go; `may_admit` is
        true.

        Args:
            budget: what the plan may still have.
            begun: rows that the plan has already.
            suspect: admit one suspect and no other sequence; otherwise, when it is a suspect's turn, see to it that it
                is alone next.
        """
        rows: list[PromptRow] = []
        running, first = executor.running, self._sequences.waiting.first(executor.epoch)
        assert first is not None, "nothing waits for the executor"
        forecast: Forecast | None = None
        rooms: Rooms = {}
        planned = {row.sequence for row in begun}
        overtaken = num_looks = 0
        for sequence in self._sequences.waiting.candidates(executor.epoch):
            if overtaken == MAX_OVERTAKEN or num_looks >= MAX_LOOKS:
                break
            if not running.has_free_lane and self._giver(executor, sequence, planned) is None:
                break
            if executor.lets_pause(sequence):
                num_looks += 1
                continue
            is_awaited = sequence.num_inflight > 0 and sequence.placed == executor.epoch
            if is_awaited or (num_tokens := budget.tokens_for(sequence, 0)) == 0:
                break  # preempted here a moment ago: its tokens must arrive first, and no other sequence overtakes it
            if self._sequences.await_pool(sequence):
                continue
            placed = sequence.placed
            chosen = self._executor_for(sequence, rooms)
            if chosen is not executor and (chosen is not None or running.has_free_lane):
                if sequence.placed != placed:
                    num_looks += len(self._sequences.waiting.executors_for(sequence))
                # A sequence for which no executor has room now does not count: no other one waits for it here.
                overtaken += chosen is not None and not chosen.is_full
                continue
            if yields_to(sequence, [*begun, *rows]):
                break
            if is_suspect(sequence) != suspect:
                if not suspect:
                    executor.awaits_suspect = True
                break
            row, forecast = self._take_in(executor, sequence, num_tokens, forecast, planned)
            if row is None:
                executor.refuse(sequence, first)
                self._sequences.waiting.place(sequence, 0)  # another executor may have room
                break
            rows.append(row)
            planned.add(sequence)
            budget.take(row)
            if suspect:
                break
        return rows

    def _take_in(
        self,
        executor: ExecutorState,
        sequence: Sequence,
        num_tokens: int,
        forecast: Forecast | None,
        spared: Collection[Sequence],
    ) -> tuple[PromptRow | None, Forecast | None]:
        """Admit a sequence if there is a lane and memory for it, or others have to give them.

        Args:
            spared: those that give nothing.

        Returns:
            Its row, None if there is not; and the forecast with it.
        """
        row, running = None, executor.running
        if running.has_free_lane:
            forecast = running.forecast() if forecast is None else forecast
            row = self._try(executor, sequence, num_tokens, forecast)
        while row is None and (giver := self._giver(executor, sequence, spared)) is not None:
            giver.num_taken += giver.yields
            self._sequences.preempt(executor, giver)
            forecast = running.forecast()
            row = self._try(executor, sequence, num_tokens, forecast)
        return row, forecast

    def _giver(self, executor: ExecutorState, sequence: Sequence, spared: Collection[Sequence] = ()) -> Sequence | None:
        """Return the running sequence that gives way to one before it in rank: the last in rank that has to.

        Without one, a sequence that runs sits this step out and keeps what it has. The first in rank always finds one,
        or has the pool to itself; so some sequence always goes on.

        To one that waits only those give way that yield, where it does not, and those of other clients that started
        later, by a mean sequence at least: these clients have had more. Of those that yield a few keep their lanes, and
        one that gave way twice is the last to do so again. Nobody gives way in vain, for too few blocks.

        Args:
            spared: those that give nothing.
        """
        running = executor.running
        later = takewhile(lambda s: s.rank > sequence.rank, reversed(running))
        others = (s for s in later if s not in spared)
        if sequence.state is State.RUNNING:
            return next(others, None)
        last_first, latest = [*others], sequence.start + self._sequences.shares.cost.value
        lines = [s for s in last_first if s.yields]
        givers = [s for s in last_first if s.client != sequence.client and s.start >= latest]
        if sequence.yields:
            givers = [s for s in givers if s.yields]
        else:
            taken_last = sorted(lines, key=lambda s: s.num_taken >= MAX_TAKEN)
            givers = [*taken_last[: max(0, len(lines) - running.num_kept)], *(s for s in givers if not s.yields)]
        num_free = executor.blocks.num_free + sum(running.num_own_blocks(giver) for giver in givers)
        return givers[0] if givers and num_free >= executor.blocks.blocks_for(len(sequence.tokens)) else None

    def _executor_for(self, sequence: Sequence, rooms: Rooms) -> ExecutorState | None:
        if sequence.num_inflight > 0:
            return self._sequences.executors[sequence.placed]
        waiting = self._sequences.waiting
        able = waiting.executors_for(sequence)
        if (room := rooms.get(id(able))) is None:
            room = rooms[id(able)] = Room.among(able, waiting.placed_cost)
        avoid = sequence.failed_on if is_suspect(sequence) else ""
        avoid = avoid if sequence.doubt is None else sequence.doubt.executor
        if avoid and all(executor.name == avoid for executor in room.executors.values()):
            room = Room.among(able, waiting.placed_cost, avoid)  # those that are full, late or in doubt as well
        chosen = self._placement(sequence, room, avoid)
        if chosen is not None and chosen.epoch != sequence.placed:
            room.move(sequence, sequence.placed, chosen.epoch)
            waiting.place(sequence, chosen.epoch)
        return chosen

    def _try(
        self, executor: ExecutorState, sequence: Sequence, num_tokens: int, forecast: Forecast
    ) -> PromptRow | None:
        """Admit a sequence if there is memory for it, now and later."""
        length = len(sequence.tokens)
        look_ahead = self._look_ahead and len(executor.running) > 0
        limits, can_stop = executor.limits, bool(sequence.params.stop_token_ids)

        def accept(num_shared: int) -> bool:
            size = length - num_shared * limits.block_size
            forecast.add(size, max(1, sequence.max_length - length), can_stop=can_stop)
            return not look_ahead or not forecast.exceeds(limits.num_blocks)

        row = executor.running.enter(sequence, num_tokens, accept)
        if row is None:
            return None
        self._sequences.leave_queue(sequence)
        executor.num_hit_tokens += row.grant.start
        self._sequences.moves.moves.append(Move("admitted", sequence, executor.epoch, length, row.grant.start))
        if sequence.model != executor.model:
            self._stats.model_changes += sequence.has_answer
            sequence.model = executor.model
        if sequence.num_cached_prompt is None:
            sequence.num_cached_prompt = min(row.grant.start, sequence.num_prompt)
            self._stats.cached_prompt_tokens += sequence.num_cached_prompt
            self._stats.queried_prompt_tokens += sequence.num_prompt
            self._sequences.moves.admitted.append(sequence)
        else:
            self._stats.cached_resumed_tokens += row.grant.start
        return row
