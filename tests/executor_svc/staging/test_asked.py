"""What stays on the device between steps is what would be brought there anew."""

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.constraints import StartedLane
from common.plan import ExecutorLimits, PlanColumns
from common.wire import IntArray
from executor_svc.runner.trial_plans import trial_plan
from executor_svc.staging.asked import AskedStager, SampleOrder
from executor_svc.staging.constrained_lanes import ConstrainedLane, ConstrainedLanes, LaneMasks, packed_mask
from kernels.arguments import Adjustments
from tests.support.effort import examples

CPU = torch.device("cpu")
NUM_LANES, VOCAB = 5, 70
LIMITS = ExecutorLimits(
    num_blocks=9,
    block_size=16,
    max_num_seqs=NUM_LANES,
    max_batch_tokens=NUM_LANES,
    max_model_len=99,
    vocab_size=VOCAB,
    hidden_size=4,
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=4, unique=True)


def ints(values: list[int]) -> bytes:
    return array("i", values).tobytes()


@st.composite
def constraints(draw: st.DrawFn) -> m.Constraints:
    biased = draw(TOKENS)
    return m.Constraints(
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.5])),
        bias_token_ids=ints(biased),
        biases=array("f", [0.5 + token for token in biased]).tobytes(),
        bad_words=tuple(ints(word) for word in draw(st.lists(TOKENS.filter(bool), max_size=2))),
        allowed_token_ids=ints(draw(st.one_of(st.just([]), TOKENS))),
        min_tokens=draw(st.sampled_from([0, 1, 3])),
        grammar=draw(st.sampled_from(["", "", "one"])),
    )


ROWS = st.fixed_dictionaries(
    {
        "lane": st.integers(0, NUM_LANES - 1),
        "asked": constraints(),
        "starts": st.booleans(),
        "logprobs": st.integers(0, 2),
    }
)
STEPS = st.fixed_dictionaries(
    {
        "next_epoch": st.sampled_from([False, False, False, True]),
        "rows": st.lists(ROWS, max_size=NUM_LANES, unique_by=lambda row: row["lane"]),
        "again": st.sampled_from(["no", "the same", "reversed", "one is started"]),  # the lanes of the step before
        "asked": constraints(),
        "seed": st.integers(0, 9),
    }
)


class Plans:
    """Plans of lanes that are started before they go on, in each epoch."""

    def __init__(self) -> None:
        self.epoch = 1
        self.lengths: dict[int, int] = {}

    def plan(self, step: dict[str, Any], rows: list[dict[str, Any]]) -> PlanColumns:
        """Constrained rows."""
        if step["next_epoch"]:
            self.epoch += 1
            self.lengths.clear()
        starts = []
        for row in rows:
            lane = row["lane"]
            if row["starts"] or lane not in self.lengths:
                self.lengths[lane] = 4
                start = m.LaneStart(
                    lane=lane, num_prompt=3, tokens=bytes(16), constraints=row["asked"], stop_token_ids=ints([5, 6])
                )
                starts.append(StartedLane.of(start))
        lengths = [self.lengths[row["lane"]] for row in rows]
        for row in rows:
            self.lengths[row["lane"]] += 1
        columns = trial_plan([1] * len(rows), LIMITS.block_size, [length - 1 for length in lengths])
        return replace(
            columns,
            lanes=np.array([row["lane"] for row in rows], np.int32),
            constrained=np.arange(len(rows), dtype=np.int32),
            logprob_counts=np.array([row["logprobs"] for row in rows], np.int32),
            lane_starts=tuple(starts),
            epoch=self.epoch,
        )


def of_grammars(lanes: list[ConstrainedLane], seed: int) -> LaneMasks | None:
    """Masks at random, as `GrammarMasks` gives them."""
    numbers = [lane.start.message.lane for lane in lanes if lane.start.message.constraints.grammar]
    masks = np.random.default_rng(seed).integers(-(2**31), 2**31, (len(numbers), 3)).astype(np.int32)
    return LaneMasks(masks, {number: row for row, number in enumerate(numbers)}) if numbers else None


def said(adjustments: Adjustments) -> dict[str, Any]:
    """Read adjustments, wherever their values stand; numbers as bits."""
    found: dict[str, Any] = {
        name: (column.dtype, column.view(torch.int32).tolist())
        for name, column in vars(adjustments).items()
        if name not in ("masks", "mask_rows")
    }
    rows = adjustments.mask_rows.tolist()
    return found | {"masks": [None if row < 0 else adjustments.masks[row].tolist() for row in rows]}


def wanted(lane: ConstrainedLane, length: int, grammars: LaneMasks | None) -> dict[str, Any]:
    """What a row of `length` tokens should be asked, by what its lane's start said."""
    message, arrays = lane.start.message, lane.start.arrays
    asked, number = message.constraints, message.lane
    mask: IntArray | None = packed_mask(arrays.allowed_token_ids, VOCAB) if asked.allowed_token_ids else None
    if grammars is not None and number in grammars.rows:
        mask = grammars.masks[grammars.rows[number]]
    biases = dict(zip(arrays.bias_token_ids.tolist(), arrays.biases.tolist(), strict=True))
    if length - message.num_prompt < asked.min_tokens:
        biases |= dict.fromkeys(lane.start.stop_token_ids.tolist(), -np.inf)
    return {
        "lane": number,
        "length": length,
        "penalties": (message.num_prompt, asked.presence_penalty, asked.frequency_penalty, asked.repetition_penalty),
        "mask": None if mask is None else mask.tolist(),
        "biases": biases,
        "words": [word.tolist() for word in arrays.bad_words],
    }


def rows_of(adjustments: Adjustments) -> list[dict[str, Any]]:
    """Read what adjustments ask of each row, likewise."""
    of = {name: column.tolist() for name, column in vars(adjustments).items()}
    offsets, words = of["word_offsets"], of["word_tokens"]
    ends = list(zip(of["bias_starts"], of["bias_starts"][1:], of["word_starts"], of["word_starts"][1:], strict=False))
    penalties = zip(of["num_prompts"], of["presences"], of["frequencies"], of["repetitions"], strict=True)
    masks = [None if row < 0 else of["masks"][row] for row in of["mask_rows"]]
    return [
        {
            "lane": of["lanes"][row],
            "length": of["lengths"][row],
            "penalties": of_row,
            "mask": masks[row],
            "biases": dict(zip(of["bias_ids"][first:end], of["biases"][first:end], strict=True)),
            "words": [words[offsets[word] : offsets[word + 1]] for word in range(first_word, end_word)],
        }
        for row, (of_row, (first, end, first_word, end_word)) in enumerate(zip(penalties, ends, strict=True))
    ]


@given(steps=st.lists(STEPS, min_size=1, max_size=12))
@settings(max_examples=examples(200))
def test_what_stays_is_what_would_be_brought_anew(steps: list[dict[str, Any]]) -> None:
    """Lanes start, go on, are started again, end and come back in another epoch; grammars' masks change each step."""
    plans, known = Plans(), ConstrainedLanes(VOCAB)
    stager = AskedStager(LIMITS, CPU)
    rows: list[dict[str, Any]] = []
    for step in steps:
        if step["again"] == "no":
            rows = step["rows"]
        elif step["again"] == "reversed":
            rows = rows[::-1]
        elif step["again"] == "one is started" and rows:
            rows = [{**rows[0], "starts": True, "asked": step["asked"]}, *rows[1:]]
        if not rows:
            continue
        columns = plans.plan(step, rows)
        lanes, order = known.take(columns), SampleOrder.of(columns)
        grammars = of_grammars(lanes, step["seed"])
        kept = stager.stage(columns, lanes, order, grammars)
        anew = AskedStager(LIMITS, CPU).stage(columns, lanes, order, grammars)
        assert kept.adjustments is not None
        assert anew.adjustments is not None
        assert said(kept.adjustments) == said(anew.adjustments)
        asked = zip(lanes, columns.context_lens.tolist(), strict=True)
        expected = [wanted(lane, length, grammars) for lane, length in asked]
        assert rows_of(kept.adjustments) == [expected[sample] for sample in order.samples.tolist()]
        rows = [{**row, "starts": False} for row in rows]


def test_a_step_of_the_same_lanes_brings_lengths_alone() -> None:
    """Of 256 rows with lists these are 2 kB; the lists take 5 MB."""
    plans, known, stager = Plans(), ConstrainedLanes(VOCAB), AskedStager(LIMITS, CPU)
    asked = m.Constraints(allowed_token_ids=ints([1, 2]), bad_words=(ints([3]),), min_tokens=3)
    rows = [{"lane": lane, "asked": asked, "starts": False, "logprobs": 1} for lane in range(NUM_LANES)]
    brought = []
    for _ in range(5):
        columns = plans.plan({"next_epoch": False}, rows)
        stager._lists._buffer.fill_(-7)
        stager._masks.fill_(-7)
        stager.stage(columns, known.take(columns), SampleOrder.of(columns), None)
        brought.append(tuple(bool((tensor != -7).any()) for tensor in (stager._lists._buffer, stager._masks)))
    # The third step's sequences have their `min_tokens`, and so other biases.
    assert brought == [(True, True), (False, False), (True, False), (False, False), (False, False)]


def test_executors_of_many_lanes_pin_memory_for_some_of_their_masks() -> None:
    """Three steps' copies are pinned, rounded up to powers of two: of 8,192 masks of Qwen3 these would be 1.5 GB."""
    sizes = [
        AskedStager(replace(LIMITS, max_num_seqs=rows, vocab_size=64_000), CPU).copied_bytes() for rows in (512, 700)
    ]
    assert sizes[0][-1] == sizes[1][-1] == 512 * 64_000 // 8
