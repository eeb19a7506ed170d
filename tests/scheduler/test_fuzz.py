"""A stateful fuzzer drives the real scheduler against KV-oracle executors and checks every invariant each step."""

from array import array
from collections import Counter, deque

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common import messages as m
from common.errors import RequestRejected
from common.plan import ExecutorLimits
from common.wire import Codec, int32_array
from scheduler_svc.core.executor.block_manager import hash_block
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.scheduling.admission import MAX_PREEMPTIONS
from scheduler_svc.core.scheduling.scheduler import Scheduler, SchedulerConfig
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd, StepOutput
from tests.support.effort import examples
from tests.support.oracle import OracleExecutor, expected_output

VOCAB_SIZE = 5
PROMPT = array("i", [1, 2, 3, 4, 0, 1, 1, 2] * 80)


def colliding_hash(content: bytes, parent_key: int) -> int:
    """Two bits of the real key: nearly everything collides with something."""
    return hash_block(content, parent_key) & 3


class SchedulerMachine(RuleBasedStateMachine):
    """add / plan / run / commit / cancel / lose, join and drain executors, in any legal order."""

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 16, 256]),
        window=st.sampled_from([1, 2]),
        pool_tokens=st.integers(8, 90),
        budget=st.integers(1, 24),
        max_num_seqs=st.integers(1, 6),
        collide=st.booleans(),
        look_ahead=st.booleans(),
    )
    def start(self, block_size, window, pool_tokens, budget, max_num_seqs, collide, look_ahead):
        self.limits = ExecutorLimits(
            num_blocks=max(2, -(-pool_tokens // block_size)),
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=budget,
            max_model_len=pool_tokens,
            vocab_size=VOCAB_SIZE,
        )
        self.scheduler = Scheduler(
            SchedulerConfig(window=window, max_waiting=50, look_ahead=look_ahead),
            colliding_hash if collide else hash_block,
        )
        self.codec: Codec[m.Plan] = Codec(m.SchedulerToExecutor)
        self.executors: dict[int, OracleExecutor] = {}
        self.sent: dict[int, deque[m.Plan]] = {}
        self.ends_of_rows: dict[int, deque[dict[Sequence, int]]] = {}
        self.written: Counter[Sequence] = Counter()
        self.num_recomputed = 0
        self.epochs = 0
        self.ids = 0
        self.now = 0.0
        self.outputs: dict[Sequence, list[int]] = {}
        self.ended: dict[Sequence, str] = {}
        self.join()

    def send(self, epoch: int) -> m.Plan | None:
        """Make a plan, and count the positions in it that were written before (from the plan's own columns)."""
        plan = self.scheduler.plan(epoch)
        if plan is None:
            return None
        executor = self.scheduler.executor(epoch)
        inflight = executor.inflight[-1]
        sequences = dict(zip(inflight.lanes.tolist(), inflight.sequences, strict=True))
        sequences |= {sequence.lane: sequence for sequence, _ in inflight.unsampled}
        columns = (int32_array(name, getattr(plan, name)).tolist() for name in ("lanes", "query_lens", "context_lens"))
        ends: dict[Sequence, int] = {}
        for lane, count, end in zip(*columns, strict=True):
            ends[sequences[lane]] = end
            self.num_recomputed += len(range(end - count, min(end, self.written[sequences[lane]])))
        assert self.scheduler.stats.recomputed_tokens == self.num_recomputed
        self.sent[epoch].append(self.codec.decode(self.codec.encode(plan)))
        self.ends_of_rows[epoch].append(ends)
        return plan

    def answer_oldest(self, epoch: int) -> None:
        """Run the oldest plan in flight and commit what it gives."""
        plan = self.sent[epoch].popleft()
        for sequence, end in self.ends_of_rows[epoch].popleft().items():
            self.written[sequence] = max(self.written[sequence], end)
        self.commit(self.executors[epoch].run(plan))

    def commit(self, result: m.StepResult) -> None:
        output: StepOutput = self.scheduler.commit(result)
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
        expected = expected_output(prompt, sequence.params, VOCAB_SIZE, seed)
        output = self.outputs[sequence]
        assert sequence.tokens[sequence.num_prompt :].tolist() == output
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
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        timeout_s=st.sampled_from([None, None, None, 5.0]),
    )
    def add(self, length, offset, max_tokens, n, temperature, stop, salt, priority, timeout_s):
        self.ids += 1
        prompt = PROMPT[offset : offset + length]
        params = m.SamplingParams(
            max_tokens=max_tokens, temperature=temperature, seed=self.ids % 2, stop_token_ids=stop
        )
        submit = m.Submit(
            request_id=str(self.ids),
            prompt=prompt.tobytes(),
            params=params,
            n=n,
            cache_salt=salt,
            priority=priority,
            timeout_s=timeout_s,
        )
        fits = length + max_tokens <= self.limits.max_model_len
        refusal = ""
        try:
            self.outputs.update({sequence: [] for sequence in self.scheduler.add(submit, self.now)})
        except RequestRejected as error:
            refusal = error.code
        assert refusal in (("", "queue_full") if fits else ("context_length_exceeded",))

    @precondition(lambda self: self.executors)
    @rule(data=st.data())
    def plan(self, data):
        self.send(data.draw(st.sampled_from(list(self.executors))))

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def answer(self, data):
        self.answer_oldest(data.draw(st.sampled_from([e for e, plans in self.sent.items() if plans])))

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
        """Out of the blue, one that the scheduler itself may take."""
        executor = data.draw(st.sampled_from([e for e in self.scheduler.executors if e.num_running]))
        candidates = [s for s in executor.running if not executor.running.is_protected(s)]
        if candidates and (sequence := data.draw(st.sampled_from(candidates))).num_preemptions < MAX_PREEMPTIONS:
            self.scheduler.sequences.preempt(executor, sequence)

    @rule(seconds=st.floats(0.0, 4.0))
    def pass_time(self, seconds):
        self.now += seconds
        ends = self.scheduler.expire(self.now)
        self.end(ends)
        for sequence in self.outputs:
            late = sequence.deadline is not None and sequence.deadline <= self.now
            assert not late or sequence in self.ended

    @precondition(lambda self: len(self.executors) < 3)
    @rule()
    def join(self):
        self.epochs += 1
        self.executors[self.epochs] = OracleExecutor(self.limits)
        self.sent[self.epochs] = deque()
        self.ends_of_rows[self.epochs] = deque()
        self.end(self.scheduler.add_executor(Membership(self.epochs, "", "", self.limits)))

    @precondition(lambda self: self.executors)
    @rule(data=st.data(), step_failed=st.booleans())
    def lose(self, data, step_failed):
        epoch = data.draw(st.sampled_from(list(self.executors)))
        if step_failed:
            self.end(self.scheduler.blame(epoch))
        self.scheduler.remove_executor(epoch, self.now)
        del self.executors[epoch], self.sent[epoch]

    @precondition(lambda self: self.executors)
    @rule(data=st.data())
    def drain(self, data):
        epoch = data.draw(st.sampled_from(list(self.executors)))
        self.scheduler.executor(epoch).membership.standing = Standing.DRAINING
        self.scheduler.executor_leaves(epoch, self.now)
        while self.sent[epoch]:
            assert not self.scheduler.is_idle(epoch)
            self.answer_oldest(epoch)
        assert self.scheduler.is_idle(epoch)
        self.scheduler.remove_executor(epoch, self.now)
        del self.executors[epoch], self.sent[epoch]

    @invariant()
    def check(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self):
        """Whatever happened, everything still ends, and then nothing is held."""
        if not hasattr(self, "scheduler"):
            return
        if not self.executors:
            self.join()
        for _ in range(5000):
            if len(self.ended) == len(self.outputs):
                break
            self.run_all(1)
        assert len(self.ended) == len(self.outputs), "a sequence never ends"
        for epoch, plans in self.sent.items():
            while plans:
                self.answer_oldest(epoch)
            blocks = self.scheduler.executor(epoch).blocks
            assert blocks.num_free == blocks.num_blocks
        self.scheduler.check()


def effort(max_examples: int, num_steps: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=num_steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = effort(examples(700, quick=100), 50)


@pytest.mark.chaos
class TestSchedulerForLong(SchedulerMachine.TestCase):  # type: ignore[valid-type]  # hypothesis declares it as a variable
    settings = effort(3000, 60)
