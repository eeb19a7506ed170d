"""A scheduler and its executors, step by step, without sockets, threads or time.

The executors know what every KV slot holds (`oracle.py`). There is no fleet and no request manager: a test says who
joins and leaves, and what is told to clients is what comes out of the scheduler. `core.py` has both, on sockets.
"""

from collections import deque
from typing import Any

from common import messages as m
from common.plan import ExecutorLimits
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.plan_budget import PlanBudget
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd
from tests.support.chores import done
from tests.support.oracle import OracleExecutor, expected_output, expected_pooled, expected_prompt_logprobs
from tests.support.submits import submit
from tests.support.turns import plan_in_turn


def limits(**changes: Any) -> ExecutorLimits:
    """An executor of 64 blocks of 4, and what a test wants different."""
    fields: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 16,
        "max_batch_tokens": 64,
        "max_model_len": 256,
        "vocab_size": 1000,
        "hidden_size": 3,
    }
    return ExecutorLimits(**(fields | changes))


def with_executor(**parts: Any) -> type[Scheduler]:
    """A scheduler whose executors have other parts: see the types that `ExecutorState` names."""
    return type("OtherScheduler", (Scheduler,), {"executor_type": type("OtherExecutor", (ExecutorState,), parts)})


def with_blocks(blocks: type[BlockManager]) -> type[Scheduler]:
    """A scheduler whose executors manage their blocks in another way."""
    return with_executor(block_manager_type=blocks)


def with_budget(**limits: int) -> type[Scheduler]:
    """A scheduler whose plans have other limits: see `PlanBudget`."""
    return type("OtherScheduler", (Scheduler,), {"budget_type": type("OtherBudget", (PlanBudget,), limits)})


class Scheduling:
    """A scheduler and its executors: plans run in the order they were made, and each call checks every invariant.

    Attributes:
        outputs, ends: what came out of each sequence, and how it ended.
        convictions: epochs whose rows had no numbers, although there were some, with the clients of the rows.
        plans: all plans so far, by epoch.
        memberships: by epoch; a test changes them where a fleet would.
    """

    def __init__(self, *executors: ExecutorLimits, scheduler_type: type[Scheduler] = Scheduler, **config: Any) -> None:
        self.scheduler = scheduler_type(SchedulerConfig(**config))
        self.memberships: dict[int, Membership] = {}
        self.executors: dict[int, OracleExecutor] = {}
        self.sent: dict[int, deque[m.Plan]] = {}
        self.plans: dict[int, list[m.Plan]] = {}
        self.outputs: dict[Sequence, list[int]] = {}
        self.ends: dict[Sequence, SequenceEnd] = {}
        self.convictions: list[tuple[int, str]] = []
        for each in executors or (limits(),):
            self.join(each)

    def join(
        self,
        each: ExecutorLimits,
        name: str = "",
        model: str = "model",
        now: float = 0.0,
        pool: m.Pool | None = None,
        memory: OracleExecutor | None = None,
        grammars: str = "",
    ) -> int:
        """Add an executor and return its epoch. It continues the memory of an earlier one, or has its own."""
        epoch = len(self.plans) + 1
        self.executors[epoch] = OracleExecutor(each, slots=None if memory is None else memory.slots)
        self.sent[epoch], self.plans[epoch] = deque(), []
        self.memberships[epoch] = Membership(
            epoch, name or f"executor {epoch}", model, each, pool=pool, grammars=grammars
        )
        self.scheduler.add_executor(self.memberships[epoch], now)
        self.end(done(self.scheduler.expire(now)))
        return epoch

    def lose(self, epoch: int, pool_wait_s: float | None = None, now: float = 0.0) -> list[Sequence]:
        """An executor is gone, with all that it was sent. Returns the sequences that it ran."""
        del self.executors[epoch], self.sent[epoch]
        return self.scheduler.remove_executor(epoch, now, pool_wait_s)

    def drain(self, epoch: int) -> None:
        """An executor gets no more plans."""
        self.memberships[epoch].standing = Standing.DRAINING
        self.scheduler.executor_leaves(epoch)

    def take_no_new(self, epoch: int) -> None:
        """An executor gets no new sequences."""
        self.memberships[epoch].standing = Standing.FINISHING
        self.scheduler.executor_leaves(epoch)

    def add(self, request_id: str, prompt: list[int], *, now: float = 0.0, **fields: Any) -> list[Sequence]:
        """Submit a request of eight tokens; see `submit`."""
        sequences = self.scheduler.add(submit(request_id, prompt, **({"max_tokens": 8} | fields)), now)
        self.outputs.update({sequence: [] for sequence in sequences})
        return sequences

    def plan(self, epoch: int = 1) -> m.Plan | None:
        plan = plan_in_turn(self.scheduler, epoch)
        self.scheduler.check()
        if plan is not None:
            self.sent[epoch].append(plan)
            self.plans[epoch].append(plan)
        return plan

    def answer(self, epoch: int = 1) -> None:
        """Run the oldest plan in flight and commit what it gives."""
        output = self.scheduler.commit(self.executors[epoch].run(self.sent[epoch].popleft()))
        assert all(came.ids for came in output.prompt_logprobs), "nothing is told"
        for sequence, token in zip(output.sequences, output.tokens, strict=True):
            self.outputs[sequence].append(token)
        self.end(output.ends)
        self.convictions += output.convictions
        self.scheduler.check()

    def end(self, ends: list[SequenceEnd]) -> None:
        for end in ends:
            assert end.sequence not in self.ends
            self.ends[end.sequence] = end

    def step(self) -> bool:
        """Fill every window, then answer one plan of each executor. False if there was nothing to do."""
        for epoch in list(self.executors):
            while self.plan(epoch) is not None:
                pass
        busy = [epoch for epoch, plans in self.sent.items() if plans]
        for epoch in busy:
            self.answer(epoch)
        return bool(busy)

    def finish(self, max_steps: int = 20_000) -> int:
        """Step until everything has ended, and compare all output with undisturbed runs. Returns the steps taken."""
        steps = 0
        while self.step():
            steps += 1
            assert steps < max_steps, "it never ends"
        assert set(self.ends) == set(self.outputs)
        for sequence, output in self.outputs.items():
            if sequence.is_pooled:
                assert (output, sequence.pooled) == ([], self.result(sequence))
            elif self.ends[sequence].reason in ("stop", "length"):
                assert output == self.expected(sequence)
                assert (sequence.prompt_logprob_ids.tolist(), sequence.prompt_logprobs.tolist()) == self.told(sequence)
        return steps

    def told(self, sequence: Sequence) -> tuple[list[int], list[float]]:
        """What there is to be told of its prompt."""
        prompt = sequence.tokens[: sequence.num_prompt].tolist()
        vocab_size = next(iter(self.executors.values())).limits.vocab_size
        return expected_prompt_logprobs(prompt, sequence.num_prompt_logprobs, vocab_size)

    def result(self, sequence: Sequence) -> bytes:
        """The pooled result of a sequence that has ended."""
        if self.ends[sequence].reason != "stop":
            return b""
        hidden_size = next(iter(self.executors.values())).limits.hidden_size
        return expected_pooled(sequence.tokens[: sequence.num_prompt].tolist(), sequence.params, hidden_size)

    def expected(self, sequence: Sequence) -> list[int]:
        """What an undisturbed run of the sequence gives."""
        prompt = sequence.tokens[: sequence.num_prompt].tolist()
        vocab_size = next(iter(self.executors.values())).limits.vocab_size
        seed = sequence.seed if sequence.params.temperature else 0
        return expected_output(prompt, sequence.params, vocab_size, seed)
