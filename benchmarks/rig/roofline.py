"""The least that a run of steps has to move and to compute, and how long that takes at the measured ceilings.

The work is counted from the steps that ran. Each step reads every weight once and the keys and values of each row's
context once, and writes the keys and values of its tokens. Activations, logits and the sampler's inputs are left out,
so a real step moves more. Only the operations of matrix products and attention count. A step takes at least the longer
of the two times (the roofline of Williams et al. 2009, doi:10.1145/1498765.1498785), and a run the sum of its steps.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import reduce
from operator import add

import numpy as np

from benchmarks.rig.ceilings import Ceilings
from benchmarks.rig.step_records import RecordedStep
from executor_svc.model.config import DecoderConfig


@dataclass(frozen=True)
class StepWork:
    """A step's bytes of weights read, of KV read and of KV written, and its floating-point operations."""

    weight_bytes: float
    kv_bytes_read: int
    kv_bytes_written: int
    operations: float

    @property
    def num_bytes(self) -> float:
        """All bytes together."""
        return self.weight_bytes + self.kv_bytes_read + self.kv_bytes_written

    def __add__(self, other: "StepWork") -> "StepWork":
        return StepWork(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class WorkModel:
    """Says what a step of a model has to move and to compute.

    Recorded steps do not say which experts their tokens choose. The number of different experts is taken to be the
    average of uniform choices, because random weights choose about uniformly.

    Args:
        config: the model's config.
        item_bytes: bytes of a weight, and of an element of the KV cache.
    """

    def __init__(self, config: DecoderConfig, item_bytes: int) -> None:
        self._item_bytes = item_bytes
        self._config = config
        self._sparse = set(config.moe.sparse_layers) if config.moe is not None else set()
        q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        projections = 2 * q_width + 2 * kv_width
        self._attention_matrices = config.num_layers * config.hidden_size * projections
        a_layer = 2 * config.hidden_size
        for has_them, width in (
            (config.qk_norm, 2 * config.head_dim),
            (config.qkv_bias, q_width + 2 * kv_width),
            (config.output_bias, config.hidden_size),
        ):
            a_layer += width if has_them else 0
        self._vectors = config.hidden_size + config.num_layers * a_layer
        num_dense = config.num_layers - len(self._sparse)
        self._dense_matrices = num_dense * 3 * config.hidden_size * config.intermediate_size
        self._head = config.vocab_size * config.hidden_size
        self._attention_width = config.num_layers * q_width
        self.kv_bytes_a_token = 2 * config.num_layers * kv_width * item_bytes

    def work(self, step: RecordedStep) -> StepWork:
        """The work of one step."""
        query_lens, context_lens = step.query_lens.astype(np.int64), step.context_lens.astype(np.int64)
        tokens, samples = int(query_lens.sum()), step.num_samples
        router, expert, chosen, touched = self._mixtures(tokens)
        matrices = self._attention_matrices + self._dense_matrices + router
        weights = matrices + touched * expert + self._vectors
        weights += self._head * (samples > 0) + tokens * self._config.hidden_size  # the embedding's rows
        # Query i of a row attends to all positions up to its own.
        pairs = int((query_lens * context_lens - query_lens * (query_lens - 1) // 2).sum())
        return StepWork(
            weight_bytes=weights * self._item_bytes,
            kv_bytes_read=int(context_lens.sum()) * self.kv_bytes_a_token,
            kv_bytes_written=tokens * self.kv_bytes_a_token,
            operations=2 * tokens * (matrices + chosen * expert)
            + 2 * samples * self._head
            + 4 * pairs * self._attention_width,
        )

    def _mixtures(self, tokens: int) -> tuple[int, int, int, float]:
        """Over all layers: elements of the routers, elements of one expert, experts that one token uses, and different
        experts that all tokens use."""
        moe = self._config.moe
        if moe is None:
            return 0, 0, 0, 0.0
        layers = len(self._sparse)
        untouched = (1 - moe.num_chosen / moe.num_experts) ** tokens
        return (
            layers * moe.num_experts * self._config.hidden_size,
            3 * self._config.hidden_size * moe.intermediate_size,
            layers * moe.num_chosen,
            layers * moe.num_experts * (1 - untouched),
        )


def total_work(works: Iterable[StepWork]) -> StepWork:
    """The work of all steps together."""
    return reduce(add, works, StepWork(0, 0, 0, 0))


def least_time(works: Iterable[StepWork], ceilings: Ceilings, num_devices: int) -> float:
    """The least seconds that the steps can take.

    Args:
        ceilings: the ceilings of one device.
        num_devices: how many devices share the work evenly.
    """
    memory, matmul = num_devices * ceilings.copy, num_devices * ceilings.matmul
    return sum(max(work.num_bytes / memory, work.operations / matmul) for work in works)
