"""The real scheduler and the real codec with executors that answer at once, in virtual time.

Only `plan`, encoding it, decoding the answer and `commit` are timed. Virtual time advances by a cost model of one
executor, roughly Qwen3-0.6B on an H200: a step takes 1 ms, 3 us for each token it computes and 29 ns for each token
of context that a decode row reads (114,688 bytes of KV at 4 TB/s).
"""

import heapq
import itertools
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from benchmarks.rig.workloads import MAX_TOKEN_ID, WorkloadRequest
from common import messages as m
from common.plan import ExecutorLimits
from common.wire import Codec
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.server.kv_event_format import encode_batch

STEP_S, TOKEN_S, CONTEXT_TOKEN_S = 1e-3, 3e-6, 29e-9
STOP_TOKEN = MAX_TOKEN_ID + 1
VOCAB_SIZE = STOP_TOKEN + 1


@dataclass
class Timings:
    """Seconds of each step's parts, its rows, and whether it was a decode step."""

    plan: list[float] = field(default_factory=list)
    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    is_decode: list[bool] = field(default_factory=list)
    plan_bytes: list[int] = field(default_factory=list)

    def steps_us(self) -> list[float]:
        """Each step as a whole, in microseconds."""
        return [1e6 * sum(parts) for parts in zip(self.plan, self.encode, self.decode, self.commit, strict=True)]


@dataclass
class Latencies:
    """What clients see, in virtual seconds."""

    first_token: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    last: dict[Sequence, float] = field(default_factory=dict)


class TimedSimulation:
    """Requests arrive, executors compute as the cost model says, the scheduler does its real work."""

    def __init__(
        self, scheduler: Scheduler, limits: ExecutorLimits, executors: int, requests: list[WorkloadRequest]
    ) -> None:
        self.scheduler = scheduler
        self.requests = requests
        self.timings = Timings()
        self.latencies = Latencies()
        self.now = 0.0
        self.peak_tokens = 0
        self.peak_blocks = 0
        self._arrived: dict[Sequence, float] = {}
        self._workloads: dict[Sequence, WorkloadRequest] = {}
        self._num_sampled: dict[Sequence, int] = {}
        self._num_received: dict[Sequence, int] = {}
        self._to_executor: Codec[m.ExecutorToScheduler] = Codec(m.ExecutorToScheduler)
        self._to_scheduler: Codec[m.SchedulerToExecutor] = Codec(m.SchedulerToExecutor)
        self._free_at = dict.fromkeys(range(1, executors + 1), 0.0)
        self._landing: list[tuple[float, int, int, list[bytes]]] = []
        self._order = itertools.count()
        self._rng = np.random.default_rng(1)
        for epoch in self._free_at:
            scheduler.add_executor(Membership(epoch, "", "", limits))

    def run(self) -> None:
        """Simulate until every request has ended."""
        coming = deque(enumerate(self.requests))
        while coming or self._landing:
            if coming and (not self._landing or coming[0][1].arrival_s <= self._landing[0][0]):
                self.now = max(self.now, coming[0][1].arrival_s)
                while coming and coming[0][1].arrival_s <= self.now:
                    self._submit(*coming.popleft())
            else:
                self._land()
            self._plan()

    def _submit(self, number: int, request: WorkloadRequest) -> None:
        stops = () if request.ends_by == "length" else (STOP_TOKEN,)
        params = m.SamplingParams(
            max_tokens=request.max_tokens or request.num_output, temperature=0.6, seed=number, stop_token_ids=stops
        )
        submit = m.Submit(request_id=str(number), prompt=request.prompt.tobytes(), params=params)
        (sequence,) = self.scheduler.add(submit)
        self._arrived[sequence] = request.arrival_s
        self._workloads[sequence] = request
        self._num_sampled[sequence] = self._num_received[sequence] = 0

    def _plan(self) -> None:
        for epoch in self._free_at:
            while True:
                decoded, prefilled = self.scheduler.stats.decode_tokens, self.scheduler.stats.prefill_tokens
                t0 = time.perf_counter()
                plan = self.scheduler.plan(epoch)
                t1 = time.perf_counter()
                if plan is None:
                    break
                _, payload = self._to_executor.encode(plan)
                t2 = time.perf_counter()
                self.timings.plan.append(t1 - t0)
                self.timings.encode.append(t2 - t1)
                self.timings.plan_bytes.append(len(payload))
                num_decodes = self.scheduler.stats.decode_tokens - decoded
                num_prefill = self.scheduler.stats.prefill_tokens - prefilled
                self.timings.rows.append(len(plan.lanes) // 4)
                self.timings.is_decode.append(num_prefill == 0)
                context = int(np.frombuffer(plan.context_lens, np.int32)[:num_decodes].sum())
                self._compute(epoch, plan, STEP_S + (num_decodes + num_prefill) * TOKEN_S + context * CONTEXT_TOKEN_S)
        self._watch_memory()

    def _compute(self, epoch: int, plan: m.Plan, seconds: float) -> None:
        done = self._free_at[epoch] = max(self.now, self._free_at[epoch]) + seconds
        tokens = self._rng.integers(0, STOP_TOKEN, len(plan.sample_rows) // 4, np.int32)
        for i, sequence in enumerate(self.scheduler.executor(epoch).inflight[-1].sequences):
            self._num_sampled[sequence] += 1
            request = self._workloads[sequence]
            if request.ends_by == "stop" and self._num_sampled[sequence] >= request.num_output:
                tokens[i] = STOP_TOKEN
        result = m.StepResult(epoch=epoch, step=plan.step, token_ids=tokens.tobytes(), compute_us=int(seconds * 1e6))
        heapq.heappush(self._landing, (done, next(self._order), epoch, self._to_scheduler.encode(result)))

    def _land(self) -> None:
        self.now, _, _, frames = heapq.heappop(self._landing)
        t0 = time.perf_counter()
        result = self._to_executor.decode(frames)
        t1 = time.perf_counter()
        output = self.scheduler.commit(result)  # type: ignore[arg-type]
        if (events := self.scheduler.cache_events) is not None and events.has_more:
            encode_batch(events.take(), self.now)
        t2 = time.perf_counter()
        self.timings.decode.append(t1 - t0)
        self.timings.commit.append(t2 - t1)
        seen = self.latencies
        for sequence in output.sequences:
            self._num_received[sequence] += 1
            before = seen.last.get(sequence)
            if before is None:
                seen.first_token.append(self.now - self._arrived[sequence])
            else:
                seen.gaps.append(self.now - before)
            seen.last[sequence] = self.now
        # A frontend found a stop string, or its client hung up.
        cancelled = [s for s in output.sequences if self._is_to_cancel(s)]
        for end in [*output.ends, *self.scheduler.cancel(cancelled)]:
            seen.last.pop(end.sequence, None)

    def _is_to_cancel(self, sequence: Sequence) -> bool:
        request = self._workloads[sequence]
        return request.ends_by == "cancel" and self._num_received[sequence] >= request.num_output

    def _watch_memory(self) -> None:
        tokens = blocks = 0
        for executor in self.scheduler.executors:
            tokens += int(executor.running.lanes.computed[executor.running.order].sum())
            blocks += executor.blocks.num_blocks - executor.blocks.num_free
        self.peak_tokens = max(self.peak_tokens, tokens)
        self.peak_blocks = max(self.peak_blocks, blocks)
