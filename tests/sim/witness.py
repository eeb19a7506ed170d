"""Counts for itself what the core counts, and looks whether the core keeps its word. It changes nothing."""

import math
import re
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from common import messages as m
from common.heartbeats import LOSS_TIMEOUT_S
from scheduler_svc.core.actions import Action, Peer, SendToExecutor, WriteLog
from scheduler_svc.core.core import FORGIVE_S, PAUSE_S, Core
from scheduler_svc.core.executor.capacity import Capacity
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.requests.group_commit import STUCK_AFTER_S, JournalState
from scheduler_svc.core.requests.recovery import Legacy, remembered
from scheduler_svc.core.scheduling.suspects import is_suspect
from scheduler_svc.core.sequence import NO_POSITION, Sequence, State
from scheduler_svc.core.step_output import StepOutput
from tests.sim.adoption_book import AdoptionBook
from tests.sim.library_book import LibraryBook
from tests.sim.models import LIBRARY, VOCAB_SIZE, capacity
from tests.sim.placement_book import PlacementBook
from tests.sim.pool_book import TOO_LATE_S, PoolBook
from tests.sim.share_book import ShareBook
from tests.sim.token_book import TokenBook
from tests.sim.world import World

NOTICE_S = 0.3  # core and client do not learn of a broken connection at the same time
HEARS_WITHIN = 100  # turns from a broken connection to the one that takes it, after others
NOTICE_LOSS_S = STUCK_AFTER_S + 1.0  # it may be that the disk is stuck before the journal can be begun anew
FAILURES_ALLOWED = 2  # in a row; one more ends a sequence
WHOLE_EXECUTOR = ("disconnected", "silent")  # it is not known which of its plans it was
ONE_STEP = ("hung", "step_failed")  # the reason says which


@dataclass(frozen=True)
class Death:
    """The end of a life of the scheduler; it was safe if what was told then was on disk."""

    at: float
    is_safe: bool


@dataclass(frozen=True)
class Patience:
    """How long the service keeps a request that no client reads.

    Attributes:
        grace_s: from the moment at which its client's connection broke.
        return_within_s: from a restart of the scheduler, at least.
    """

    grace_s: float
    return_within_s: float

    @property
    def after_restart_s(self) -> float:
        """From a restart of the scheduler."""
        return max(self.grace_s, self.return_within_s)


@dataclass(frozen=True)
class _Told:
    """What a client has of a sequence."""

    asked_at: float
    num_tokens: int
    num_prompt_logprobs: int
    is_whole: bool


class _Plan(NamedTuple):
    """A plan in flight: who has a row in it, and where the chunks end that bring no token."""

    step: int
    everyone: list[Sequence]
    chunks: dict[Sequence, int]


class Witness:
    """Sees what goes into the core and what comes out of it.

    Attributes:
        life_began: when the scheduler started last.
        deaths: of the scheduler.
        away_until: when it was last back after so long that all deadlines had passed.
        refused: request ids, with the codes that they were refused with.
        keyless: requests of clients whose keys were revoked, with the core's time by which they end; infinity for those
            that came a moment later, which may end as well.
        guilty: sequences that had a part in too many failures in a row.
        moments: what happened, and how often.
        libraries: what is known of those that executors mask tokens by.
        tokens: what is known of the times between tokens.
        pools: what is known of executors of different sizes.
        adoptions: what is known of pools that outlive executors.
        shares: what is known of clients' places.
        placements: which executors waiting sequences are for.
    """

    def __init__(
        self, world: World, patience: Patience, pool_grace_s: float, adoption_wait_s: float, *, is_roomy: bool
    ) -> None:
        self.life_began = 0.0
        self.deaths: list[Death] = []
        self.away_until = -math.inf
        self.refused: set[tuple[str, str]] = set()
        self.guilty: set[tuple[str, int]] = set()
        self.moments: Counter[str] = Counter()
        self.libraries = LibraryBook(LIBRARY, self.moments)
        self.tokens = TokenBook(world, self.moments)
        self.pools = PoolBook(pool_grace_s, adoption_wait_s, self.moments, self.libraries)
        self.adoptions = AdoptionBook(self.moments, is_roomy=is_roomy)
        self.shares = ShareBook(self.moments)
        self.placements = PlacementBook(self.moments)
        self.keyless: dict[str, float] = {}
        self._keyless_until: dict[str, float] = {}  # clients that were just revoked
        self._told: dict[tuple[str, int], _Told] = {}
        self._plain: set[str] = set()  # requests that are not in the journal
        self._pooled: set[str] = set()  # requests for results, which are not in the journal
        self._world = world
        self._patience = patience
        self._starts: list[float] = []
        self._harmed_at = -math.inf  # when a scheduler last found a journal that was not what had been written
        self._paused_s = 0.0  # in this life
        self._runs_since = 0.0  # the end of the last pause, or the beginning of this life
        self._claimed: dict[str, None] = {}  # requests that a client asked for or came back for in this life
        self._plans: dict[int, deque[_Plan]] = {}  # of each epoch: those in flight
        self._failures: dict[Sequence, int] = {}
        self._chunks: dict[Sequence, int] = {}  # that were computed when the last of these happened: their ends
        self._numberless: Counter[Sequence] = Counter()  # rows in a row without numbers
        self._models: dict[Sequence, str] = {}  # that sequences were admitted to last
        self._spoken: dict[Sequence, None] = {}  # those with an answer
        self._heard: dict[Peer, float] = {}
        self._last_turn = math.inf
        self._forgiving_until = -math.inf
        self._stay: dict[int, list[Sequence]] = {}  # who may be in plans of an epoch that takes nothing new

    def is_risky(self, since: float) -> bool:
        """Whether the scheduler has died since then with something told that was not on disk, or is not any more."""
        return since <= self._harmed_at or any(death.at >= since and not death.is_safe for death in self.deaths)

    def away_since(self, read_since: float) -> float:
        """When a client left whose request was read since then: with the scheduler, though a slow frontend may tell it
        later, or now."""
        return min([death.at for death in self.deaths if death.at >= read_since], default=self._world.now)

    def may_be_cancelled(self, submit: m.Submit, away_since: float) -> bool:
        """Whether the scheduler may have given up a request whose client was away since then."""
        starts = [at for at in self._starts if at > away_since]
        if starts and not submit.is_resumable:
            return True
        deaths = [death.at for death in self.deaths if death.at >= away_since]
        lives = [(at, self._patience.after_restart_s) for at in starts]
        if not starts or (deaths and deaths[0] < starts[0]):  # else the connection broke as the scheduler died
            lives.insert(0, (away_since, self._patience.grace_s))
        return any(
            min([at for at in deaths if at >= began], default=self._world.now) - began >= patience_s - NOTICE_S
            for began, patience_s in lives
        )

    @property
    def has_waited_long(self) -> bool:
        """Whether the present life has lasted for longer than the scheduler waits for clients of earlier ones."""
        return self._world.now - self.life_began > self._patience.after_restart_s + self._paused_s + NOTICE_S

    # --- lives ---

    def started(self, core: Core, now: float) -> None:
        """A scheduler begins to live."""
        scheduler = core.scheduler
        self.life_began = self._world.now
        self._starts.append(self.life_began)
        self._paused_s, self._runs_since, self._claimed = 0.0, self.life_began, {}
        self._plans, self._failures, self._models, self._spoken, self._stay = {}, {}, {}, {}, {}
        self._chunks, self._numberless = {}, Counter()
        self._heard = {}
        self.tokens = TokenBook(self._world, self.moments)
        self.shares.started()
        self._last_turn, self._forgiving_until = now, -math.inf
        self._remembered: dict[str, Capacity] = {}  # executors of earlier lives, by name
        self._gone: dict[
            Peer, int
        ] = {}  # members whose connection broke, and for how many turns the core has not seen it
        self.libraries.started()
        self.pools.started()
        self.adoptions.started()
        self.pools.watch(scheduler)
        commit, add_executor = scheduler.commit, scheduler.add_executor

        def watched_commit(result: m.StepResult) -> StepOutput:
            output = commit(result)
            self._landed(result, output)
            return output

        def watched_add(membership: Membership, *now: float) -> None:
            self._plans[membership.epoch] = deque()
            add_executor(membership, *now)
            self.adoptions.joined(scheduler.executor(membership.epoch))

        scheduler.commit, scheduler.add_executor = watched_commit, watched_add

    def took_up(self, legacy: Legacy, *, is_true: bool, is_old: bool) -> None:
        """A scheduler reads its journal.

        Args:
            is_true: whether the journal is what an earlier life has written. If not, or if that was too long ago, what
                was told before may be lost, or told again.
            is_old: whether that was too long ago.
        """
        assert is_old or not legacy.num_too_old, f"{legacy.num_too_old} requests are taken for older than they are"
        assert not is_old or not legacy.requests, "requests are taken up that clients have long given up"
        if is_old:
            self.away_until = self._world.now
        self._remembered = remembered(legacy.life, legacy.requests)
        self.shares.took_up(legacy.shares, is_true=is_true)
        if legacy.damage:
            self.moments["damage noticed"] += 1
        assert not legacy.damage or not is_true, f"a whole journal is taken for a damaged one: {legacy.damage}"
        if not is_true or legacy.num_too_old:
            self.moments["too old"] += legacy.num_too_old > 0
            self._harmed_at = self._world.now

    def restored(self, core: Core) -> None:
        """It has taken up what an earlier life had."""
        self._check_restored(core)
        restored = list(core.scheduler)
        self.tokens.restored(restored)
        self.shares.restored(core, is_certain=not self.is_risky(0.0))
        self.moments["restored"] += len(restored)
        accepted = {request.id: request.submit.params.max_tokens for request in core.requests.table.all()}
        self.pools.restored(self._remembered, accepted, is_certain=not self.is_risky(0.0))
        for sequence in restored:
            self.moments["restored in the prompt"] += sequence.num_output == 0 and sequence.num_covered > 0
            if sequence.has_answer:
                self._models[sequence] = sequence.model
                self._spoken[sequence] = None

    def ended(self, core: Core) -> None:
        """A scheduler has died. The next one does not know whose keys were revoked: nobody comes for their requests."""
        self.keyless = dict.fromkeys(self.keyless, math.inf)
        self.count(core)
        self.deaths.append(Death(self._world.now, core.requests.group_commit.state is JournalState.OK))

    def told(
        self,
        request_id: str,
        index: int,
        asked_at: float,
        num_tokens: int,
        num_prompt_logprobs: int,
        *,
        is_whole: bool,
    ) -> None:
        """A client has got so many tokens of a sequence, and log-probabilities of its prompt, or all."""
        self._told[request_id, index] = _Told(asked_at, num_tokens, num_prompt_logprobs, is_whole)

    def told_accepted(self, request_id: str, asked_at: float) -> None:
        """A client was told that its request is accepted."""
        self.moments["told of acceptance"] += 1
        assert (request_id, 0) not in self._told, f"{request_id} is accepted after its tokens"
        self._told[request_id, 0] = _Told(asked_at, 0, 0, is_whole=False)

    def _check_restored(self, core: Core) -> None:
        """No frontend was told what was not on disk; what is not in the journal at all is forgotten."""
        self._told = {key: told for key, told in self._told.items() if key[0] not in self._plain}
        assert not any(core.requests.table.find(name) for name in self._plain), "what nobody comes back for goes on"
        for (request_id, index), told in self._told.items():
            if self.is_risky(told.asked_at) or (request_id in self._pooled and told.is_whole):
                continue
            request = core.requests.table.find(request_id)
            assert request is not None, f"{request_id} was told of and is not in the journal"
            progress = request.progress(core.scheduler.output_of)[index]
            num_saved = len(progress.token_ids) // 4
            assert num_saved >= told.num_tokens, f"{request_id}: {told.num_tokens} told, {num_saved} in the journal"
            num_saved, of_prompt = len(progress.prompt_logprobs) // 4, told.num_prompt_logprobs
            assert num_saved >= of_prompt, f"{request_id}: of its prompt {of_prompt} told, {num_saved} in the journal"
            assert not told.is_whole or progress.ending is not None, f"{request_id}: its end is not in the journal"

    def count(self, core: Core) -> None:
        """A life is over, or the run: add its numbers."""
        self.tokens.check(core)
        stats = core.scheduler.stats
        for name in ("preemptions", "model_changes", "resumed", "cached_prompt_tokens", "cached_resumed_tokens"):
            self.moments[name] += getattr(stats, name)

    # --- requests ---

    def expected_refusal(self, core: Core, submit: m.Submit, now: float) -> str:
        """What code the core has to refuse a request with; none if it has to accept it."""
        requests = core.requests.table
        if requests.find(submit.request_id) is not None:
            return "request_exists"
        open_ones = [r for r in map(requests.find, self._claimed) if r is not None and r.ended_at is None]
        num_open = sum(request.endings.count(None) for request in open_ones if request.submit.client == submit.client)
        if submit.client_limit and num_open + submit.n > submit.client_limit:
            return "too_many_requests" if submit.n <= submit.client_limit else "invalid_value"
        if self.pools.is_unavailable(submit.params.task, now):
            # An earlier life that took the task is known by the journal, as far as that was written before the kill.
            may_come = core.scheduler.sequences.capacities.may_come(submit.params.task, now)
            return "no_executor" if may_come else "task_not_served"
        longest, is_pooled = self.pools.of(submit.params.task).limit(now), submit.params.pooling != "none"
        if longest and len(submit.prompt) // 4 + (0 if is_pooled else self.pools.max_tokens(submit) - 1) > longest:
            return "context_length_exceeded"
        if longest and max(memoryview(submit.prompt).cast("i")) >= VOCAB_SIZE:
            return "invalid_value"
        num_waiting = sum(s.state is State.WAITING and s.params.task == submit.params.task for s in core.scheduler)
        if num_waiting + submit.n > core.scheduler.config.max_waiting:
            return "queue_full"
        return ""

    def submitted(self, core: Core, submit: m.Submit, expected: str | None, actions: list[Action]) -> None:
        """The core has accepted or refused a request."""
        codes = [e.facts["code"] for e in actions if isinstance(e, WriteLog) and e.event == "request refused"]
        assert codes == ([expected] if expected else []), f"{submit.request_id}: refused with {codes}, not {expected!r}"
        if codes:
            self.refused.add((submit.request_id, codes[0]))
            self.moments[f"refused: {codes[0]}"] += 1
        else:
            self.moments["accepted"] += 1
            self.pools.submitted(core, submit, self.pools.max_tokens(submit))
            self.shares.submitted(core, submit)
            self._claimed[submit.request_id] = None
            self.keyless.pop(submit.request_id, None)  # it is another one
            if self._keyless_until.get(submit.client, -math.inf) > self._last_turn:
                self.keyless[submit.request_id] = math.inf
            if not submit.is_resumable:
                self._plain.add(submit.request_id)
            elif submit.params.pooling != "none":
                self._pooled.add(submit.request_id)

    # --- steps ---

    def planned_all(self, core: Core, now: float) -> None:
        """The core has built all plans that can be built."""
        self.pools.look(core, now)
        for executor in core.scheduler.executors:
            self._check_overlap(executor, core.scheduler.config.window)

    def planned(self, core: Core, action: SendToExecutor) -> None:
        """The core has built a plan, and nothing has happened since."""
        assert isinstance(action.message, m.Plan)
        epoch, step = action.message.epoch, action.message.step
        executor = core.scheduler.executor(epoch)
        plan = next(plan for plan in executor.inflight if plan.step == step)
        everyone = plan.everyone
        member = core.fleet.member(epoch)
        assert member is not None
        assert member.standing is not Standing.DRAINING, f"epoch {epoch} is draining and gets a plan"
        if member.standing is Standing.FINISHING:
            assert all(s in self._stay[epoch] for s in everyone), f"epoch {epoch} is finishing and gets a sequence"
        before = self._plans[epoch][-1].everyone if self._plans[epoch] else None
        self.moments["steps overlap"] += before is not None
        self.tokens.planned(plan, before, executor.running.decode_rows().sequences)
        for sequence in everyone:
            self._check_model(core, sequence, executor.model)
            self.libraries.planned(sequence, epoch)
        self.adoptions.planned(executor, action.message)
        self.shares.planned(core, executor)
        for sequence, positions in plan.asked_prompts.rows if plan.asked_prompts is not None else ():
            self._check_asked(sequence, positions)
        self._plans[epoch].append(_Plan(step, everyone, dict(plan.unsampled)))

    def logged(self, core: Core, event: str, facts: dict[str, Any]) -> None:
        """The core told the operator something; what concerns executors is always told."""
        match event:
            case "executor lost":
                self.moments[f"lost: {facts['cause']}"] += 1
                self._lost(facts["epoch"], facts["cause"], facts["reason"])
            case "request attached":
                self.moments["attached"] += 1
                self._claimed[facts["request"]] = None
            case "request cancelled: its client did not come back":
                self.moments["given up"] += 1
            case "executor left":
                del self._plans[facts["epoch"]]
            case "executor finishing":
                epoch = facts["epoch"]
                self._stay[epoch] = [s for s in core.scheduler if s.epoch == epoch]

    def revoked(self, core: Core, client: str, now: float) -> None:
        """The core is told that the key of a client is gone."""
        self.moments["revoked"] += 1
        self._keyless_until[client] = now + TOO_LATE_S
        for request in core.requests.table.open_of(client):
            self.keyless[request.id] = min(self.keyless.get(request.id, math.inf), now + TOO_LATE_S)

    def turned(self, now: float) -> None:
        """The core goes on. After a pause, in which it heard no peer, peers that gave it up are not to blame."""
        if now - self._last_turn > PAUSE_S:
            self._forgiving_until = now + FORGIVE_S
            self._paused_s += now - self._last_turn
            self._runs_since = self._world.now
            self._heard = dict.fromkeys(self._heard, now)
        self._last_turn = now

    def heard(self, peer: Peer, now: float) -> None:
        """An executor said something."""
        self._heard[peer] = now

    def lost(self, core: Core, connected: list[Peer]) -> None:
        """It has heard whose connections broke, or of some of them; these executors are connected."""
        peers = set(connected)
        gone = [member.peer for member in core.fleet if member.peer not in peers]
        self._gone = {peer: self._gone.get(peer, 0) + 1 for peer in gone}
        assert all(turns < HEARS_WITHIN for turns in self._gone.values()), "an executor is gone and still in the fleet"

    def look(self, core: Core, now: float, *, is_behind: bool) -> None:
        """A look at a moment between two turns, the first of which may have left some for the second."""
        core.scheduler.check()
        if is_behind:
            return
        for member in core.fleet:
            silence_s = now - self._heard[member.peer]
            assert silence_s <= LOSS_TIMEOUT_S + TOO_LATE_S, f"{member.hello.executor} is silent for {silence_s:.1f} s"
        for sequence in core.scheduler:
            is_in_time = sequence.deadline is None or sequence.deadline + TOO_LATE_S > now
            assert is_in_time, f"{sequence.request_id} outlives its deadline"
            has_key = self.keyless.get(sequence.request_id, math.inf) > now
            assert has_key, f"{sequence.request_id} outlives its key"

    def look_at_journal(self, core: Core, false_since: float | None) -> None:
        """A look at a moment between two turns, for a journal that has not what was written since then."""
        if false_since is not None and core.requests.group_commit.state is JournalState.OK:
            unnoticed_s = self._world.now - max(false_since, self._runs_since)
            assert unnoticed_s <= NOTICE_LOSS_S, f"the journal is lost for {unnoticed_s:.1f} s and said to be ok"

    # --- inside ---

    def _landed(self, result: m.StepResult, output: StepOutput) -> None:
        self.tokens.landed(output)
        self.adoptions.answered(result.epoch)
        step, everyone, chunks = self._plans[result.epoch].popleft()
        assert step == result.step, f"step {result.step} was answered, {step} is the oldest"
        for sequence in output.sequences:
            assert sequence in everyone, "a token for a sequence that is not in the plan"
            self._failures.pop(sequence, None)
            self._numberless.pop(sequence, None)
            self._spoken[sequence] = None
        for sequence, chunk_end in chunks.items():
            if chunk_end >= self._chunks.get(sequence, NO_POSITION):  # it got as far as the one that was lost
                self._failures.pop(sequence, None)
        self._numberless.update(output.numberless)
        self.moments["rows without numbers"] += len(output.numberless)
        self.moments["late rows"] += len(output.unmasked)
        for sequence in [sequence for sequence, count in self._numberless.items() if count > 1]:
            self.guilty.add((sequence.request_id, sequence.index))
        for came in output.prompt_logprobs:
            self._spoken[came.sequence] = None
        for end in output.ends:
            self.moments["pooled results"] += bool(end.sequence.pooled)
            assert not end.sequence.is_pooled or end.sequence in everyone, "a result for a sequence not in the plan"

    def _check_asked(self, sequence: Sequence, positions: range) -> None:
        """Positions of a prompt that a client was told of are not asked again, in this life or a later one."""
        self.moments["prompt positions asked"] += len(positions)
        told = self._told.get((sequence.request_id, sequence.index))
        if told is not None and not self.is_risky(told.asked_at):
            num_told = told.num_prompt_logprobs // sequence.num_prompt_logprobs
            assert positions.start >= num_told, f"{sequence.request_id}: {positions} asked, {num_told} told"

    def _lost(self, epoch: int, cause: str, reason: str) -> None:
        plans = list(self._plans.pop(epoch))
        if cause in ONE_STEP:
            named = re.search(r"step (\d+)", reason)
            assert named is not None, f"it does not say which step: {reason}"
            plans = [plan for plan in plans if plan.step == int(named[1])]
        elif cause not in WHOLE_EXECUTOR:
            plans = []
        if self._last_turn < self._forgiving_until:
            plans = []
        involved = list(dict.fromkeys(sequence for plan in plans for sequence in plan.everyone))
        for plan in plans:
            self._chunks |= dict.fromkeys(plan.everyone, NO_POSITION) | plan.chunks
        alive = [sequence for sequence in involved if sequence.state is not State.FINISHED]
        for sequence in involved:
            self.moments["strikes"] += 1
            self._failures[sequence] = self._failures.get(sequence, 0) + 1
            # The last failure has to be its alone: every other sequence of those plans had ended before.
            if self._failures[sequence] > FAILURES_ALLOWED and alive in ([], [sequence]):
                self.guilty.add((sequence.request_id, sequence.index))
                assert sequence.state is State.FINISHED, f"{sequence.request_id} goes on after too many failures"

    def _check_overlap(self, executor: ExecutorState, window: int) -> None:
        """While a step is computed the next one is on its way, as far as the window goes and a sequence decodes. A
        suspect is alone."""
        decoding, running = executor.running.decode_rows().sequences, list(executor.running)
        is_alone = executor.is_suspects or executor.is_emptying or any(map(is_suspect, running))
        if len(executor.inflight) >= window or executor.is_draining or is_alone:
            return
        assert not decoding, f"{len(executor.inflight)} of {window} plans are in flight, and {len(decoding)} decode"

    def _check_model(self, core: Core, sequence: Sequence, model: str) -> None:
        """Whether a sequence may go on with this model: only if its own is nowhere to be had."""
        before = self._models.get(sequence, model)
        self._models[sequence] = model
        if before != model and sequence in self._spoken:
            others = [e for e in core.scheduler.executors if e.model == before and not e.is_leaving]
            takes = [e for e in others if sequence.params.task in e.limits.tasks]
            able = [e for e in takes if sequence.num_positions <= capacity(e.limits)]
            fits = [e.name for e in able if self.libraries.fits(sequence, e.epoch)]
            assert not fits, f"{sequence.request_id} changes to {model}, but {fits} have {before}"


def _length(submit: m.Submit) -> int:
    """Positions that each sequence of a request needs."""
    return len(submit.prompt) // 4 + (submit.params.max_tokens if submit.params.pooling == "none" else 0)
