"""What single operations cost in the scheduler: a decode step, the admission of a prompt, a request that waits.

    python benchmarks/bench_scheduler_micro.py

Prints one JSON line. `us_step` is the time of plan, encode, decode of the answer and commit, the median of 1,000 steps
in which every row decodes and has about 64 blocks. `us_admission` is an eighth of the time that eight new prompts of
1,000 tokens add to a plan, with hashing and their rows. `queued_bytes_ratio` is the memory of a waiting request over
that of its prompt's int32 tokens.
"""

import gc
import json
import statistics
import time
import tracemalloc

import click
import numpy as np

from common import messages as m
from common.plan import ExecutorLimits
from common.wire import Codec
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.scheduler import Scheduler

VOCAB_SIZE = 10_000
BLOCKS_A_ROW = 64
PROMPT_TOKENS = 1000
ADMITTED_AT_ONCE = 8


class Loop:
    """A scheduler with one executor that answers at once."""

    def __init__(self, num_seqs: int, block_size: int, num_blocks: int) -> None:
        limits = ExecutorLimits(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=num_seqs + 8,
            max_batch_tokens=max(16_384, 2 * num_seqs),
            max_model_len=100_000,
            vocab_size=VOCAB_SIZE,
            hidden_size=4,
        )
        self.scheduler = Scheduler(SchedulerConfig(max_waiting=1_000_000))
        self.scheduler.add_executor(Membership(1, "", "", limits))
        self.rng = np.random.default_rng(0)
        self._sent: list[list[bytes]] = []
        self._to_executor: Codec[m.ExecutorToScheduler] = Codec(m.ExecutorToScheduler)
        self._to_scheduler: Codec[m.SchedulerToExecutor] = Codec(m.SchedulerToExecutor)
        self._count = 0

    def submit(self, num_tokens: int, max_tokens: int) -> None:
        """Submit a request with a random prompt."""
        self._count += 1
        prompt = self.rng.integers(0, VOCAB_SIZE, num_tokens, np.int32).tobytes()
        params = m.SamplingParams(max_tokens=max_tokens, temperature=0.6, seed=self._count)
        self.scheduler.add(m.Submit(request_id=str(self._count), prompt=prompt, params=params))

    def step(self) -> tuple[float, float]:
        """Make one plan and commit the answer to the plan before. Returns the seconds of `plan` and of everything."""
        t0 = time.perf_counter()
        plan = self.scheduler.plan(1)
        t1 = time.perf_counter()
        assert plan is not None
        self._to_executor.encode(plan)
        t2 = time.perf_counter()
        tokens = self.rng.integers(0, VOCAB_SIZE, len(plan.sample_rows) // 4, np.int32).tobytes()
        result = m.StepResult(epoch=1, step=plan.step, token_ids=tokens, compute_us=1)
        self._sent.append(self._to_scheduler.encode(result))
        if len(self._sent) < self.scheduler.config.window:
            return t1 - t0, t2 - t0
        frames = self._sent.pop(0)
        t3 = time.perf_counter()
        self.scheduler.commit(self._to_executor.decode(frames))  # type: ignore[arg-type]
        return t1 - t0, t2 - t0 + time.perf_counter() - t3


def decode_step_us(num_rows: int, block_size: int, steps: int = 1000) -> float:
    """Microseconds of the median step of `num_rows` decoding rows with about BLOCKS_A_ROW blocks each."""
    context = (BLOCKS_A_ROW - 1) * block_size - steps // 2
    max_tokens = 2 * steps
    # Room for all rows at their full length: otherwise admission, which looks ahead, keeps some of them waiting.
    loop = Loop(num_rows, block_size, num_rows * (BLOCKS_A_ROW + 2 + max_tokens // block_size))
    for _ in range(num_rows):
        loop.submit(context + int(loop.rng.integers(0, block_size)), max_tokens)
    while loop.scheduler.num_waiting or loop.scheduler.executor(1).running.prompts():
        loop.step()
    for _ in range(100):
        loop.step()
    assert len(loop.scheduler.executor(1).running.decode_rows()) == num_rows
    gc.collect()
    return 1e6 * statistics.median(loop.step()[1] for _ in range(steps))


def admission_us(block_size: int, repeats: int = 300) -> float:
    """Microseconds that each admitted prompt of PROMPT_TOKENS adds to a `plan` of 64 decoding rows."""
    max_tokens = 5 * repeats
    loop = Loop(64, block_size, 80 * (2 * max_tokens // block_size + 4))
    for _ in range(64):
        loop.submit(100, max_tokens)
    for _ in range(50):
        loop.step()
    plain = statistics.median(loop.step()[0] for _ in range(repeats))
    admitting = []
    for _ in range(repeats):
        for _ in range(ADMITTED_AT_ONCE):
            loop.submit(PROMPT_TOKENS, 2)
        admitting.append(loop.step()[0])
        assert loop.scheduler.num_waiting == 0
        loop.step()
        loop.step()
    return 1e6 * (statistics.median(admitting) - plain) / ADMITTED_AT_ONCE


def queued_bytes_ratio(num_requests: int = 2000) -> float:
    """Memory of waiting requests of PROMPT_TOKENS each, over 4 bytes a token."""
    loop = Loop(1, 16, 128)
    gc.collect()
    tracemalloc.start()
    for _ in range(num_requests):
        loop.submit(PROMPT_TOKENS, 100)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / (num_requests * PROMPT_TOKENS * 4)


@click.command()
def main() -> None:
    """Measure single operations of the scheduler, and print the figures."""
    figures: dict[str, float] = {
        f"us_step_{rows}_rows_block_{size}": round(decode_step_us(rows, size), 1)
        for rows in (1, 256, 1024)
        for size in (16, 256)
    }
    figures |= {f"us_admission_block_{size}": round(admission_us(size), 1) for size in (16, 256)}
    print(json.dumps({**figures, "queued_bytes_ratio": round(queued_bytes_ratio(), 3)}))


if __name__ == "__main__":
    main()
