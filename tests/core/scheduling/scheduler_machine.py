"""A stateful fuzzer that drives the scheduler against KV-oracle executors and checks each invariant after each step."""

from array import array
from collections import Counter, defaultdict, deque
from dataclasses import replace

import hypothesis.strategies as st
import msgspec
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common import messages as m
from common.errors import RequestRejected
from common.plan import ExecutorLimits
from common.wire import Codec, int32_array
from scheduler_svc.core.executor.block_manager import BlockManager, hash_block
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.step_output import SequenceEnd, StepOutput
from tests.support.announced import Announced
from tests.support.block_maps import BlockMaps
from tests.support.chores import done
from tests.support.oracle import (
    OracleExecutor,
    expected_logprobs,
    expected_output,
    expected_pooled,
    expected_prompt_logprobs,
)
from tests.support.pool_limits import TASKS, PoolLimits, TaskPools
from tests.support.turns import plan_in_turn

VOCAB_SIZE = 5
HIDDEN_SIZE = 4
TWO_MODELS = [TASKS, TASKS, ("generate",), ("embed",), ("generate", "score")]
GRACE_S = 6.0  # how long a sequence waits for a pool
PROMPT = array("i", [1, 2, 3, 4, 0, 1, 1, 2] * 80)
CONSTRAINTS = [m.Constraints(presence_penalty=1.0), m.Constraints(min_tokens=3, bad_words=(bytes(4),))]


def colliding_hash(content: bytes, parent_key: int) -> int:
    """Two bits of the real key: nearly everything collides with something."""
    return hash_block(content, parent_key) & 3


class SchedulerMachine(RuleBasedStateMachine):
    """add / plan / run / commit / cancel / lose, join and drain executors, in any legal order."""

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 16, 256]),
        window=st.sampled_from([1, 2, 2, 8]),
        pool_tokens=st.integers(8, 90),
        budget=st.integers(1, 24),
        max_num_seqs=st.integers(1, 6),
        collide=st.booleans(),
        look_ahead=st.booleans(),
        is_early=st.booleans(),
        announces=st.sampled_from([None, "", "", "tenant"]),
    )
    def start(self, block_size, window, pool_tokens, budget, max_num_seqs, collide, look_ahead, is_early, announces):
        self.limits = ExecutorLimits(
            num_blocks=max(2, -(-pool_tokens // block_size)),
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=budget,
            max_model_len=pool_tokens,
            vocab_size=VOCAB_SIZE,
            hidden_size=HIDDEN_SIZE,
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                window=window,
                max_waiting=50,
                look_ahead=look_ahead,
                pool_grace_s=GRACE_S,
                task_grace_s=GRACE_S,
                announced_salt=announces,
            ),
            colliding_hash if collide else hash_block,
        )
        self.announced = None if announces is None else Announced(self.scheduler, announces, collides=collide)
        self.codec: Codec[m.Plan] = Codec(m.SchedulerToExecutor)
        self.executors: dict[int, OracleExecutor] = {}
        self.sent: dict[int, deque[m.Plan]] = {}
        self.ends_of_rows: dict[int, deque[dict[Sequence, int]]] = {}
        self.written: Counter[Sequence] = Counter()
        self.num_recomputed = 0
        self.epochs = 0
        self.maps = BlockMaps()
        self.ids = 0
        self.now = 0.0
        self.outputs: dict[Sequence, list[int]] = {}
        self.logprob_ids: defaultdict[Sequence, list[int]] = defaultdict(list)
        self.logprobs: defaultdict[Sequence, list[float]] = defaultdict(list)
        self.prompt_logprob_ids: defaultdict[Sequence, list[int]] = defaultdict(list)
        self.prompt_logprobs: defaultdict[Sequence, list[float]] = defaultdict(list)
        self.ended: dict[Sequence, str] = {}
        self.pools = TaskPools(GRACE_S)
        self.stranded: dict[Sequence, float] = {}  # since when no executor that takes sequences can hold it
        self.max_tokens: dict[Sequence, int] = {}  # what it has to have
        self.stay: dict[int, list[Sequence]] = {}  # which sequences an executor may run that takes no more
        if is_early:
            self.join()

    def send(self, epoch: int) -> m.Plan | None:
        """Make a plan, and count the positions in it that were written before (from the plan's own columns)."""
        executor = self.scheduler.executor(epoch)
        published = list(executor.blocks.uids)
        plan = plan_in_turn(self.scheduler, epoch)
        self.check_announced()
        if plan is None:
            return None
        self.check_writes(plan, executor.blocks, published)
        inflight = executor.inflight[-1]
        sequences = dict(zip(inflight.lanes.tolist(), inflight.sequences, strict=True))
        sequences |= {sequence.lane: sequence for sequence, _ in inflight.unsampled}
        if (asked_results := inflight.asked_results) is not None:
            lanes = int32_array("lanes", plan.lanes)[asked_results.pooled.rows]
            sequences |= dict(zip(lanes.tolist(), asked_results.sequences, strict=True))
        assert all(s.params.task in executor.limits.tasks for s in sequences.values()), "a task of another executor"
        if epoch in self.stay:
            assert all(sequence in self.stay[epoch] for sequence in sequences.values()), "it takes no more sequences"
        columns = (int32_array(name, getattr(plan, name)).tolist() for name in ("lanes", "query_lens", "context_lens"))
        asked = int32_array("prompt_logprob_tokens", plan.prompt_logprob_tokens)
        ends: dict[Sequence, int] = {}
        first_token = 0
        for lane, count, end in zip(*columns, strict=True):
            positions = asked[(asked >= first_token) & (asked < first_token + count)] - first_token + end - count
            assert (positions >= self.num_covered(sequences[lane])).all(), "an answered position is asked again"
            first_token += count
            ends[sequences[lane]] = end
            self.num_recomputed += len(range(end - count, min(end, self.written[sequences[lane]])))
        assert self.scheduler.stats.recomputed_tokens == self.num_recomputed
        self.sent[epoch].append(self.codec.decode(self.codec.encode(plan)))
        self.ends_of_rows[epoch].append(ends)
        return plan

    def check_writes(self, plan: m.Plan, blocks: BlockManager, published: list[int]) -> None:
        """No row writes into a block that stood in the prefix cache before the plan, and still does."""
        slots = int32_array("slot_mapping", plan.slot_mapping)
        for block in np.unique(slots[slots >= 0] // blocks.block_size).tolist():
            is_kept = block < len(published) and published[block] and blocks.uids[block] == published[block]
            assert not is_kept, f"block {block} is in the prefix cache and is written"

    def check_announced(self) -> None:
        """What routers were told is what is in the indexes."""
        if self.announced is not None:
            self.announced.check()

    @precondition(lambda self: self.announced is not None)
    @rule()
    def tell_anew(self):
        """A router subscribes, or has missed something."""
        self.announced.tell_anew()

    def num_covered(self, sequence: Sequence) -> int:
        """Prompt tokens whose log-probabilities were told."""
        return len(self.prompt_logprobs[sequence]) // max(1, sequence.params.prompt_logprobs)

    def answer_oldest(self, epoch: int, numberless: int | None = None, late: int | None = None) -> None:
        """Run the oldest plan in flight and commit what it gives.

        Args:
            numberless: a row, counted from the first, that brings no numbers instead; so many that there are less will
                do.
            late: a constrained row, counted likewise, whose mask is not there in time.
        """
        plan, inflight = self.sent[epoch].popleft(), self.scheduler.executor(epoch).inflight[0]
        for sequence, end in self.ends_of_rows[epoch].popleft().items():
            self.written[sequence] = max(self.written[sequence], end)
        constrained = int32_array("constrained", plan.constrained).tolist()
        lates = [] if late is None or not constrained else [constrained[late % len(constrained)]]
        result = self.executors[epoch].run(plan, [int(inflight.lanes[row]) for row in lates])
        for row, token in enumerate(array("i", result.token_ids)):
            if token == m.LATE:
                for ends in self.ends_of_rows[epoch]:
                    ends.pop(inflight.sequences[row], None)
        if numberless is not None and inflight.sequences:
            row = numberless % len(inflight.sequences)
            tokens = array("i", result.token_ids)
            tokens[row] = m.NO_NUMBERS
            result = msgspec.structs.replace(result, token_ids=tokens.tobytes())
            for ends in self.ends_of_rows[epoch]:  # what it has in flight counts no more
                ends.pop(inflight.sequences[row], None)
        self.commit(result)

    def commit(self, result: m.StepResult) -> None:
        output: StepOutput = self.scheduler.commit(result)
        self.check_announced()
        logprobs = output.logprobs
        if logprobs is not None:
            ends = np.cumsum(logprobs.counts)
            for sequence, count, end in zip(output.sequences, logprobs.counts.tolist(), ends.tolist(), strict=True):
                assert count == sequence.params.logprobs
                self.logprob_ids[sequence] += logprobs.ids[end - count : end].tolist()
                self.logprobs[sequence] += logprobs.values[end - count : end].tolist()
        for came in output.prompt_logprobs:
            sequence = came.sequence
            assert sequence not in self.ended, "a sequence goes on after its end"
            assert not self.outputs[sequence], "log-probabilities of a prompt come after tokens"
            assert came.first == self.num_covered(sequence), "they do not follow each other"
            self.prompt_logprob_ids[sequence] += array("i", came.ids).tolist()
            self.prompt_logprobs[sequence] += array("f", came.values).tolist()
        for sequence, token in zip(output.sequences, output.tokens, strict=True):
            assert sequence not in self.ended, "a sequence goes on after its end"
            assert (sequence in output.firsts) == (not self.outputs[sequence])
            self.outputs[sequence].append(token)
        self.end(output.ends)

    def end(self, ends: list[SequenceEnd]) -> None:
        for end in ends:
            assert end.sequence not in self.ended, "a sequence ended twice"
            self.ended[end.sequence] = end.reason
            self.verify(end.sequence)

    def verify(self, sequence: Sequence) -> None:
        """What came out is what an undisturbed run gives, or a beginning of it if the sequence was cancelled."""
        prompt = sequence.tokens[: sequence.num_prompt].tolist()
        seed = sequence.seed if sequence.params.temperature else 0
        expected = expected_output(prompt, sequence.params, VOCAB_SIZE, seed) if not sequence.is_pooled else []
        has_result = sequence.is_pooled and self.ended[sequence] == "stop"
        assert sequence.pooled == (expected_pooled(prompt, sequence.params, HIDDEN_SIZE) if has_result else b"")
        output = self.outputs[sequence]
        assert sequence.tokens[sequence.num_prompt :].tolist() == output
        logprobs = expected_logprobs(prompt, output, sequence.params, VOCAB_SIZE)
        assert (sequence.logprob_ids.tolist(), sequence.logprobs.tolist()) == logprobs
        assert (self.logprob_ids[sequence], self.logprobs[sequence]) == logprobs, "the step's output has others"
        prompt_logprobs = self.prompt_logprob_ids[sequence], self.prompt_logprobs[sequence]
        assert (sequence.prompt_logprob_ids.tolist(), sequence.prompt_logprobs.tolist()) == prompt_logprobs
        count = 0 if sequence.index else sequence.params.prompt_logprobs
        all_of_them = expected_prompt_logprobs(prompt, count, VOCAB_SIZE)
        num_told = len(prompt_logprobs[0])
        assert prompt_logprobs == tuple(column[:num_told] for column in all_of_them)
        assert num_told == len(all_of_them[0]) or not output, "a token comes before them"
        assert sequence.params.max_tokens == self.max_tokens[sequence]
        if self.ended[sequence] in ("stop", "length"):
            assert output == expected
        else:
            assert output == expected[: len(output)]

    @rule(
        length=st.integers(1, 60),
        offset=st.sampled_from([0, 0, 0, 1, 5]),
        max_tokens=st.integers(1, 30),
        n=st.integers(1, 3),
        temperature=st.sampled_from([0.0, 0.8]),
        stop=st.sampled_from([(), (0,), (1, 3)]),
        salt=st.sampled_from(["", "", "tenant"]),
        priority=st.sampled_from([0, 0, 0, 1, -1, 100]),
        timeout_s=st.sampled_from([None, None, None, 5.0]),
        may_shorten=st.sampled_from([False, False, True]),
        constraints=st.sampled_from([None, None, *CONSTRAINTS]),
        logprobs=st.sampled_from([0, 0, 1, 3, 21]),
        prompt_logprobs=st.sampled_from([0, 0, 1, 3]),
        pooled=st.sampled_from([None, None, None, (), (3,), (0, 4, 0)]),
    )
    def add(
        self,
        length,
        offset,
        max_tokens,
        n,
        temperature,
        stop,
        salt,
        priority,
        timeout_s,
        may_shorten,
        constraints,
        logprobs,
        prompt_logprobs,
        pooled,
    ):
        self.ids += 1
        task = "generate" if pooled is None else "score" if pooled else "embed"
        pools = self.pools.of(task)
        limit = pools.limit(self.now)
        if may_shorten and limit > length:  # as a frontend does
            max_tokens = limit - length
        prompt = PROMPT[offset : offset + length]
        if pooled is not None:
            n, max_tokens, may_shorten, constraints, logprobs, prompt_logprobs = 1, 1, False, None, 0, 0
        params = m.SamplingParams(
            pooling={"generate": "none", "embed": "hidden", "score": "logits"}[task],
            pooled_token_ids=pooled or (),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=self.ids % 2,
            stop_token_ids=stop,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            constraints=constraints,
        )
        submit = m.Submit(
            request_id=str(self.ids),
            prompt=prompt.tobytes(),
            params=params,
            n=n,
            cache_salt=salt,
            priority=priority,
            timeout_s=timeout_s,
            may_shorten=may_shorten,
        )
        accepted = pools.max_tokens(length, max_tokens, may_shorten=may_shorten)
        fits = limit == 0 or length + (accepted - 1 if pooled is None else 0) <= limit
        refusal = ""
        try:
            sequences = self.scheduler.add(submit, self.now)
            self.outputs.update({sequence: [] for sequence in sequences})
            self.max_tokens.update(dict.fromkeys(sequences, accepted))
        except RequestRejected as error:
            refusal = error.code
        if self.pools.is_unavailable(task, self.now):
            assert refusal == self.pools.code_of_unavailable(task, self.now)
        else:
            assert refusal in (("", "queue_full") if fits else ("context_length_exceeded",))

    @precondition(lambda self: self.executors)
    @rule(data=st.data())
    def plan(self, data):
        self.send(data.draw(st.sampled_from(list(self.executors))))

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def answer(self, data):
        epoch = data.draw(st.sampled_from([e for e, plans in self.sent.items() if plans]))
        strange = st.sampled_from([*[None] * 7, 0, 1, 2])
        self.answer_oldest(epoch, data.draw(strange), data.draw(strange))

    @precondition(lambda self: self.executors)
    @rule(steps=st.integers(1, 12))
    def run_all(self, steps):
        """Some rounds of everything, so that sequences get long and pools get full."""
        for _ in range(steps):
            for epoch in list(self.executors):
                while self.send(epoch) is not None:
                    pass
                if self.sent[epoch]:
                    self.answer_oldest(epoch)
                self.scheduler.check()

    @precondition(lambda self: any(s not in self.ended for s in self.outputs))
    @rule(data=st.data(), whole=st.booleans())
    def cancel(self, data, whole):
        sequence = data.draw(st.sampled_from([s for s in self.outputs if s not in self.ended]))
        siblings = [s for s in self.outputs if s.request_id == sequence.request_id]
        self.end(self.scheduler.cancel(siblings if whole else [sequence]))
        assert sequence in self.ended

    @precondition(lambda self: self.scheduler.num_running)
    @rule(data=st.data())
    def preempt(self, data):
        """Out of the blue."""
        executor = data.draw(st.sampled_from([e for e in self.scheduler.executors if e.num_running]))
        if candidates := list(executor.running):
            self.scheduler.sequences.preempt(executor, data.draw(st.sampled_from(candidates)))

    @rule(quarters=st.one_of(st.integers(0, 16), st.just(int(GRACE_S * 4))))
    def pass_time(self, quarters):
        """Sums of quarters of a second are exact: whether a grace is over is no matter of rounding."""
        self.now += quarters / 4
        before = {sequence: sequence.num_positions for sequence in self.scheduler}
        ends = done(self.scheduler.expire(self.now))
        for sequence, positions in before.items():
            if sequence.num_positions != positions:
                self.was_shortened(sequence, positions)
        for end in ends:
            if end.code == "context_length_exceeded":
                sequence = end.sequence
                needed = (
                    min(sequence.num_prompt + 1, sequence.num_positions)
                    if sequence.may_shorten
                    else sequence.num_positions
                )
                assert needed > self.pools_of(sequence).largest_seen
            elif end.code != "deadline_exceeded":
                self.was_given_up(end)
        self.end(ends)
        for sequence in self.outputs:
            late = sequence.deadline is not None and sequence.deadline <= self.now
            assert not late or sequence in self.ended

    def was_shortened(self, sequence: Sequence, positions: int) -> None:
        """Its pool is gone, or there never was one for it, and it goes on with less."""
        pools, since = self.pools_of(sequence), self.stranded.pop(sequence, self.now)
        assert self.now >= since + GRACE_S or positions > pools.largest_seen
        assert sequence.may_shorten
        room = pools.largest if positions <= pools.largest_seen else pools.largest_seen
        assert len(sequence.tokens) < sequence.max_length == room
        self.max_tokens[sequence] = sequence.params.max_tokens

    def was_given_up(self, end: SequenceEnd) -> None:
        """Its pool is gone, and what is left holds no more of it."""
        sequence, largest = end.sequence, self.pools_of(end.sequence).largest
        assert self.now >= self.stranded[sequence] + GRACE_S
        assert (end.code == "task_not_served") == (largest == 0)
        if end.reason == "length":
            assert sequence.may_shorten
            assert len(sequence.tokens) >= largest
            assert sequence.num_output > 0
            sequence.params = msgspec.structs.replace(sequence.params, max_tokens=sequence.num_output)
            self.max_tokens[sequence] = sequence.num_output
        elif largest:
            assert end.code == "capacity_lost"
            assert not sequence.may_shorten or (sequence.num_output == 0 and sequence.num_prompt >= largest)

    @precondition(lambda self: len(self.executors) < 3)
    @rule(
        blocks=st.sampled_from(["all", "all", "one less", "half"]),
        length=st.sampled_from([1.0, 1.0, 1.0, 0.5]),
        tasks=st.sampled_from(TWO_MODELS),
    )
    def join(self, blocks="all", length=1.0, tasks=TASKS):
        """Of pools and tasks that differ."""
        most = self.limits.num_blocks
        num_blocks = {"all": most, "one less": most - 1, "half": most // 2}[blocks]
        max_model_len = int(self.limits.max_model_len * length)
        limits = replace(self.limits, num_blocks=max(2, num_blocks), max_model_len=max_model_len, tasks=tasks)
        self.enter(OracleExecutor(limits))

    def enter(self, executor: OracleExecutor, pool: m.Pool | None = None) -> None:
        """An executor begins its epoch."""
        limits = executor.limits
        self.epochs += 1
        self.executors[self.epochs] = executor
        self.sent[self.epochs] = deque()
        self.ends_of_rows[self.epochs] = deque()
        self.pools.joined(self.epochs, limits, self.now)
        membership = Membership(self.epochs, f"executor {self.epochs}", "", limits, pool=pool)
        self.scheduler.add_executor(membership, self.now)
        self.pass_time(0)

    @precondition(lambda self: self.executors)
    @rule(data=st.data(), step_failed=st.booleans())
    def lose(self, data, step_failed):
        epoch = data.draw(st.sampled_from(list(self.executors)))
        if step_failed:
            self.end(self.scheduler.blame(epoch))
        self.remove(epoch)

    @precondition(lambda self: self.pools.taking)
    @rule(data=st.data())
    def executor_leaves(self, data):
        """It takes no more sequences, and goes on with those that it has."""
        epoch = data.draw(st.sampled_from(self.pools.taking))
        executor = self.scheduler.executor(epoch)
        executor.membership.standing = Standing.FINISHING
        self.stay[epoch] = executor.sequences()
        self.pools.left(epoch, self.now)
        self.scheduler.executor_leaves(epoch, self.now)

    @precondition(lambda self: self.executors)
    @rule(data=st.data())
    def drain(self, data):
        epoch = data.draw(st.sampled_from(list(self.executors)))
        self.scheduler.executor(epoch).membership.standing = Standing.DRAINING
        self.pools.left(epoch, self.now)
        self.scheduler.executor_leaves(epoch, self.now)
        while self.sent[epoch]:
            assert not self.scheduler.is_idle(epoch)
            self.answer_oldest(epoch)
        assert self.scheduler.is_idle(epoch)
        self.remove(epoch)

    def remove(self, epoch: int, pool_wait_s: float | None = None) -> None:
        self.pools.left(epoch, self.now)
        self.scheduler.remove_executor(epoch, self.now, pool_wait_s)
        self.stay.pop(epoch, None)
        del self.executors[epoch], self.sent[epoch]

    @invariant()
    def check(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            self.check_stranded()
            self.check_announced()
            self.maps.check(self.scheduler.executors)

    def check_stranded(self) -> None:
        """No sequence waits for longer than the grace beside executors that cannot hold it."""
        waiting = [s for s in self.outputs if s.state is State.WAITING and not s.awaited]
        waiting = [
            s for s in waiting if s.num_positions > self.pools_of(s).largest and self.pools.strands(s.params.task)
        ]
        self.stranded = {sequence: self.stranded.get(sequence, self.now) for sequence in waiting}
        assert all(self.now < since + GRACE_S for since in self.stranded.values())

    def pools_of(self, sequence: Sequence) -> PoolLimits:
        """Those that the sequence may run in."""
        return self.pools.of(sequence.params.task)

    def teardown(self):
        """Whatever happened, everything still ends, and then nothing is held."""
        if not hasattr(self, "scheduler"):
            return
        if not all(self.pools_of(sequence).taking for sequence in self.outputs if sequence not in self.ended):
            for epoch in list(self.executors):
                self.remove(epoch)
            self.join()
        for i in range(5000):
            if len(self.ended) == len(self.outputs):
                break
            self.run_all(1)
            self.check_stranded()
            if i % 50 == 49:
                self.pass_time(GRACE_S)
        assert len(self.ended) == len(self.outputs), "a sequence never ends"
        for epoch, plans in self.sent.items():
            while plans:
                self.answer_oldest(epoch)
            blocks = self.scheduler.executor(epoch).blocks
            assert blocks.num_free == blocks.num_blocks
        self.scheduler.check()
