"""What an executor's two threads do, with plans at random: see `executor_svc.service.step_loop`."""

import itertools
import queue
import random
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from common import messages as m
from common.plan import ExecutorLimits, PlanColumns, parse_plan
from common.step_result import ResultColumns
from common.wire import IntArray
from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.runner import Runner
from tests.executor_svc.harness import Row, make_plan

POISON = 0x77777777
"""What a pinned buffer holds in the rig until the copy to it is done."""


def random_plans(
    limits: ExecutorLimits, rng: random.Random, *, grammar: str = "", asking: float = 0.5, going_on: bool = True
) -> Iterator[PlanColumns]:
    """Decode steps of all sizes, prompt chunks, and both; with and without sampling; contexts of all lengths.

    Args:
        grammar: of some of the constrained rows; empty for none.
        asking: share of the plans of which some rows have constraints or want log-probabilities, of prompts as well.
        going_on: whether a constrained row may go on with what an earlier plan has started; all plans have to run then.
    """
    asked = _Asked(limits, rng, grammar)
    while True:
        rows = _rows(limits, rng)
        wants = rng.random() < asking
        if wants and going_on:
            rows = asked.going_on(rows)
        plan = make_plan(rows, limits.block_size)
        yield parse_plan(asked.of(plan, rows) if wants else plan, limits)


@dataclass
class _Asked:
    """What rows ask for beside a token, at random.

    Attributes:
        started: context of the next plan of each lane that has been started.
    """

    limits: ExecutorLimits
    rng: random.Random
    grammar: str
    started: dict[int, int] = field(default_factory=dict)

    def going_on(self, rows: list[Row]) -> list[Row]:
        """The rows, where some of one token have the context that follows from their lane's start."""
        return [self._going_on(row) if len(row.token_ids) == 1 else row for row in rows]

    def _going_on(self, row: Row) -> Row:
        length = self.started.get(row.lane, 0)
        if not 1 <= length <= self.limits.max_model_len or self.rng.random() < 0.4:
            return row
        return replace(row, context_len=length, table=_table(length, self.limits, self.rng))

    def of(self, plan: m.Plan, rows: list[Row]) -> m.Plan:
        """The plan, of which some samples ask for constraints, for log-probabilities, or for both, and some prompts for
        theirs."""
        rng, sampled = self.rng, [row for row in rows if row.sampled]
        constrained, starting = [], []
        room = max(self.limits.max_batch_tokens, self.limits.max_model_len)  # for the starts' tokens, usually
        for sample in self._some(len(sampled)):
            row = sampled[sample]
            if self.started.get(row.lane) != row.context_len or rng.random() < 0.2:
                if row.context_len > room:
                    continue
                room -= row.context_len
                starting.append(row)
            constrained.append(sample)
            self.started[row.lane] = row.context_len + 1
        wanting = self._some(len(sampled))
        counts = array("i", [0] * len(sampled))
        most = rng.choice([1, 2, rng.randint(1, m.MAX_LOGPROBS), m.MAX_LOGPROBS])
        for sample in wanting:
            counts[sample] = rng.choice([most, rng.randint(1, most)])
        return msgspec.structs.replace(
            plan,
            constrained=array("i", constrained).tobytes(),
            lane_starts=tuple(map(self._start, starting)),
            logprob_counts=counts.tobytes() if wanting else b"",
            **self._prompt_targets(rows),
        )

    def _prompt_targets(self, rows: list[Row]) -> dict[str, bytes]:
        """Of half the plans that have any token of a prompt: after all of these, after few, or after one."""
        rng = self.rng
        known = [index for index, token in enumerate(token for row in rows for token in row.token_ids) if token >= 0]
        if not known or rng.random() < 0.5:
            return {}
        most = rng.choice([1, 2, rng.randint(1, m.MAX_LOGPROBS), m.MAX_LOGPROBS])
        number = min(rng.choice([1, rng.randint(1, len(known)), len(known)]), m.MAX_PLAN_PROMPT_LOGPROBS // most)
        return {
            "prompt_logprob_tokens": array("i", sorted(rng.sample(known, number))).tobytes(),
            "prompt_logprob_targets": array("i", rng.choices(range(self.limits.vocab_size), k=number)).tobytes(),
            "prompt_logprob_counts": array("i", [most, *rng.choices(range(1, most + 1), k=number - 1)]).tobytes(),
        }

    def _some(self, num_samples: int) -> list[int]:
        few = min(num_samples, self.rng.choice([0, 1, 2, 12]))
        return sorted(self.rng.sample(range(num_samples), num_samples if self.rng.random() < 0.2 else few))

    def _start(self, row: Row) -> m.LaneStart:
        rng, vocab_size = self.rng, self.limits.vocab_size

        def tokens(most: int) -> bytes:
            first = rng.randrange(vocab_size)
            return np.arange(first, min(first + rng.randint(1, most), vocab_size), dtype=np.int32).tobytes()

        bias_ids = tokens(m.MAX_BIASES)
        everything: dict[str, Any] = {
            "presence_penalty": 1.5,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.2,
            "bias_token_ids": bias_ids,
            "min_tokens": rng.choice([1, 10**6]),
            "bad_words": tuple(tokens(4) for _ in range(rng.randint(1, m.MAX_BAD_WORDS))),
            "allowed_token_ids": tokens(vocab_size),
            "grammar": self.grammar,
        }
        names = rng.choice([rng.sample(sorted(everything), 1), rng.sample(sorted(everything), 3), list(everything)])
        asked = {name: everything[name] for name in names}
        if "bias_token_ids" in asked:
            asked["biases"] = np.ones(len(bias_ids) // 4, np.float32).tobytes()
        return m.LaneStart(
            lane=row.lane,
            num_prompt=rng.randint(1, row.context_len),
            tokens=np.full(row.context_len, 5, np.int32).tobytes(),
            constraints=m.Constraints(**asked),
            stop_token_ids=tokens(3),
        )


def _rows(limits: ExecutorLimits, rng: random.Random) -> list[Row]:
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
            sampled = rng.random() < 0.7
            pooled = None if sampled else rng.choice([None, *_poolings(limits, rng)])
            rows.append(_row(lane, [5] * query, context, limits, rng, sampled=sampled, pooled=pooled, **sampling))
    return rows


def _poolings(limits: ExecutorLimits, rng: random.Random) -> list[tuple[int, ...]]:
    """Results that a row may give instead of a token."""
    found: list[tuple[int, ...]] = [()] if "embed" in limits.tasks else []
    if "score" in limits.tasks:
        found.append(tuple(rng.choices(range(limits.vocab_size), k=rng.choice([1, 2, m.MAX_POOLED_TOKEN_IDS]))))
    return found


def _row(
    lane: int, tokens: list[int], context_len: int, limits: ExecutorLimits, rng: random.Random, **fields: Any
) -> Row:
    """A row in blocks at random, which it may share with others: nothing is computed."""
    return Row(lane, tokens, context_len, _table(context_len, limits, rng), **fields)


def _table(context_len: int, limits: ExecutorLimits, rng: random.Random) -> list[int]:
    return [rng.randrange(limits.num_blocks) for _ in range(-(-context_len // limits.block_size))]


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
    results: list[ResultColumns] = []

    failures: list[Exception] = []

    def collect() -> None:
        while (pending := launched.get()) is not None:
            try:
                results.append(ResultColumns(*map(np.array, pending.wait())))  # copies: torch hands the memory on
            except Exception as error:
                failures.append(error)
            in_flight.release()

    collector = threading.Thread(target=collect, daemon=True)
    collector.start()
    for step, columns in enumerate(itertools.islice(plans, steps)):
        in_flight.acquire()
        if failures:
            break
        launched.put(runner.launch(columns))
        each_step(step)
    launched.put(None)
    collector.join()
    if failures:
        raise failures[0]
    for result in results:
        for column in result:
            assert not (column.view(np.int32) == POISON).any(), "results were read before their copy was done"
    return [result.token_ids for result in results]
