"""Log-probabilities of prompts are those of transformers' logits, however plans cut prompts and whatever they find
cached; and nothing else that a step does is another for them."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common import messages as m
from common.plan import ExecutorLimits
from common.prompt_targets import PromptTargets
from common.step_result import ResultColumns, parse_result
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.runner.group_runner import pack, unpack
from executor_svc.runner.prompt_logprobs import PromptLogprobs
from executor_svc.runner.runner import Runner
from tests.executor_svc.conftest import Make
from tests.executor_svc.constraint_cases import CASES
from tests.executor_svc.gpu_kernels import start_on_gpu_kernels
from tests.executor_svc.harness import (
    Driver,
    Pool,
    Row,
    cache_of,
    int32,
    make_plan,
    run,
    start,
    through_the_wire,
    with_last_norm,
)
from tests.executor_svc.ranks import CPU, in_threads, start_rank
from tests.support.checkpoints import VOCAB_SIZE, reference_logits
from tests.support.effort import examples

OPTIONS = {"num_blocks": 32, "block_size": 8, "max_num_seqs": 3, "max_batch_tokens": 24, "max_model_len": 64}
BESIDE = [9, 8, 7, 6, 5]  # a prompt whose sequence decodes in every step
MODEL = {"preset": "tiny", "num_layers": 2}

Told = list[tuple[list[int], list[float]]]
"""Ids and log-probabilities of each target."""


@dataclass
class Prompt:
    """Attributes:
    count: log-probabilities of each token.
    cached: leading positions that are in the cache already.
    """

    tokens: list[int]
    count: int
    cached: int


def ask(runner: Runner[Any], limits: ExecutorLimits, rows: list[Row], **asked: Any) -> ResultColumns:
    """Run a plan, and check its result as a scheduler does."""
    columns = through_the_wire(msgspec.structs.replace(make_plan(rows, limits.block_size), **asked), limits)
    result = runner.launch(columns).wait().message(1, 0, compute_us=1)
    samples = len(columns.sample_rows)
    return parse_result(result, samples, limits.vocab_size, columns.logprob_counts, columns.prompt_targets)


def targets_of(prompt: list[int], first: int, end: int, count: int) -> tuple[tuple[int, int, int], ...]:
    """Those of a row that computes positions `first` to `end - 1`."""
    return tuple((p - first, prompt[p + 1], count) for p in range(first, min(end, len(prompt) - 1)))


def told(result: ResultColumns, counts: list[int]) -> Told:
    ends = np.cumsum(counts)[:-1]
    pairs = zip(np.split(result.prompt_logprob_ids, ends), np.split(result.prompt_logprobs, ends), strict=True)
    return [(ids.tolist(), values.tolist()) for ids, values in pairs]


def serve(
    runner: Runner[Any], limits: ExecutorLimits, prompts: list[Prompt], chunks: list[int]
) -> tuple[list[Told], list[int], list[int]]:
    """What is told of two prompts at most, the token after each, and those of the sequence beside them.

    Args:
        chunks: tokens of each step's rows.
    """
    pool = Pool(limits.num_blocks, limits.block_size)
    beside_table, tables = pool.grow([], limits.max_model_len), [pool.grow([], len(each.tokens)) for each in prompts]
    beside = [int(run(runner, [Row(2, BESIDE, len(BESIDE), beside_table)], limits)[0])]
    for lane, prompt in enumerate(prompts):
        for first in range(0, prompt.cached, 20):
            end = min(first + 20, prompt.cached)
            run(runner, [Row(lane, prompt.tokens[first:end], end, tables[lane], sampled=False)], limits)
    published = [block for prompt, table in zip(prompts, tables, strict=True) for block in table[: prompt.cached // 8]]
    before = cache_of(runner)[:, :, published].clone()

    found: list[Told] = [[] for _ in prompts]
    computed, after, step = [0] * len(prompts), [-1] * len(prompts), 0
    while min(after) < 0:
        rows, owners = [Row(2, [-1], len(BESIDE) + len(beside), beside_table)], []
        for lane, prompt in enumerate(prompts):
            first, end = computed[lane], min(computed[lane] + chunks[step % len(chunks)], len(prompt.tokens))
            if first < end:
                targets = targets_of(prompt.tokens, first, end, prompt.count)
                unstored, done = max(prompt.cached - first, 0), end == len(prompt.tokens)
                query = prompt.tokens[first:end]
                rows.append(Row(lane, query, end, tables[lane], unstored=unstored, sampled=done, targets=targets))
                owners.append(lane)
                computed[lane] = end
        result = ask(runner, limits, rows)
        counts = [prompts[lane].count for lane, row in zip(owners, rows[1:], strict=True) for _ in row.targets]
        if counts:
            entries = iter(told(result, counts))
            for lane, row in zip(owners, rows[1:], strict=True):
                found[lane] += [next(entries) for _ in row.targets]
        tokens = iter(result.token_ids.tolist())
        beside.append(next(tokens))
        for lane, row in zip(owners, rows[1:], strict=True):
            if row.sampled:
                after[lane] = next(tokens)
        step += 1
    assert cache_of(runner)[:, :, published].view(torch.int32).equal(before.view(torch.int32))
    return found, after, beside


def assert_told(folder: Path, prompt: Prompt, found: Told) -> None:
    logprobs = reference_logits(folder, prompt.tokens).log_softmax(-1)
    assert len(found) == len(prompt.tokens) - 1
    for row, token, ((minus_rank, *top), values) in zip(logprobs[:-1], prompt.tokens[1:], found, strict=True):
        rank, ids = -minus_rank, [token, *top]
        assert len(ids) == prompt.count
        assert (row > row[token] + 1e-4).sum() < rank <= (row > row[token] - 1e-4).sum(), "of the whole vocabulary"
        assert values == pytest.approx(row[ids].tolist(), abs=1e-4)
        assert len(set(ids[1:])) == prompt.count - 1
        assert values[1:] == pytest.approx(row.topk(prompt.count - 1).values.tolist(), abs=1e-4)
        if token in ids[1:]:
            assert values[0] == values[ids.index(token, 1)], "lm-eval compares them for equality"


@settings(max_examples=examples(60, quick=15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), chunks=st.lists(st.integers(1, 11), min_size=1, max_size=4))
def test_they_are_those_of_transformers(checkpoint: Make, data: st.DataObject, chunks: list[int]) -> None:
    """Prompts in chunks, of which some positions are computed again, beside a row that decodes."""
    folder = checkpoint(**MODEL)
    rng = random.Random(data.draw(st.integers(0, 9)))
    prompts = []
    for _ in range(data.draw(st.integers(1, 2))):
        length = data.draw(st.integers(2, 40))
        cached = data.draw(st.integers(0, length // 8)) * 8
        prompts.append(Prompt(rng.choices(range(VOCAB_SIZE), k=length), data.draw(st.integers(1, 21)), cached))
    runner, limits = start(folder, **OPTIONS)
    found, after, beside = serve(runner, limits, prompts, chunks)
    for prompt, entries, token in zip(prompts, found, after, strict=True):
        assert_told(folder, prompt, entries)
        assert token == reference_logits(folder, prompt.tokens)[-1].argmax()
    assert [beside] == Driver(runner, limits).generate([BESIDE], len(beside))


def test_more_targets_than_logits_and_each_its_own_count(checkpoint: Make) -> None:
    """A plan of nothing but a chunk: 23 targets, three rows of logits, and no sample."""
    folder, tokens = checkpoint(**MODEL), random.Random(4).choices(range(VOCAB_SIZE), k=24)
    runner, limits = start(folder, **OPTIONS)
    targets = tuple((p, tokens[p + 1], 1 + p % 21) for p in range(23) if p not in (2, 11))
    counts = [count for _, _, count in targets]
    result = ask(runner, limits, [Row(0, tokens, 24, [3, 1, 7], sampled=False, targets=targets)])
    logprobs = reference_logits(folder, tokens).log_softmax(-1)
    assert not len(result.token_ids)
    for (at, token, count), ((minus_rank, *top), values) in zip(targets, told(result, counts), strict=True):
        assert -minus_rank == (logprobs[at] >= logprobs[at][token]).sum()
        assert top == logprobs[at].topk(count - 1).indices.tolist()
        assert values == pytest.approx(logprobs[at][[token, *top]].tolist(), abs=1e-4)


def test_a_step_whose_samples_ask_for_something_too(checkpoint: Make) -> None:
    """Each gets what it would get alone."""
    runner, limits = start(checkpoint(**MODEL), **OPTIONS)
    tokens = [5, 6, 7, 8, 9]

    def step(targets: tuple[tuple[int, int, int], ...], asks: bool) -> ResultColumns:
        rows = [Row(lane, tokens[: 5 - lane], 5 - lane, [lane]) for lane in range(3)]
        rows[1].targets = targets
        start = m.LaneStart(lane=0, num_prompt=2, tokens=int32(tokens), constraints=CASES["one token is allowed"])
        asked = {"constrained": int32([0]), "lane_starts": (start,), "logprob_counts": int32([2, 0, 3])}
        return ask(runner, limits, rows, **asked if asks else {})

    targets = targets_of(tokens, 0, 4, 4)
    together, samples, prompts = step(targets, True), step((), True), step(targets, False)
    assert together.token_ids.tolist() == samples.token_ids.tolist()
    assert together.token_ids[0] == 77 != prompts.token_ids[0]
    for name in ("logprob_ids", "logprobs"):
        assert getattr(together, name).tolist() == getattr(samples, name).tolist()
        assert len(getattr(samples, name)) == 5
    for name in ("prompt_logprob_ids", "prompt_logprobs"):
        assert getattr(together, name).tolist() == getattr(prompts, name).tolist()
        assert len(getattr(prompts, name)) == 16


@pytest.mark.parametrize(
    "kernels", ["torch", "C++", pytest.param("Triton", marks=pytest.mark.filterwarnings("ignore::RuntimeWarning"))]
)
def test_the_likeliest_token_has_its_own_log_probability(checkpoint: Make, kernels: str) -> None:
    """Bit for bit: lm-eval takes a target that is below the greatest for one that greedy decoding would not draw."""
    folder = checkpoint(**MODEL)
    if kernels == "Triton":
        runner, limits = start_on_gpu_kernels(folder, [], [])
    elif kernels == "C++":
        runner, limits = start(checkpoint(dtype=torch.bfloat16, **MODEL | {"head_dim": 64}), dtype="auto", num_blocks=8)
    else:
        runner, limits = start(folder, **OPTIONS)
    tokens = [3, 1]
    for _ in range(4):
        tokens += run(runner, [Row(0, tokens, len(tokens), [0])], limits).tolist()
    result = ask(runner, limits, [Row(0, tokens, len(tokens), [1], targets=targets_of(tokens, 0, 5, 3)[1:])])
    for (ids, values), token in zip(told(result, [3] * 4), tokens[2:], strict=True):
        assert ids[:2] == [-1, token]
        assert values[0] == values[1]


def test_equals_are_told_in_the_order_of_their_ids(checkpoint: Make, tmp_path: Path) -> None:
    runner, limits = start(with_last_norm(checkpoint(**MODEL), tmp_path / "model", 0.0), **OPTIONS)
    result = ask(runner, limits, [Row(0, [5, 6], 2, [0], targets=((0, 6, 4), (1, 2, 4)))])
    assert result.prompt_logprob_ids.tolist() == [-VOCAB_SIZE, 0, 1, 2] * 2
    assert result.prompt_logprobs.tolist() == pytest.approx([-np.log(VOCAB_SIZE)] * 8)


@pytest.mark.parametrize("asked", [{}, {"logprob_counts": int32([2])}], ids=["plain", "asking"])
def test_a_model_that_says_nan_gives_minus_infinity(checkpoint: Make, tmp_path: Path, asked: dict[str, bytes]) -> None:
    runner, limits = start(with_last_norm(checkpoint(**MODEL), tmp_path / "model", np.nan), **OPTIONS)
    result = ask(runner, limits, [Row(0, [5, 6], 2, [0], targets=((0, 6, 1), (1, 2, 3)))], **asked)
    assert result.token_ids.tolist() == [m.NO_NUMBERS]
    assert result.prompt_logprob_ids.tolist() == [0, 0, 0, 1]
    assert result.prompt_logprobs.tolist() == [-np.inf] * 4


def test_a_row_of_one_token_is_not_taken_for_a_decode_step(checkpoint: Make) -> None:
    """A prompt's last token but one, which is sampled as well, in a runner that pads decode steps to four rows."""
    folder = checkpoint(**MODEL)
    runner, limits = start_rank(folder, SINGLE_RANK, max_num_seqs=4, decode_sizes=(4,))
    result = ask(runner, limits, [Row(0, [5], 1, [0], targets=((0, 6, 2),))])
    logprobs = reference_logits(folder, [5])[0].log_softmax(-1)
    rank = int((logprobs >= logprobs[6]).sum())
    assert result.prompt_logprob_ids.tolist() == [-rank, int(logprobs.argmax())]
    assert result.token_ids.tolist() == [int(logprobs.argmax())]
    assert result.prompt_logprobs.tolist() == pytest.approx([logprobs[6].item(), logprobs.max().item()], abs=1e-4)


@pytest.mark.parametrize(("size", "vocab_size"), [(2, 301), (3, 130), (4, 37)])
def test_ranks_divide_the_targets(checkpoint: Make, size: int, vocab_size: int) -> None:
    """More of them than rows of logits, and in a second plan fewer than ranks; each rank has all answers."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 48}
    folder = checkpoint(preset="tiny", num_layers=1, vocab_size=vocab_size, **heads)
    tokens = random.Random(1).choices(range(vocab_size), k=24)

    def on_rank(group: RankGroup) -> list[Any]:
        runner, limits = start_rank(folder, group, max_num_seqs=5)
        steps = [
            [Row(4, tokens, 24, [3, 1], targets=targets_of(tokens, 0, 24, 7), sampled=False), Row(1, [2, 3], 2, [5])],
            [Row(2, tokens[:2], 2, [8], targets=((0, tokens[1], 3),))],
        ]
        results = [ask(runner, limits, rows) for rows in steps]
        return [[column.tolist() for column in result] for result in results]

    alone, *ranks = on_rank(SINGLE_RANK), *in_threads(size, on_rank)
    assert ranks == [ranks[0]] * size
    for step, expected in zip(ranks[0], alone, strict=True):
        assert step[0] == expected[0]
        assert step[3] == expected[3]
        assert step[4] == pytest.approx(expected[4], abs=1e-5)


def test_targets_reach_the_other_ranks() -> None:
    limits = ExecutorLimits(**OPTIONS, vocab_size=VOCAB_SIZE, hidden_size=4)
    row = Row(2, [1, 2, 3], 3, [0], targets=((0, 2, 4), (1, 3, 1)), temperature=1.0, seed=2**60 + 1)
    sent = through_the_wire(make_plan([row], 8), limits)
    received = unpack(pack(sent))
    assert sent.prompt_targets is not None
    assert received.prompt_targets is not None
    for name in ("tokens", "targets", "counts"):
        assert getattr(received.prompt_targets, name).tolist() == getattr(sent.prompt_targets, name).tolist()
    assert received.sampling is not None
    assert received.sampling.seeds.tolist() == [2**60 + 1]
    row.targets = ()
    assert unpack(pack(through_the_wire(make_plan([row], 8), limits))).prompt_targets is None


@given(
    max_num_seqs=st.integers(1, 300),
    max_batch_tokens=st.sampled_from([1, 2, 5, 300, 6241, 6242, 8192, 140_000]),
    count=st.integers(1, m.MAX_LOGPROBS),
    one_less=st.booleans(),
)
def test_there_is_room_for_the_most_targets(
    max_num_seqs: int, max_batch_tokens: int, count: int, one_less: bool
) -> None:
    limits = ExecutorLimits(8, 16, max_num_seqs, max_batch_tokens, 2**18, VOCAB_SIZE, 4)
    most = min(max_batch_tokens, m.MAX_PLAN_PROMPT_LOGPROBS // count)
    tokens = np.arange(max(1, most - one_less), dtype=np.int32)
    room = PromptLogprobs(limits, CPU)
    staged = room.stage(PromptTargets(tokens, tokens[::-1] % VOCAB_SIZE, np.full(len(tokens), count, np.int32)))
    assert room._arena.holds(staged.targets)
    assert staged.tokens.tolist() == tokens.tolist()
    assert staged.out.chosen.shape == tokens.shape
    for both in (staged.out.top, staged.out.top_ids):
        assert both.shape == (len(tokens), count - 1)
        assert both.is_contiguous()


def test_a_step_whose_result_was_taken_keeps_its_tokens_only(checkpoint: Make) -> None:
    """A grammar's thread may keep a lane's last step for as long as nobody else holds the lane."""
    runner, limits = start(checkpoint(**MODEL), **OPTIONS)
    tokens = [5, 6, 7, 8]
    plan = make_plan([Row(0, tokens, 4, [0], targets=targets_of(tokens, 0, 4, 21))], limits.block_size)
    pending = runner.launch(through_the_wire(plan, limits))
    result = pending.wait()
    assert len(result.prompt_logprobs) == 63
    assert pending.token_ids().tolist() == result.token_ids.tolist()
    kept = [value for value in vars(pending).values() if value is not None]
    assert sum(getattr(value, "nbytes", 0) for value in kept) == 4
    assert pending._copies is None
