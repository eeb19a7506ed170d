"""The real core in virtual time with a fleet that grows and shrinks as a rule says.

Executors say Hello when their start is over, beat, answer plans as the cost model says, and leave when they are
drained: what they had goes on elsewhere, and is computed again there. A step takes 35 ms, 140 us for each token that
it computes and 190 ns for each token of context that its rows read: roughly Qwen3-14B in bf16 on one L40S (28 GB of
weights and 163,840 bytes of KV a token at 864 GB/s, 28 GFLOP a token at 200 TFLOP/s), which has room for 96,000
tokens of KV.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.rig.workloads import MAX_TOKEN_ID, WorkloadRequest
from benchmarks.scheduler.scaling_rules import Rule
from common import messages as m
from common.heartbeats import HEARTBEAT_INTERVAL_S
from scheduler_svc.core.actions import Action, SendToExecutor, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.fleet.membership import Standing
from scheduler_svc.core.sequence import Sequence

STEP_S, TOKEN_S, CONTEXT_TOKEN_S = 35e-3, 140e-6, 190e-9
BLOCK_SIZE, NUM_BLOCKS = 32, 3000
MAX_BATCH_TOKENS, MAX_NUM_SEQS = 2048, 256
STOP_TOKEN = MAX_TOKEN_ID + 1
TICK_S = 0.1
LOOK_S = 1.0  # how often the rule is asked
FRONTEND = b"frontend"


@dataclass
class Machine:
    """An executor from its order to its end, in virtual seconds.

    Attributes:
        epoch: 0 until it has joined.
        free_at: when it has computed what it was sent.
    """

    name: str
    ordered_at: float
    ready_at: float
    epoch: int = 0
    free_at: float = 0.0
    is_leaving: bool = False
    ended_at: float | None = None


@dataclass
class Seen:
    """What came of it.

    Attributes:
        first_token: seconds to each request's first token.
        changes: when the rule wanted another number, and which.
        sizes: executors that are paid for, at each look.
        log: the core's lines about executors that are wanted.
    """

    first_token: list[float] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    log: list[tuple[float, dict[str, object]]] = field(default_factory=list)


class FleetSimulation:
    """Requests arrive, executors come and go, the core does its real work.

    Args:
        config: of the core.
        rule: says how many executors there should be.
        start_s: from an order to the Hello.
        size: executors that are ready at the start.
    """

    def __init__(
        self, config: CoreConfig, rule: Rule, requests: list[WorkloadRequest], *, start_s: float, size: int
    ) -> None:
        self.core = Core(config, 0.0)
        self.seen = Seen()
        self.now = 0.0
        self.machines: list[Machine] = []
        self._rule, self._start_s = rule, start_s
        self._coming = deque(enumerate(requests))
        self._end = requests[-1].arrival_s
        self._requests = requests
        self._sampled: dict[Sequence, int] = {}
        self._first: set[Sequence] = set()
        self._landing: list[tuple[float, int, Machine, m.StepResult, list[Sequence]]] = []
        self._order = itertools.count()
        self._rng = np.random.default_rng(1)
        self._by_name: dict[bytes, Machine] = {}
        self._wanted = size
        self._beat_at = self._look_at = 0.0
        self._do(self.core.from_frontend(FRONTEND, m.FrontendHello(pid=1), 0.0))
        for _ in range(size):
            self._start(0.0)

    def run(self) -> None:
        """Simulate until every request has ended."""
        tick_at = 0.0
        while self._coming or self._landing or self.core.scheduler.num_waiting:
            arrival = self._coming[0][1].arrival_s if self._coming else float("inf")
            landing = self._landing[0][0] if self._landing else float("inf")
            self.now = min(arrival, landing, tick_at)
            if self.now == arrival:
                self._submit(*self._coming.popleft())
            elif self.now == landing:
                self._land()
            else:
                tick_at = self.now + TICK_S
                self._tick()
            for plans in self.core.plans(self.now):
                self._do(plans)

    def executor_hours(self) -> float:
        """From each order to the executor's end, while requests arrived."""
        ends = [min(self._end, self._end if each.ended_at is None else each.ended_at) for each in self.machines]
        return sum(max(0.0, end - each.ordered_at) for each, end in zip(self.machines, ends, strict=True)) / 3600

    # --- the fleet ---

    def _tick(self) -> None:
        if self.now >= self._beat_at:
            self._beat_at = self.now + HEARTBEAT_INTERVAL_S
            self._do(self.core.from_frontend(FRONTEND, m.FrontendHello(pid=1), self.now))
            for machine in self._paid():
                if machine.epoch and not machine.is_leaving:
                    beat = m.ExecutorHeartbeat(epoch=machine.epoch)
                    self._do(self.core.from_executor(machine.name.encode(), beat, self.now))
        for machine in self._paid():
            if not machine.epoch and machine.ready_at <= self.now:
                self._do(self.core.from_executor(machine.name.encode(), _hello(machine.name, self._start_s), self.now))
        for actions in self.core.chores(self.now):
            self._do(actions)
        self._do(self.core.tick(self.now))
        for peer in self.core.frontends_with_outputs():
            while self.core.next_output(peer) is not None:
                self.core.output_sent(peer)
        if self.now >= self._look_at and self._coming:
            self._look_at = self.now + LOOK_S
            self._resize()

    def _paid(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.ended_at is None]

    def _resize(self) -> None:
        """Start or end executors, as the rule wants."""
        staying = [machine for machine in self._paid() if not machine.is_leaving]
        wanted = self._rule.wanted(self.core, len(staying), self.now)
        if wanted != self._wanted:
            self._wanted = wanted
            self.seen.changes.append((self.now, wanted))
        for _ in range(wanted - len(staying)):
            self._start(self._start_s)
        starting = [machine for machine in staying if not machine.epoch]
        for _ in range(len(staying) - wanted):
            if starting:
                starting.pop().ended_at = self.now
            else:
                self._drain()
        self.seen.sizes.append((self.now, len(self._paid())))

    def _start(self, start_s: float) -> None:
        machine = Machine(f"executor-{len(self.machines)}", self.now, self.now + start_s)
        self.machines.append(machine)
        self._by_name[machine.name.encode()] = machine

    def _drain(self) -> None:
        """End the one with the least to move, whatever the rule: which pod goes is not what is compared."""
        ready = [e for e in self.core.scheduler.executors if e.membership.standing is Standing.READY]
        least = min(ready, key=lambda e: (e.blocks.num_blocks - e.blocks.num_free, -e.epoch))
        machine = self._by_name[least.name.encode()]
        machine.is_leaving = True
        self._do(self.core.from_executor(least.name.encode(), m.Leaving(epoch=machine.epoch), self.now))

    # --- requests and steps ---

    def _submit(self, number: int, request: WorkloadRequest) -> None:
        params = m.SamplingParams(
            max_tokens=request.max_tokens, temperature=0.6, seed=number, stop_token_ids=(STOP_TOKEN,)
        )
        prompt = request.prompt.tobytes()
        submit = m.Submit(request_id=str(number), prompt=prompt, params=params, stream=False)
        self._do(self.core.from_frontend(FRONTEND, submit, self.now))

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case SendToExecutor(peer, m.Plan() as plan):
                    self._compute(self._by_name[peer], plan)
                case SendToExecutor(peer, m.Welcome(epoch=epoch)):
                    self._by_name[peer].epoch = epoch
                case SendToExecutor(peer, m.EpochOver()):
                    self._by_name[peer].ended_at = self.now
                case WriteLog(_, "executors wanted", facts):
                    self.seen.log.append((self.now, facts))
                case WriteLog(_, "executor lost" as event, facts):
                    raise AssertionError(f"{event}: {facts}")
                case _:
                    pass

    def _compute(self, machine: Machine, plan: m.Plan) -> None:
        context = int(np.frombuffer(plan.context_lens, np.int32).sum())
        seconds = STEP_S + TOKEN_S * len(plan.token_ids) / 4 + CONTEXT_TOKEN_S * context
        done = machine.free_at = max(self.now, machine.free_at) + seconds
        inflight = self.core.scheduler.executor(plan.epoch).inflight
        sequences = next(each.sequences for each in reversed(inflight) if each.step == plan.step)
        tokens = self._rng.integers(0, STOP_TOKEN, len(sequences), np.int32)
        for i, sequence in enumerate(sequences):
            count = self._sampled[sequence] = self._sampled.get(sequence, 0) + 1
            if count >= self._requests[int(sequence.request_id)].num_output:
                tokens[i] = STOP_TOKEN
        result = m.StepResult(
            epoch=plan.epoch, step=plan.step, token_ids=tokens.tobytes(), compute_us=int(seconds * 1e6)
        )
        heapq.heappush(self._landing, (done, next(self._order), machine, result, sequences))

    def _land(self) -> None:
        _, _, machine, result, sequences = heapq.heappop(self._landing)
        for sequence in sequences:
            if sequence not in self._first:
                self._first.add(sequence)
                arrived = self._requests[int(sequence.request_id)].arrival_s
                self.seen.first_token.append(self.now - arrived)
        self._do(self.core.from_executor(machine.name.encode(), result, self.now))


def _hello(name: str, start_s: float) -> m.Hello:
    return m.Hello(
        executor=name,
        build="simulated",
        fingerprint="simulated",
        dtype="bfloat16",
        device="simulated",
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_batch_tokens=MAX_BATCH_TOKENS,
        max_model_len=NUM_BLOCKS * BLOCK_SIZE,
        vocab_size=STOP_TOKEN + 1,
        pid=1,
        tokenizer="",
        grammars="",
        start_s=start_s,
        node="",
        tasks=("generate",),
        hidden_size=64,
        pool=None,
    )
