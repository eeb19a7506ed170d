"""An executor that knows, for each KV slot, which token after which history was written there.

It runs real plans through the real `parse_plan`. A row that attends reads every position of its context and
checks that the slots tell one unbroken story; the next token is a pure function of that story, so the output of
any scheduler on any number of executors must equal `expected_output`. A wrong slot, a stale block, a missing write
or a block shared too early fails at the step where it happens.

Of lanes with constraints it remembers the tokens, as an executor does: their story must be that of the slots. The next
token depends on the constraints as well, so those of another sequence, or none, give other tokens.
"""

from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice, pairwise

import msgspec
import numpy as np
import xxhash

from common import messages as m
from common.plan import ExecutorLimits, PlanColumns, parse_plan
from common.step_result import ResultColumns
from executor_svc.staging.constrained_lanes import ConstrainedLanes

ROOT = 0
TORN = 2**64 - 1  # the history of no token


def extend(history: int, token: int) -> int:
    """The history after one more token."""
    return xxhash.xxh3_64_intdigest(token.to_bytes(4, "little"), seed=history)


def next_token(history: int, seed: int, vocab_size: int) -> int:
    """What follows a history: the stand-in for model and sampler."""
    return (history ^ seed * 0x9E3779B97F4A7C15) % 2**64 % vocab_size


def constraint_salt(constraints: m.Constraints | None, num_prompt: int) -> int:
    """Makes a constrained sequence's tokens its own; 0 without constraints."""
    if constraints is None:
        return 0
    return xxhash.xxh3_64_intdigest(msgspec.msgpack.encode((constraints, num_prompt)))


def logprobs_of(token: int, count: int, history: int, vocab_size: int) -> tuple[list[int], list[float]]:
    """The stand-in for log-probabilities: ids and values that come with a token that was drawn after a history."""
    ids = [(token + i) % vocab_size for i in range(count)]
    return ids, [-(history % 1000 / 8) - i for i in range(count)]


def prompt_logprobs_of(target: int, count: int, history: int, vocab_size: int) -> tuple[list[int], list[float]]:
    """The stand-in for log-probabilities of a token of a prompt, whose id gives way to minus its rank."""
    ids, values = logprobs_of(target, count, history, vocab_size)
    return [-(1 + history % vocab_size), *ids[1:]][:count], values


def expected_logprobs(
    prompt: list[int], output: list[int], params: m.SamplingParams, vocab_size: int
) -> tuple[list[int], list[float]]:
    """What an undisturbed run gives with these tokens."""
    history = ROOT
    for token in prompt:
        history = extend(history, token)
    ids: list[int] = []
    values: list[float] = []
    for token in output:
        more_ids, more_values = logprobs_of(token, params.logprobs, history, vocab_size)
        ids += more_ids
        values += more_values
        history = extend(history, token)
    return ids, values


def expected_prompt_logprobs(prompt: list[int], count: int, vocab_size: int) -> tuple[list[int], list[float]]:
    """What any run gives of a prompt: of each token but the first."""
    history = ROOT
    ids: list[int] = []
    values: list[float] = []
    for token, target in pairwise(prompt):
        history = extend(history, token)
        more_ids, more_values = prompt_logprobs_of(target, count, history, vocab_size)
        ids += more_ids
        values += more_values
    return ids, values


def pooled_of(history: int, token_ids: Iterable[int], hidden_size: int) -> list[float]:
    """The stand-in for a pooled result after a history: logits of these tokens, or a hidden state if there are none."""
    named = list(token_ids) or range(-hidden_size, 0)
    return [next_token(history, token + 2**32, 2**20) / 8 for token in named]


def expected_pooled(prompt: list[int], params: m.SamplingParams, hidden_size: int, model: int = 0) -> bytes:
    """The result that any run of a prompt gives, float32."""
    history = ROOT
    for token in prompt:
        history = extend(history, token)
    return array("f", pooled_of(history ^ model, params.pooled_token_ids, hidden_size)).tobytes()


def expected_output(prompt: list[int], params: m.SamplingParams, vocab_size: int, seed: int = 0) -> list[int]:
    """The tokens an undisturbed run gives."""
    seed ^= constraint_salt(params.constraints, len(prompt))
    history = ROOT
    for token in prompt:
        history = extend(history, token)
    output: list[int] = []
    while len(output) < params.max_tokens:
        output.append(next_token(history, seed, vocab_size))
        if output[-1] in params.stop_token_ids:
            break
        history = extend(history, output[-1])
    return output


@dataclass
class Written:
    """What a slot holds."""

    history_before: int
    token: int


class OracleExecutor:
    """Runs plans in order over imaginary KV memory.

    Args:
        model: executors of different ones sample different tokens; `expected_output` finds them with `seed ^ model`.
        slots: the memory of a pool that it continues; None for a new one.
    """

    def __init__(self, limits: ExecutorLimits, model: int = 0, slots: dict[int, Written] | None = None) -> None:
        self.limits = limits
        self.model = model
        self.slots: dict[int, Written] = {} if slots is None else slots
        self.last_tokens: dict[int, int] = {}
        self.computed_tokens = 0
        self.late_lanes: set[int] = set()  # whose masks were late since their last start
        self._lanes = ConstrainedLanes(limits.vocab_size)
        self._lane_tokens: dict[int, list[int]] = {}

    def run(self, plan: m.Plan, late: Collection[int] = ()) -> m.StepResult:
        """Check the plan against everything written so far and answer it.

        Args:
            late: lanes whose masks are not there in time, as far as the plan has constrained rows of them. Their rows
                have no token until they are started again: what is computed behind them is computed with a wrong one.
        """
        columns = parse_plan(plan, self.limits)
        rows = self._rows(columns)
        for row in rows:
            self._store(row)
        histories = [self._attend(row) for row in rows]  # all rows have stored before any attends
        salts = self._constraint_salts(columns, histories)
        tokens, ids, values = [], [], []
        for i, r in enumerate(columns.sample_rows):
            sampling, lane = columns.sampling, int(columns.lanes[r])
            seed = int(sampling.seeds[i]) if sampling is not None and sampling.temperatures[i] > 0 else 0
            token = next_token(histories[r], seed ^ self.model ^ salts.get(i, 0), self.limits.vocab_size)
            if i in salts and lane in late:
                self.late_lanes.add(lane)
            if i in salts and lane in self.late_lanes:
                self.last_tokens[lane] = 0
                self._lane_tokens[lane].append(0)
                tokens.append(m.LATE)
                ids += [0] * int(columns.logprob_counts[i]) if len(columns.logprob_counts) else []
                values += [0.0] * int(columns.logprob_counts[i]) if len(columns.logprob_counts) else []
                continue
            self.last_tokens[lane] = token
            if i in salts:
                self._lane_tokens[lane].append(token)
            tokens.append(token)
            if len(columns.logprob_counts):
                more_ids, more_values = logprobs_of(
                    token, int(columns.logprob_counts[i]), histories[r], self.limits.vocab_size
                )
                ids += more_ids
                values += more_values
        written = columns.slot_mapping[columns.slot_mapping >= 0]
        assert len(set(written.tolist())) == len(written), "two rows write one slot"
        self.computed_tokens += len(columns.token_ids)
        prompt_ids, prompt_values = self._prompt_logprobs(columns, rows)
        result = ResultColumns(
            np.array(tokens, np.int32),
            np.array(ids, np.int32),
            np.array(values, np.float32),
            np.array(prompt_ids, np.int32),
            np.array(prompt_values, np.float32),
            np.array(self._pooled(columns, histories), np.float32),
        )
        return result.message(plan.epoch, plan.step, compute_us=1)

    def tear(self, plan: m.Plan, num_slots: int | None = None) -> None:
        """The executor dies in the middle of a plan: the first slots that it writes hold nothing of use."""
        slots = parse_plan(plan, self.limits).slot_mapping
        for slot in slots[slots >= 0][:num_slots].tolist():
            self.slots[slot] = Written(TORN, 0)

    def _constraint_salts(self, columns: PlanColumns, histories: list[int]) -> dict[int, int]:
        """What constraints make of the samples that have some; their lanes' tokens must be those of the slots."""
        known = self._lanes.take(columns)
        for start in columns.lane_starts:
            self.late_lanes.discard(start.message.lane)
            self._lane_tokens[start.message.lane] = start.tokens.tolist()
        salts = {}
        for sample, lane in zip(columns.constrained.tolist(), known, strict=True):
            history = ROOT
            for token in self._lane_tokens[lane.start.message.lane]:
                history = extend(history, token)
            assert history == histories[columns.sample_rows[sample]], "the lane's tokens are not those of the slots"
            salts[sample] = constraint_salt(lane.start.message.constraints, lane.start.message.num_prompt)
        return salts

    def _pooled(self, columns: PlanColumns, histories: list[int]) -> list[float]:
        """The results of the plan's pooled rows."""
        values: list[float] = []
        if (asked := columns.pooled) is None:
            return values
        tokens = iter(asked.token_ids.tolist())
        for row, count in zip(asked.rows.tolist(), asked.counts.tolist(), strict=True):
            values += pooled_of(histories[row] ^ self.model, islice(tokens, count), self.limits.hidden_size)
        return values

    def _prompt_logprobs(self, columns: PlanColumns, rows: list["_Row"]) -> tuple[list[int], list[float]]:
        """Those of the plan's targets, each of which must be the next token, as far as its row has it."""
        ids: list[int] = []
        values: list[float] = []
        if (asked := columns.prompt_targets) is None:
            return ids, values
        targets = {
            token: (target, count)
            for token, target, count in zip(
                asked.tokens.tolist(), asked.targets.tolist(), asked.counts.tolist(), strict=True
            )
        }
        first = 0
        for row in rows:
            wanted = [i for i in range(len(row.tokens)) if first + i in targets]
            history = self._history_before(row)
            for i in range(wanted[-1] + 1 if wanted else 0):
                history = extend(history, row.tokens[i])
                if i in wanted:
                    target, count = targets.pop(first + i)
                    assert i + 1 == len(row.tokens) or row.tokens[i + 1] == target, "a target is not the next token"
                    more_ids, more_values = prompt_logprobs_of(target, count, history, self.limits.vocab_size)
                    ids += more_ids
                    values += more_values
            first += len(row.tokens)
        return ids, values

    def _rows(self, columns: PlanColumns) -> list["_Row"]:
        rows, token, entry = [], 0, 0
        for r in range(columns.num_rows):
            count, blocks = int(columns.query_lens[r]), int(columns.block_counts[r])
            ids = columns.token_ids[token : token + count].tolist()
            if ids == [-1]:
                ids = [self.last_tokens[int(columns.lanes[r])]]
            context_len = int(columns.context_lens[r])
            rows.append(
                _Row(
                    start=context_len - count,
                    tokens=ids,
                    slots=columns.slot_mapping[token : token + count].tolist(),
                    table=columns.block_ids[entry : entry + blocks].tolist(),
                )
            )
            token, entry = token + count, entry + blocks
        return rows

    def _slot(self, row: "_Row", position: int) -> int:
        size = self.limits.block_size
        return row.table[position // size] * size + position % size

    def _store(self, row: "_Row") -> None:
        history = self._history_before(row)
        for token, slot in zip(row.tokens, row.slots, strict=True):
            if slot >= 0:
                self.slots[slot] = Written(history, token)
            history = extend(history, token)

    def _history_before(self, row: "_Row") -> int:
        """As the slots tell it."""
        if row.start == 0:
            return ROOT
        before = self.slots[self._slot(row, row.start - 1)]
        return extend(before.history_before, before.token)

    def _attend(self, row: "_Row") -> int:
        """Read the row's whole context; the history it tells."""
        history = ROOT
        for position in range(row.start + len(row.tokens)):
            written = self.slots[self._slot(row, position)]
            assert written.history_before == history, f"position {position} holds another sequence's K and V"
            if position >= row.start:
                assert written.token == row.tokens[position - row.start], "a cached token differs from the row's"
            history = extend(history, written.token)
        return history


@dataclass
class _Row:
    start: int
    tokens: list[int]
    slots: list[int]
    table: list[int]
