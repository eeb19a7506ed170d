"""What holds for every family of models: transformers' own class says what is right."""

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from common.plan import ExecutorLimits
from executor_svc.model.rank_group import SINGLE_RANK
from executor_svc.runner.runner import Runner
from tests.executor_svc.conftest import Make
from tests.executor_svc.gpu_kernels import assert_same_tokens, start_on_gpu_kernels
from tests.executor_svc.harness import Driver, Pool, Row, logits, make_plan, needs_cpp, start, through_the_wire
from tests.executor_svc.ranks import generate, in_threads
from tests.executor_svc.recorded import record
from tests.support.checkpoints import VOCAB_SIZE, reference_logits, reference_model

LENGTH, PROMPT, CHUNK = 80, 65, 23
NEW_TOKENS = 10


class FamilyChecks:
    """Base of a family's tests.

    Attributes:
        SHAPES: arguments of `make_checkpoint` by names: one for each way in which the family's models differ.
        PLAIN: names of the shapes that have no kernels, so that plain torch computes them; tests with a `kernels_shape`
            take the others.
        RANKS: of each shape that is cut, into how many parts.
    """

    SHAPES: ClassVar[dict[str, dict[str, Any]]]
    PLAIN: ClassVar[tuple[str, ...]] = ()
    RANKS: ClassVar[dict[str, int]]

    def test_logits_are_those_of_transformers(self, checkpoint: Make, shape: dict[str, Any]) -> None:
        """Of a prompt in chunks, and of one token at a time, beside another row."""
        folder = checkpoint(**shape)
        tokens = drawn_tokens()
        expected = reference_logits(folder, tokens)
        assert (teacher_forced(folder, tokens, dtype="float32") - expected).abs().max() < 1e-4

    def test_embeddings_are_those_of_transformers(self, checkpoint: Make, shape: dict[str, Any]) -> None:
        folder = checkpoint(**shape)
        tokens = drawn_tokens()
        with torch.inference_mode():
            expected = reference_model(folder).model(torch.tensor([tokens])).last_hidden_state[0, -1]
        runner, limits = start_short(folder, tasks=("embed",))
        row = Row(0, tokens, LENGTH, Pool(24, 16).grow([], LENGTH), sampled=False, pooled=())
        found = runner.launch(through_the_wire(make_plan([row], limits.block_size), limits)).wait().pooled
        assert np.abs(found - expected.numpy()).max() < 1e-4

    @needs_cpp
    def test_in_bfloat16_no_further_from_float32_than_transformers(
        self, checkpoint: Make, shape: dict[str, Any]
    ) -> None:
        folder = checkpoint(**shape, dtype=torch.bfloat16)
        tokens = drawn_tokens()
        exact = reference_logits(folder, tokens, torch.float32)
        theirs = (reference_logits(folder, tokens, torch.bfloat16) - exact).abs()
        ours = (teacher_forced(folder, tokens, dtype="bfloat16") - exact).abs()
        assert ours.mean() <= 1.3 * theirs.mean()
        assert ours.max() <= 3 * theirs.max()

    @needs_cpp
    @pytest.mark.slow
    def test_a_plan_may_be_cut_anywhere(self, checkpoint: Make, kernels_shape: dict[str, Any]) -> None:
        """The same tokens in any batch, and after any cut: what a failover computes again is what there was."""
        folder = checkpoint(**kernels_shape, dtype=torch.bfloat16)
        rng = random.Random(1)
        prompts = [rng.choices(range(VOCAB_SIZE), k=length) for length in (1, 5, 16, 33, 60)]
        for options in ({}, {"quantization": "int8"}):
            runner, limits = start_short(folder, dtype="bfloat16", num_blocks=64, **options)
            whole = Driver(runner, limits).generate(prompts, NEW_TOKENS)
            assert Driver(runner, limits, chunk=7, read_lanes=False).generate(prompts, NEW_TOKENS) == whole
            assert [Driver(runner, limits).generate([prompt], NEW_TOKENS)[0] for prompt in prompts] == whole

    @needs_cpp
    def test_int8_is_close_to_float32(self, checkpoint: Make, kernels_shape: dict[str, Any]) -> None:
        folder = checkpoint(**kernels_shape, dtype=torch.bfloat16)
        tokens = drawn_tokens()
        exact = reference_logits(folder, tokens, torch.float32)
        error = teacher_forced(folder, tokens, dtype="bfloat16", quantization="int8") - exact
        assert error.std() < 0.08 * exact.std()

    def test_ranks_give_the_tokens_of_one(self, checkpoint: Make) -> None:
        for name, size in self.RANKS.items():
            folder = checkpoint(**self.SHAPES[name])
            prompts = [drawn_tokens()[:length] for length in (1, 16, 40)]
            expected = generate(SINGLE_RANK, folder, prompts, NEW_TOKENS, {})
            cut = in_threads(
                size, lambda group, folder=folder, prompts=prompts: generate(group, folder, prompts, NEW_TOKENS, {})
            )
            assert cut == [expected] * size

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")
    def test_whole_steps_on_the_gpu_s_kernels(self, checkpoint: Make) -> None:
        """Tokens of recorded steps of the first shape are those of plain torch."""
        folder = checkpoint(**next(iter(self.SHAPES.values())))
        steps = record(folder)
        assert_same_tokens(*start_on_gpu_kernels(folder, [2, 4], [8, 16, 24]), steps)


def drawn_tokens() -> list[int]:
    """A text of `LENGTH` tokens."""
    return random.Random(0).choices(range(VOCAB_SIZE), k=LENGTH)


def start_short(folder: Path, **options: Any) -> tuple[Runner[Any], ExecutorLimits]:
    """A runner of contexts within every shape's sliding window, and within LongRoPE's first factors."""
    return start(folder, **{"num_blocks": 24, "max_model_len": 384, **options})


def teacher_forced(folder: Path, tokens: list[int], **options: Any) -> torch.Tensor:
    """Scores after every token: the prompt in chunks, the rest one by one; a second row is there all the time."""
    runner, limits = start_short(folder, **options)
    pool = Pool(24, 16)
    table, other = pool.grow([], LENGTH), pool.grow([], LENGTH)
    pieces, begin = [], 0
    for end in [*range(CHUNK, PROMPT, CHUNK), *range(PROMPT, LENGTH + 1)]:
        rows = [Row(1, tokens[begin:end][::-1], end, other), Row(0, tokens[begin:end], end, table)]
        pieces.append(logits(runner, rows, limits)[end - begin :])
        begin = end
    return torch.cat(pieces)
