"""Rows of which the model's scores are no numbers say so, whatever they ask for; they are told from banned ones."""

import itertools
from array import array
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLMatcher

from common import messages as m
from common.plan import ExecutorLimits
from common.step_result import ResultColumns, parse_result
from executor_svc.model.rank_group import RankGroup
from executor_svc.runner.runner import Runner
from kernels import reference
from tests.executor_svc.conftest import Make
from tests.executor_svc.gpu_kernels import start_on_gpu_kernels
from tests.executor_svc.harness import Row, int32, make_plan, start, through_the_wire
from tests.executor_svc.ranks import in_threads, start_rank

TOKEN = 100  # the one that is strange, and that constraints ask something of
PROMPT = [1, 2, TOKEN]
SMALL = {"preset": "tiny", "num_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
INTERPRETED = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow|All-NaN).* encountered:RuntimeWarning")
ASKED = {
    "bias": m.Constraints(bias_token_ids=int32([TOKEN]), biases=array("f", [2.0]).tobytes()),
    "penalties": m.Constraints(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.3),
    "allowed": m.Constraints(allowed_token_ids=int32([*range(TOKEN), TOKEN + 1])),
    "bad words": m.Constraints(bad_words=(int32([TOKEN]),)),
    "min_tokens": m.Constraints(min_tokens=9),
    "grammar": m.Constraints(grammar=LLMatcher.grammar_from_regex("[a-z ]+")),
    "all are banned": m.Constraints(allowed_token_ids=int32([7]), bad_words=(int32([7]),)),
}


def ask(
    runner: Runner[Any],
    limits: ExecutorLimits,
    questions: list[m.Constraints],
    temperature: float,
    strange: float | None,
    epoch: int,
) -> list[ResultColumns]:
    """Two steps, checked as schedulers check them; the second is launched before the first one's tokens are known.

    In both a row is plain, and one asks each question; in the first the model says `strange` in place of a score, or
    of all if that is -inf.
    """
    model, lanes = runner._model, range(1 + len(questions))
    compute_logits = model.compute_logits

    def strangely(hidden_states: torch.Tensor, tokens: torch.Tensor) -> None:
        compute_logits(hidden_states, tokens)
        column = TOKEN - model._shard.vocab.start
        if strange == -np.inf:
            model.logits(len(tokens)).fill_(strange)
        elif strange is not None and 0 <= column < len(model._shard.vocab):
            model.logits(len(tokens))[:, column] = strange

    starts = tuple(
        m.LaneStart(lane=lane, num_prompt=3, tokens=int32(PROMPT), constraints=asked, stop_token_ids=int32([TOKEN]))
        for lane, asked in enumerate(questions, start=1)
    )
    launched = []
    for step, tokens in enumerate([PROMPT, [-1]]):
        rows = [Row(lane, tokens, 3 + step, [lane], temperature=temperature, seed=3) for lane in lanes]
        plan = msgspec.structs.replace(
            make_plan(rows, limits.block_size, epoch=epoch, step=step),
            constrained=int32([*lanes][1:]),
            lane_starts=starts if step == 0 else (),
            logprob_counts=int32([2 for _ in lanes]),
        )
        model.compute_logits = strangely if step == 0 else compute_logits  # type: ignore[method-assign]
        columns = through_the_wire(plan, limits)
        launched.append((runner.launch(columns), columns.logprob_counts))
    return [
        parse_result(pending.wait().message(epoch, 0, compute_us=1), len(lanes), limits.vocab_size, counts)
        for pending, counts in launched
    ]


def check(
    runner: Runner[Any],
    limits: ExecutorLimits,
    temperatures: tuple[float, ...] = (0.0, 0.9),
    said: tuple[float | None, ...] = (np.nan, np.inf, -np.inf, None),
) -> None:
    """What a model may say, with every question that this executor can be asked."""
    asked = [(name, each) for name, each in ASKED.items() if name != "grammar" or runner._asked_steps._grammars]
    size = limits.max_num_seqs - 1
    batches = [dict(asked[first : first + size]) for first in range(0, len(asked), size)]
    cases = itertools.product(batches, temperatures, said)
    for epoch, (questions, temperature, strange) in enumerate(cases, start=1):
        first, second = ask(runner, limits, [*questions.values()], temperature, strange, epoch)
        names = ["plain", *questions]
        for name, token, later in zip(names, first.token_ids.tolist(), second.token_ids.tolist(), strict=True):
            case = (name, temperature, strange)
            if strange is not None and (strange != -np.inf or name == "plain"):
                assert token == m.NO_NUMBERS, case
            elif strange is not None or name == "all are banned":
                assert token == m.NO_TOKEN, case
            else:
                assert token >= 0, case
            assert later == m.NO_TOKEN if name == "all are banned" else later >= 0, case


def test_kernels_and_messages_have_the_same_names() -> None:
    assert (reference.NO_TOKEN, reference.NO_NUMBERS) == (m.NO_TOKEN, m.NO_NUMBERS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"], ids=["torch", "C++"])
def test_on_a_cpu(dtype: str) -> None:
    check(*start(None, num_blocks=32, max_num_seqs=9, max_batch_tokens=64, max_model_len=64, dtype=dtype))


@pytest.mark.slow
@INTERPRETED
def test_on_the_kernels_of_a_gpu(checkpoint: Make) -> None:
    check(*start_on_gpu_kernels(checkpoint(**SMALL), [], []), temperatures=(0.9,), said=(np.nan, -np.inf))


@pytest.mark.parametrize(("size", "decode_sizes"), [(2, ()), (3, (4, 8))])
def test_in_a_group(checkpoint: Make, size: int, decode_sizes: tuple[int, ...]) -> None:
    folder = checkpoint(**SMALL | {"num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 48})

    def on_rank(group: RankGroup) -> None:
        check(*start_rank(folder, group, decode_sizes=decode_sizes))

    in_threads(size, on_rank)


# --- pooled results ---


def check_pooled(runner: Runner[Any], limits: ExecutorLimits) -> None:
    """A row that computes with what is no number has a result that shows it; its neighbours have theirs."""
    for strange, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        with torch.inference_mode():
            runner._model._embedding[strange, 3] = value
        rows = [
            Row(lane, [token], 1, [lane], sampled=False, pooled=pooled)
            for lane, (token, pooled) in enumerate(itertools.product((strange, 9), ((), (TOKEN, 20))))
        ]
        columns = through_the_wire(make_plan(rows, limits.block_size), limits)
        states, logits, own_states, own_logits = np.split(
            runner.launch(columns).wait().pooled, np.cumsum([limits.hidden_size, 2, limits.hidden_size])
        )
        assert not np.isfinite(states).all()
        assert not np.isfinite(logits).any()
        assert np.isfinite([*own_states, *own_logits]).all()


EVERY = {"tasks": ("generate", "embed", "score")}


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {}, {"quantization": "int8"}], ids=["torch", "C++", "int8"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_pooled_on_a_cpu(checkpoint: Make, options: dict[str, str], tied: bool) -> None:
    folder = checkpoint(**SMALL, tied=tied, dtype=torch.bfloat16)
    check_pooled(*start(folder, **{"num_blocks": 32, "max_model_len": 64, "dtype": "auto", **EVERY, **options}))


@INTERPRETED
def test_pooled_on_the_kernels_of_a_gpu(checkpoint: Make) -> None:
    check_pooled(*start_on_gpu_kernels(checkpoint(**SMALL), [], []))
