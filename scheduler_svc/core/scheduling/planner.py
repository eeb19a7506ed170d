"""What an executor computes in its next step: whom it serves, with which memory. Pure.

Every sequence that decodes has a row in every plan; what is left of the token budget goes to prompts that are being
computed, in the order of their rank, and then to admissions. Memory that runs short is taken from the last in rank.
"""

from collections.abc import Callable, Collection

from common.messages import Plan
from scheduler_svc.core.executor.block_manager import BlockTable
from scheduler_svc.core.executor.executor_state import Phase, Worker
from scheduler_svc.core.executor.memory_forecast import Forecast, OutputHistory
from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.outcomes import SchedulerStats
from scheduler_svc.core.scheduling.assignments import Assignments
from scheduler_svc.core.scheduling.suspects import Suspects, is_suspect
from scheduler_svc.core.sequence import Sequence, State

MAX_PREEMPTIONS = 3  # after so many a sequence gets all the blocks it will ever need before it runs again
MAX_OVERTAKEN = 64  # waiting sequences, bound for another executor, that a plan looks past

PlacementRule = Callable[[Sequence, list[Worker]], Worker | None]


class Planner:
    """Makes plans, and to that end preempts and admits.

    Args:
        assignments: who waits, and who runs where.
        suspects: who has to run alone.
        history: how long answers were.
        stats: where it counts what it does.
        placement: which executor a waiting sequence is for.
        look_ahead: whether admission asks what memory running sequences will still take, and not only what is free.
    """

    def __init__(
        self,
        assignments: Assignments,
        suspects: Suspects,
        history: OutputHistory,
        stats: SchedulerStats,
        placement: PlacementRule,
        *,
        look_ahead: bool,
    ) -> None:
        self._assignments = assignments
        self._suspects = suspects
        self._history = history
        self._stats = stats
        self._placement = placement
        self._look_ahead = look_ahead

    def plan(self, worker: Worker) -> Plan | None:
        """The next plan of a worker whose window is not full, or None if there is nothing to do."""
        if (suspect := self._suspects.on(worker.epoch)) is not None:
            return self._plan_alone(worker, suspect)
        if worker.clearing:
            if worker.inflight:
                return None
            worker.clearing = False
            if (row := self._admit_suspect(worker)) is not None:
                return self._build_alone(worker, row)
        preemptions = self._stats.preemptions
        skipped = self._make_room(worker)
        num_decodes = worker.num_decodes() - len(skipped)
        budget = worker.limits.max_batch_tokens - num_decodes
        rows: list[PromptRow] = []
        for lane in worker.prompts():
            if budget == 0:
                break
            if worker.phases[lane] is not Phase.PROMPT:
                continue  # an older one took its blocks a moment ago
            if (row := self._grant_prompt(worker, lane, budget, skipped)) is not None:
                rows.append(row)
                budget -= row.grant.count
        may_admit = self._assignments.waiting and worker.takes_new
        if may_admit and self._stats.preemptions == preemptions:  # blocks just taken away are for older sequences
            self._admit(worker, rows, budget)
        if num_decodes == 0 and not rows:
            return self.plan(worker) if worker.clearing and not worker.inflight else None
        self._stats.decode_tokens += num_decodes
        self._stats.prefill_tokens += sum(row.grant.count for row in rows)
        return worker.build_plan(rows, skipped)

    def preempt(self, worker: Worker, sequence: Sequence) -> None:
        """Take a running sequence's blocks for another: it waits again, at its place."""
        self._stats.preemptions += 1
        sequence.num_preemptions += 1
        self._assignments.requeue(worker, sequence)

    # --- memory ---

    def _make_room(self, worker: Worker) -> list[int]:
        """A block for every lane that decodes and whose blocks are full, taken from newer sequences if need be.

        Returns:
            Lanes for which there is none; they sit this step out.
        """
        skipped: list[int] = []
        lanes = worker.lanes_without_room()
        if not lanes or worker.extend_all(lanes):
            return skipped
        for lane in lanes:
            if worker.phases[lane] is not Phase.DECODE:
                continue  # an older one took its blocks a moment ago
            while not worker.extend(lane):
                if (victim := self._victim(worker, lane)) is None:
                    skipped.append(lane)
                    break
                self.preempt(worker, victim)
        return skipped

    def _grant_prompt(self, worker: Worker, lane: int, budget: int, skipped: list[int]) -> PromptRow | None:
        """A row for the next chunk of a lane's prompt, with blocks of newer sequences if need be."""
        while (row := worker.reserve_more(lane, budget)) is None:
            # Lanes that decode have a row in this plan already, but for those that sit it out.
            victim = self._victim(worker, lane, spared=worker.decoding().difference(skipped))
            if victim is None:
                return None
            self.preempt(worker, victim)
        return row

    @staticmethod
    def _victim(worker: Worker, lane: int, spared: Collection[int] = ()) -> Sequence | None:
        """The last in rank of the running sequences behind `lane`'s that are not protected, nor in `spared`.

        Without one, `lane` sits this step out and keeps what it has. The first in rank always finds one, or has the
        pool to itself but for protected sequences, which have all the blocks they need; so somebody always goes on.
        """
        for candidate in reversed(worker.running):
            if candidate == lane:
                return None
            if candidate not in spared and not worker.is_protected(candidate):
                return worker.sequence(candidate)
        return None

    # --- admission ---

    def _admit(self, worker: Worker, rows: list[PromptRow], budget: int, *, suspect: bool = False) -> None:
        """Rows for waiting sequences, in the order of the queue, as far as memory, lanes and budget go.

        Args:
            suspect: admit one suspect and nobody else; otherwise, when it is a suspect's turn, see to it that it is
                alone next.
        """
        if worker.closed:
            return
        forecast: Forecast | None = None
        overtaken = 0
        for sequence in self._assignments.waiting.snapshot():
            if worker.hot.num_free == 0 or budget == 0 or overtaken == MAX_OVERTAKEN:
                return
            if sequence.num_inflight > 0 and sequence.placed == worker.epoch:
                return  # preempted here a moment ago: its tokens must land first, and nobody overtakes it
            if sequence.num_inflight == 0:
                chosen = self._placement(sequence, list(self._assignments.workers.values()))
            else:
                chosen = self._assignments.workers[sequence.placed]
            if chosen is not worker:
                # One that nobody has room for now waits for nobody here.
                overtaken += chosen is not None and not chosen.closed
                continue
            if is_suspect(sequence) != suspect:
                worker.clearing = not suspect and not worker.prompts()  # those are computed to their ends first
                return
            if forecast is None:
                forecast = worker.forecast(self._history)
            row = self._try_admit(worker, sequence, budget, forecast)
            if row is None:
                worker.closed = True
                sequence.placed = 0  # another executor may have room
                return
            rows.append(row)
            budget -= row.grant.count
            if suspect:
                return

    def _try_admit(self, worker: Worker, sequence: Sequence, budget: int, forecast: Forecast) -> PromptRow | None:
        """Admit a sequence if there is memory for it, now and later."""
        blocks, length = worker.blocks, len(sequence.tokens)
        protected = sequence.num_preemptions >= MAX_PREEMPTIONS
        spare = worker.set_aside()
        if protected:
            spare += blocks.blocks_for(sequence.max_length) - blocks.blocks_for(length)
        remaining = self._history.expected(length - sequence.num_prompt, sequence.params.max_tokens)
        forecast.add(length, remaining)
        look_ahead = self._look_ahead and worker.running and not protected
        if look_ahead and forecast.exceeds(blocks.num_blocks - spare):
            return None
        table, raw = BlockTable(sequence.cache_salt.encode()), sequence.tokens.tobytes()
        grant = blocks.reserve(table, raw, 0, budget, spare=spare, whole=True)
        if grant is None:
            return None
        self._assignments.dequeue(sequence)
        lane = worker.enter(sequence, table, protected=protected)
        if sequence.model != worker.model:
            self._stats.model_changes += sequence.num_output > 0
            sequence.model = worker.model
        if sequence.num_cached_prompt is None:
            sequence.num_cached_prompt = min(grant.start, sequence.num_prompt)
            self._stats.cached_prompt_tokens += sequence.num_cached_prompt
        else:
            self._stats.cached_resumed_tokens += grant.start
            self._stats.recomputed_tokens += length - grant.start
        return worker.prompt_row(lane, raw, grant)

    # --- suspects ---

    def _admit_suspect(self, worker: Worker) -> PromptRow | None:
        """A row for the next in the queue, if it is a suspect and there is room for it."""
        rows: list[PromptRow] = []
        self._admit(worker, rows, worker.limits.max_batch_tokens, suspect=True)
        return rows[0] if rows else None

    def _plan_alone(self, worker: Worker, suspect: Sequence) -> Plan | None:
        """The next part of a suspect's prompt; nothing else is computed until its token has landed."""
        if suspect.state is not State.RUNNING or worker.phases[suspect.lane] is not Phase.PROMPT:
            return None
        row = worker.reserve_more(suspect.lane, worker.limits.max_batch_tokens)
        if row is None:  # it became a suspect here, in company that has taken the room: it waits for its turn alone
            self._assignments.requeue(worker, suspect)
            return self.plan(worker)
        return self._build_alone(worker, row)

    def _build_alone(self, worker: Worker, row: PromptRow) -> Plan:
        self._stats.prefill_tokens += row.grant.count
        return worker.build_plan([row], list(worker.decoding()))
