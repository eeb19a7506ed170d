"""What an executor's two threads do, with plans at random: see `executor_svc.service.step_loop`."""

import itertools
import queue
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from common.plan import ExecutorLimits, PlanColumns, parse_plan
from common.wire import IntArray
from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.runner import Runner
from tests.executor.harness import Row, make_plan

POISON = 0x77777777
"""What a pinned buffer holds in the rig until the copy to it is done."""


def random_plans(limits: ExecutorLimits, rng: random.Random) -> Iterator[PlanColumns]:
    """Decode steps of all sizes, prompt chunks, and both; with and without sampling; contexts of all lengths."""
    while True:
        yield parse_plan(make_plan(random_rows(limits, rng), limits.block_size), limits)


def random_rows(limits: ExecutorLimits, rng: random.Random) -> list[Row]:
    """The rows of one of `random_plans`."""
    most = min(limits.max_num_seqs, limits.max_batch_tokens)
    decode_only = rng.random() < 0.6
    num_decode = rng.randint(1, most) if decode_only else rng.choice([0, 1, most // 3, most - 1])
    greedy = rng.random() < 0.3
    sampling = {} if greedy else {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1}
    rows = [
        _row(lane, [-1], _length(rng, limits.max_model_len), limits, rng, seed=lane, **sampling)
        for lane in range(num_decode)
    ]
    if not decode_only or not rows:
        left = limits.max_batch_tokens - len(rows)
        for lane in range(len(rows), min(most, len(rows) + rng.randint(1, 6))):
            query = min(rng.choice([1, 2, 3, 5, 8, 17, 64, 100, 1200]), limits.max_model_len, left)
            if query < 1:
                break
            left -= query
            context = min(limits.max_model_len, query + rng.choice([0, 0, 100, 5000]))
            rows.append(_row(lane, [5] * query, context, limits, rng, sampled=rng.random() < 0.7, **sampling))
    return rows


def _row(
    lane: int, tokens: list[int], context_len: int, limits: ExecutorLimits, rng: random.Random, **fields: Any
) -> Row:
    """A row in blocks at random, which it may share with others: nothing is computed."""
    blocks = [rng.randrange(limits.num_blocks) for _ in range(-(-context_len // limits.block_size))]
    return Row(lane, tokens, context_len, blocks, **fields)


def _length(rng: random.Random, longest: int) -> int:
    return rng.choice([longest, rng.randint(1, longest), rng.randint(1, min(longest, 300))])


def serve(
    runner: Runner[Any],
    plans: Iterable[PlanColumns],
    steps: int,
    window: int = 2,
    each_step: Callable[[int], None] = lambda step: None,
) -> list[IntArray]:
    """Launch plans in this thread, up to `window` ahead of the collector's, which waits for their tokens.

    Returns:
        The tokens of each step.
    """
    launched: queue.SimpleQueue[PendingStep | None] = queue.SimpleQueue()
    in_flight = threading.Semaphore(window)
    tokens: list[IntArray] = []

    def collect() -> None:
        while (pending := launched.get()) is not None:
            tokens.append(np.array(pending.wait().token_ids))
            in_flight.release()

    collector = threading.Thread(target=collect, daemon=True)
    collector.start()
    for step, columns in enumerate(itertools.islice(plans, steps)):
        in_flight.acquire()
        launched.put(runner.launch(columns))
        each_step(step)
    launched.put(None)
    collector.join()
    assert not any((found == POISON).any() for found in tokens), "tokens were read before their copy was done"
    return tokens
