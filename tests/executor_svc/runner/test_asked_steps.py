"""Constraints and log-probabilities: those of transformers' logits and of the definitions, and exact across a swap."""

import math
import random
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common import messages as m
from common.errors import WireError
from common.plan import ExecutorLimits, parse_plan
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.runner.group_runner import pack, unpack
from tests.executor_svc.conftest import Make
from tests.executor_svc.constraint_cases import CASES, EVERYTHING, constraints, ints
from tests.executor_svc.harness import Row, make_plan, start, with_last_norm
from tests.executor_svc.ranks import in_threads, start_rank
from tests.support.checkpoints import VOCAB_SIZE, reference_model
from tests.support.effort import examples
from tests.support.in_process import Answer, Answers, serve, submit

OPTIONS = {"num_blocks": 48, "max_num_seqs": 6, "max_batch_tokens": 24, "max_model_len": 96}


def adjusted(
    logits: np.ndarray, prompt: list[int], output: list[int], asked: m.Constraints, stops: tuple[int, ...]
) -> np.ndarray:
    """vLLM's definitions, written down again in float64."""
    scores = logits.astype(np.float64).copy()
    if asked.allowed_token_ids:
        banned = np.ones(len(scores), bool)
        banned[np.frombuffer(asked.allowed_token_ids, "<i4")] = False
        scores[banned] = -math.inf
    for word in (np.frombuffer(raw, "<i4").tolist() for raw in asked.bad_words):
        if len(word) == 1 or output[-(len(word) - 1) :] == word[:-1]:
            scores[word[-1]] = -math.inf
    if len(output) < asked.min_tokens:
        scores[list(stops)] = -math.inf
    biases = np.frombuffer(asked.biases, "<f4").tolist()
    for token, bias in zip(np.frombuffer(asked.bias_token_ids, "<i4").tolist(), biases, strict=True):
        scores[token] += bias
    for token in {*prompt, *output}:
        scores[token] *= asked.repetition_penalty if scores[token] <= 0 else 1 / asked.repetition_penalty
    for token, count in Counter(output).items():
        scores[token] -= asked.frequency_penalty * count + asked.presence_penalty
    return scores


@torch.inference_mode()
def reference(folder: Path, prompt: list[int], params: m.SamplingParams) -> Answer:
    """A greedy answer from transformers' logits."""
    model = reference_model(folder)
    answer = Answer()
    for _ in range(params.max_tokens):
        tokens = torch.tensor([[*prompt, *answer.tokens]])
        logits = model(tokens).logits[0, -1].float()
        raw = logits.double().log_softmax(-1).numpy()
        scores = logits.numpy()
        if params.constraints is not None:
            scores = adjusted(scores, prompt, answer.tokens, params.constraints, params.stop_token_ids)
        token = int(scores.argmax())
        top = np.argsort(-raw, kind="stable")[: max(0, params.logprobs - 1)].tolist()
        entries = [token, *top][: params.logprobs]
        answer.tokens.append(token)
        answer.logprob_ids += entries
        answer.logprobs += raw[entries].tolist()
        if token in params.stop_token_ids:
            break
    return answer


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_tokens_and_log_probabilities_are_those_of_the_definitions(checkpoint: Make, asked: m.Constraints) -> None:
    folder = checkpoint(preset="tiny")
    rng = random.Random(3)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 9, 30)]
    requests = [submit(str(i), prompt, 14, logprobs=i * 10, constraints=asked) for i, prompt in enumerate(prompts)]
    answers = serve([start(folder, **OPTIONS)], [*requests, submit("plain", prompts[1], 14, logprobs=3)])
    for request, prompt in zip(requests, prompts, strict=True):
        assert_close(answers[request.request_id, 0], reference(folder, prompt, request.params))
    plain = m.SamplingParams(max_tokens=14, logprobs=3)
    assert_close(answers["plain", 0], reference(folder, prompts[1], plain))


def assert_close(answer: Answer, expected: Answer) -> None:
    assert answer.tokens == expected.tokens
    assert answer.logprob_ids == expected.logprob_ids
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_stop_tokens_are_banned_before_there_are_min_tokens(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny")
    runner = start(folder, **OPTIONS)
    free = serve([runner], [submit("a", [1, 2, 3], 12)])["a", 0].tokens
    stop = free[0]
    early = serve([runner], [submit("a", [1, 2, 3], 12, stop_token_ids=(stop,))])["a", 0]
    assert early.tokens == [stop]
    params = {"stop_token_ids": (stop,), "constraints": constraints(min_tokens=5)}
    late = serve([runner], [submit("a", [1, 2, 3], 12, **params)])["a", 0]
    assert stop not in late.tokens[:5]
    assert_close(late, reference(folder, [1, 2, 3], submit("a", [1], 12, **params).params))


MIXED = [
    submit("penalties", range(10, 35), 18, n=2, temperature=1.0, seed=5, constraints=EVERYTHING, logprobs=4),
    submit("same prompt", range(10, 35), 18, temperature=0.9, top_p=0.9, seed=1, constraints=CASES["penalties"]),
    submit("plain", range(10, 32), 20, logprobs=21),
    submit("nothing", range(3), 25, temperature=1.0, seed=9),
    submit("bias", [9] * 20, 15, temperature=1.0, seed=2, constraints=CASES["biases"], logprobs=1),
]


@settings(max_examples=examples(25, quick=6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    window=st.sampled_from([1, 2]),
    lost_at=st.sets(st.integers(1, 40), max_size=4),
    joins=st.lists(st.integers(0, 12), max_size=len(MIXED)),
    num_blocks=st.sampled_from([9, 12, 48]),
)
def test_no_answer_depends_on_swaps_preemptions_or_neighbours(
    checkpoint: Make, window: int, lost_at: set[int], joins: list[int], num_blocks: int
) -> None:
    """Token for token, and log-probabilities within 1e-4; small pools preempt, equal prompts share blocks."""
    folder = checkpoint(preset="tiny")
    alone = _alone(folder)
    small = OPTIONS | {"num_blocks": num_blocks, "max_model_len": 64, "block_size": 8}
    runners = [start(folder, **small), start(folder, **small | {"max_batch_tokens": 11})]
    answers = serve(runners, MIXED, window=window, lost_at=lost_at, joins=joins)
    assert answers.keys() == alone.keys()
    for key, answer in answers.items():
        assert_close(answer, alone[key])


_undisturbed: dict[Path, dict[tuple[str, int], Answer]] = {}


def _alone(folder: Path) -> dict[tuple[str, int], Answer]:
    """Each request by itself, and nothing happens to it."""
    if folder not in _undisturbed:
        runner = start(folder, **OPTIONS)
        _undisturbed[folder] = {
            key: answer for request in MIXED for key, answer in serve([runner], [request], window=1).items()
        }
    return _undisturbed[folder]


def test_a_row_whose_tokens_are_all_banned_ends_with_an_error(checkpoint: Make) -> None:
    """And its neighbour goes on."""
    nothing = constraints(allowed_token_ids=[7], bad_words=[[7]])
    requests = [submit("none", [1, 2], 9, constraints=nothing, logprobs=3), submit("other", [1, 2], 9)]
    runner = start(checkpoint(preset="tiny"), **OPTIONS)
    answers = serve([runner], requests)
    end = answers["none", 0].end
    assert end is not None
    assert (end.reason, end.code, answers["none", 0].tokens) == ("error", "no_token", [])
    assert answers["other", 0].tokens == serve([runner], requests[1:])["other", 0].tokens


@pytest.mark.parametrize("asked", [None, EVERYTHING], ids=["plain", "constrained"])
def test_a_model_that_says_nan_twice_gives_an_end_and_no_token(
    checkpoint: Make, tmp_path: Path, asked: m.Constraints | None
) -> None:
    runner, limits = start(with_last_norm(checkpoint(preset="tiny"), tmp_path / "model", math.nan), **OPTIONS)
    answers = serve([(runner, limits)], [submit("a", [1, 2], 9, constraints=asked, temperature=1.0, logprobs=2)])
    assert answers["a", 0].tokens == []
    assert answers["a", 0].end is not None
    assert answers["a", 0].end.code == "internal_error", "whatever its constraints would have allowed"


def test_a_plan_that_reads_a_lane_which_was_never_started_is_refused(checkpoint: Make) -> None:
    """As is one of another epoch than the start, and one that counts other tokens."""
    runner, limits = start(checkpoint(preset="tiny"), **OPTIONS)
    lane_start = m.LaneStart(lane=2, num_prompt=3, tokens=ints(1, 2, 3), constraints=EVERYTHING)

    def plan(tokens: list[int], length: int, epoch: int, *starts: m.LaneStart) -> m.Plan:
        made = make_plan([Row(2, tokens, length, [0])], limits.block_size, epoch=epoch)
        return msgspec.structs.replace(made, constrained=ints(0), lane_starts=starts)

    def run(plan: m.Plan) -> None:
        runner.launch(parse_plan(plan, limits)).wait()

    with pytest.raises(WireError, match="lane 2 has constraints, and was never started in epoch 1"):
        run(plan([1, 2, 3], 3, 1))
    run(plan([1, 2, 3], 3, 1, lane_start))
    run(plan([-1], 4, 1))
    with pytest.raises(WireError, match="lane 2 has 5 tokens since its start, the plan says 6"):
        run(plan([-1], 6, 1))
    with pytest.raises(WireError, match="never started in epoch 2"):
        run(plan([-1], 5, 2))


@pytest.mark.parametrize(("size", "decode_sizes"), [(1, (4, 8)), (2, ()), (3, (4, 8)), (4, ())])
def test_ranks_of_a_group_and_padded_plans(checkpoint: Make, size: int, decode_sizes: tuple[int, ...]) -> None:
    """Each rank plans for itself, and so must come to the same tokens; the ranks divide the rows of all kinds."""
    config = {"num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 48, "vocab_size": VOCAB_SIZE}
    folder = checkpoint(preset="tiny", num_layers=2, **config)
    expected = serve([start(folder, **OPTIONS)], MIXED)

    def on_rank(group: RankGroup) -> Answers:
        return serve([start_rank(folder, group, max_num_seqs=8, decode_sizes=decode_sizes)], MIXED)

    for answers in in_threads(size, on_rank) if size > 1 else [on_rank(SINGLE_RANK)]:
        assert answers.keys() == expected.keys()
        for key, answer in answers.items():
            assert_close(answer, expected[key])


def test_a_plan_reaches_the_other_ranks_with_all_that_it_asks_for() -> None:
    row, limits = (
        Row(2, [1, 2, 3], 3, [0]),
        ExecutorLimits(**OPTIONS, block_size=16, vocab_size=VOCAB_SIZE, hidden_size=4),
    )
    start = m.LaneStart(lane=2, num_prompt=3, tokens=ints(1, 2, 3), constraints=EVERYTHING, stop_token_ids=ints(4))
    asked = {"constrained": ints(0), "lane_starts": (start,), "logprob_counts": ints(5)}
    for plan in (make_plan([row], 16), msgspec.structs.replace(make_plan([row], 16, epoch=2**53), **asked)):
        sent = parse_plan(plan, limits)
        received = unpack(pack(sent))
        assert received.epoch == sent.epoch
        assert received.constrained.tolist() == sent.constrained.tolist()
        assert received.logprob_counts.tolist() == sent.logprob_counts.tolist()
        assert [lane.message for lane in received.lane_starts] == [lane.message for lane in sent.lane_starts]
