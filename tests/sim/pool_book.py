"""What pools that differ can hold, and what waits for an executor that fits: a book that the core does not write."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from common import messages as m
from scheduler_svc.core.core import CHORES_EVERY_S, Core
from scheduler_svc.core.event_loop import TICK_S
from scheduler_svc.core.executor.capacity import Capacity, capacity
from scheduler_svc.core.fleet.membership import Standing
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.scheduling.suspects import is_suspect
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.step_output import SequenceEnd
from tests.sim.library_book import LibraryBook
from tests.sim.models import VOCAB_SIZE
from tests.support.pool_limits import TASKS, PoolLimits, TaskPools

BESIDE_S = 4.0  # beside an executor that could run it a sequence may wait so long for a busy one, which may hang
ROUNDING_S = 1e-6
TOO_LATE_S = CHORES_EVERY_S + TICK_S  # a turn just before they are due may be followed by a wait


class PoolBook:
    """Follows the fleet, and looks whether the core keeps its word about pools that differ.

    Args:
        grace_s: how long a sequence waits for an executor that fits it, beside others.
        adoption_wait_s: how long one waits for a pool's next executor, beside others.
        libraries: which executors mask tokens as a sequence needs it.

    Attributes:
        accepted: the `max_tokens` that requests were accepted with.
        shortened: the `max_tokens` that sequences were given because their pool was gone.
        lost: sequences that had asked for more than any pool had that was left.
        unfit: sequences that no executor so far could hold.
        moments: what happened, and how often.
    """

    def __init__(self, grace_s: float, adoption_wait_s: float, moments: Counter[str], libraries: LibraryBook) -> None:
        self.accepted: dict[str, int] = {}
        self.shortened: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        self.lost: set[tuple[str, int]] = set()
        self.unfit: set[tuple[str, int]] = set()
        self.moments = moments
        self._grace_s = grace_s
        self._adoption_wait_s = adoption_wait_s
        self._libraries = libraries
        self.started()

    def started(self) -> None:
        """A scheduler begins to live: it has seen no executor."""
        self._limits = TaskPools(self._grace_s)
        self._stranded: dict[Sequence, float] = {}  # since when no executor that takes sequences fits it
        self._awaited: dict[tuple[Sequence, int], float] = {}  # since when it waits for the pool of an epoch
        self._beside: dict[Sequence, float] = {}  # since when it waits and could run on an idle executor

    def restored(self, executors: Mapping[str, Capacity], accepted: dict[str, int], *, is_certain: bool) -> None:
        """A scheduler has taken up what an earlier life had.

        Args:
            executors: that the journal remembers, by name; where its record of them is lost, what requests prove.
            accepted: the `max_tokens` of all requests.
            is_certain: whether these have to be the requests that were accepted.
        """
        for name, held in executors.items():
            for task in held.tasks:
                self._limits.of(task).restored(name, held.positions)
        for request_id, max_tokens in accepted.items():
            before = self.accepted.get(request_id, max_tokens)
            assert before == max_tokens or not is_certain, f"{request_id} had {before} tokens, and now {max_tokens}"
        self.accepted |= accepted

    # --- the fleet ---

    def of(self, task: m.Task) -> PoolLimits:
        """What executors that take a task can hold."""
        return self._limits.of(task)

    def is_unavailable(self, task: m.Task, now: float) -> bool:
        """See `TaskPools.is_unavailable`."""
        return self._limits.is_unavailable(task, now)

    def follow(self, core: Core, now: float) -> None:
        """Something has happened in the fleet or to sequences."""
        limits = self._limits
        members = {member.epoch: member for member in core.fleet if member.standing is Standing.READY}
        for epoch in [epoch for epoch in limits.taking if epoch not in members]:
            limits.left(epoch, now)
        # An executor that took the place of the only one came when there was none: what waits waits anew.
        self._stranded = {s: since for s, since in self._stranded.items() if limits.strands(s.params.task)}
        for epoch, member in members.items():
            if epoch not in limits.taking:
                limits.joined(epoch, member.membership.limits, now, member.hello.executor)
        self._libraries.follow(core)
        self._stranded = {
            s: self._stranded.get(s, now)
            for s in core.scheduler
            if s.state is State.WAITING
            and not s.awaited
            and limits.strands(s.params.task)
            and not any(map(partial(self._fits, s), members))
        }

    def told_fleet(self, state: m.FleetState, now: float) -> None:
        """The core has told a frontend how long a sequence may be, or might be a moment ago."""
        tasks = [task for task in TASKS if self._limits.has_seen(task)]
        told = {each.task: each.max_model_len for each in state.tasks}
        assert set(told) >= set(tasks), f"frontends hear of {list(told)}, not {tasks}"
        assert not any(told[task] for task in told if task not in tasks), f"frontends hear {told}, of {tasks}"
        for task in tasks:
            least, most = self.of(task).limit(now), self.of(task).limit(now, TOO_LATE_S)
            assert least <= told[task] <= most, f"frontends hear {told[task]} for {task}, not {least} to {most}"
        assert state.max_model_len == told.get("generate", 0)

    # --- requests ---

    def max_tokens(self, submit: m.Submit) -> int:
        """The `max_tokens` that a request has to be accepted with now."""
        num_prompt, asked = len(submit.prompt) // 4, submit.params.max_tokens
        return self.of(submit.params.task).max_tokens(num_prompt, asked, may_shorten=submit.may_shorten)

    def submitted(self, core: Core, submit: m.Submit, max_tokens: int) -> None:
        """A request was accepted; this `max_tokens` was expected."""
        request = core.requests.table.find(submit.request_id)
        assert request is not None
        lengths = {request.submit.params.max_tokens, *(s.params.max_tokens for s in request.sequences)}
        assert lengths == {max_tokens}, f"{submit.request_id} gets {lengths} tokens, not {max_tokens}"
        self.accepted[submit.request_id] = max_tokens
        self.moments["defaults cut"] += max_tokens < submit.params.max_tokens

    def watch(self, scheduler: Scheduler) -> None:
        """See what the scheduler gives up, and that it has waited for long enough."""
        expire = scheduler.expire

        def watched_expire(now: float) -> Iterator[list[SequenceEnd]]:
            before = {sequence: (sequence.num_positions, sequence.takes_any_library) for sequence in scheduler}
            for ends in expire(now):
                for sequence, (positions, takes_any_library) in before.items():
                    if sequence.num_positions != positions:
                        self._was_shortened(sequence, now, positions, self._seen(scheduler, sequence))
                    if sequence.takes_any_library != takes_any_library:
                        self._was_relaxed(sequence, now)
                    before[sequence] = sequence.num_positions, sequence.takes_any_library
                for end in ends:
                    if end.code in ("context_length_exceeded", "invalid_value"):
                        self._was_unfit(end.sequence, self._seen(scheduler, end.sequence))
                    elif end.code != "deadline_exceeded":
                        self._was_given_up(end, now)
                yield ends

        scheduler.expire = watched_expire  # type: ignore[method-assign]  # only this one's

    # --- looks ---

    def look(self, core: Core, now: float) -> None:
        """A look at a moment at which the core has done all that it can do: nothing waits for ever."""
        self.follow(core, now)
        for sequence, since in self._stranded.items():
            waited_s = now - since
            what = (
                f"{sequence.request_id} needs {sequence.num_positions} of {self._of(sequence).largest} positions, or a "
                f"library,"
            )
            assert waited_s < self._grace_s + TOO_LATE_S, f"{what} and waits for {waited_s:.2f} s"
        # A pool that came back and lost its executor once more is waited for anew.
        awaited = {(s, s.awaited): self._awaited.get((s, s.awaited), now) for s in core.scheduler if s.awaited}
        for (sequence, _), since in awaited.items():
            assert now - since <= self._adoption_wait_s + TOO_LATE_S, f"{sequence.request_id} waits for a pool for ever"
        self._awaited = awaited
        takes = [e for e in core.scheduler.executors if e.epoch in self._limits.taking]
        beside: dict[Sequence, float] = {}
        if any(e.num_running == 0 and not e.inflight for e in takes):
            for sequence in [
                s for s in core.scheduler if s.state is State.WAITING and not s.awaited and s not in self._stranded
            ]:
                able = [e for e in takes if self._fits(sequence, e.epoch)]
                if sequence.has_answer:  # it goes on with its model as long as an executor has that
                    able = [e for e in able if e.model == sequence.model] or able
                if sequence.is_pooled:  # it waits for the newest model
                    epochs = {
                        model: min(e.epoch for e in able if e.model == model) for model in {e.model for e in able}
                    }
                    able = [e for e in able if epochs[e.model] == max(epochs.values())]
                if is_suspect(sequence):  # it waits for an executor that it has not failed on, also for one that hangs
                    able = [e for e in able if e.name != sequence.failed_on] or able
                if sequence.doubt is not None:  # likewise
                    able = [e for e in able if e.name != sequence.doubt.executor] or able
                if any(e.num_running == 0 and not e.inflight for e in able):
                    since = beside[sequence] = self._beside.get(sequence, now)
                    assert now - since < BESIDE_S, f"{sequence.request_id} waits beside an idle executor"
        self._beside = beside

    # --- inside ---

    def _fits(self, sequence: Sequence, epoch: int) -> bool:
        """Whether an executor that takes sequences can run this one to its end."""
        return sequence.num_positions <= self._of(sequence).taking.get(epoch, 0) and self._libraries.fits(
            sequence, epoch
        )

    def _of(self, sequence: Sequence) -> PoolLimits:
        return self._limits.of(sequence.params.task)

    def _room(self, sequence: Sequence, positions: int) -> int:
        """Positions that a sequence gets at most which needs so many and has waited for too long. If it is a library
        that it waited for, executors without any do not count."""
        largest = self._of(sequence).largest
        if positions > largest or not self._libraries.is_relaxed(sequence):
            return largest
        sizes = self._of(sequence).taking.items()
        return max([size for epoch, size in sizes if self._libraries.masks(epoch)], default=0)

    def _seen(self, scheduler: Scheduler, sequence: Sequence) -> int:
        """The capacity of the largest executor that was ever seen, also a moment ago."""
        task = sequence.params.task
        sizes = [capacity(each.limits) for each in scheduler.executors if task in each.limits.tasks]
        return max(self._of(sequence).largest_seen, *sizes, 0)

    def _was_unfit(self, sequence: Sequence, seen: int) -> None:
        """It was accepted before an executor was seen, and none could ever hold it."""
        least = sequence.num_positions
        if sequence.may_shorten:
            least = min(least, sequence.num_prompt + 1)
        assert sequence.largest_token >= VOCAB_SIZE or least > seen, f"{sequence.request_id} fits an executor"
        self.unfit.add((sequence.request_id, sequence.index))

    def _was_shortened(self, sequence: Sequence, now: float, positions: int, seen: int) -> None:
        name = f"{sequence.request_id}[{sequence.index}]"
        if positions > seen:  # at once: none could ever hold it
            room = seen
            self._stranded.setdefault(sequence, now)
        else:
            room = self._room(sequence, positions)
            self._check_overdue(name, sequence, now)
        assert sequence.may_shorten, f"{name} asked for its tokens and gets fewer"
        assert sequence.max_length == room, f"{name} is shortened to {sequence.max_length}"
        assert len(sequence.tokens) < sequence.max_length, f"{name} is shortened and has more tokens already"
        self._waits_anew(sequence, now)
        self.shortened[sequence.request_id, sequence.index].add(sequence.params.max_tokens)
        self.moments["shortened"] += 1

    def _was_relaxed(self, sequence: Sequence, now: float) -> None:
        name = f"{sequence.request_id}[{sequence.index}]"
        self._check_overdue(name, sequence, now)
        assert sequence.num_positions <= self._of(sequence).largest, f"{name} is too long, whatever the library"
        self._libraries.was_relaxed(sequence)
        self._waits_anew(sequence, now)

    def _waits_anew(self, sequence: Sequence, now: float) -> None:
        """It asks for less than before, and waits for as long again if no executor fits it yet."""
        del self._stranded[sequence]
        if not any(self._fits(sequence, epoch) for epoch in self._limits.taking):
            self._stranded[sequence] = now

    def _was_given_up(self, end: SequenceEnd, now: float) -> None:
        sequence, room = end.sequence, self._room(end.sequence, end.sequence.num_positions)
        name = f"{sequence.request_id}[{sequence.index}]"
        self._check_overdue(name, sequence, now)
        if end.reason == "length":
            assert sequence.may_shorten, f"{name} asked for more tokens"
            assert len(sequence.tokens) >= room, f"{name} could go on"
            assert sequence.num_output, f"{name} has no answer"
            self.shortened[sequence.request_id, sequence.index].add(sequence.num_output)
            self.moments["shortened to what they had"] += 1
        elif end.code in ("no_executor", "task_not_served"):
            assert not self._of(sequence).is_expected, f"{name} could have waited for executors that were there"
            self.lost.add((sequence.request_id, sequence.index))
        elif end.code == "grammars_lost":
            assert room == 0, f"{name} could have an executor of {room} positions"
            self._libraries.was_given_up(sequence)
        else:
            assert end.code == "capacity_lost", f"{name} ended with {end.code}"
            assert sequence.num_positions > room > 0, f"{name} is not too long"
            has_any = sequence.num_output > 0 or sequence.num_prompt < room
            assert not (sequence.may_shorten and has_any), f"{name} could be shortened"
            self.lost.add((sequence.request_id, sequence.index))
            self.moments["capacity lost"] += 1

    def _check_overdue(self, name: str, sequence: Sequence, now: float) -> None:
        since = self._stranded.get(sequence)
        assert since is not None, f"{name} is given up, and was not without an executor"
        waited_s = now - since
        assert waited_s >= self._grace_s - ROUNDING_S, f"{name} is given up after {waited_s:.2f} s"
