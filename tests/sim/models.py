"""What executors compute: the KV oracle of `tests/support`, with a model whose tokens are its own."""

from dataclasses import dataclass
from random import Random

import xxhash

from common import messages as m
from common.plan import ExecutorLimits
from tests.support.oracle import TORN, OracleExecutor, Written, expected_output, expected_pooled, extend, next_token

VOCAB_SIZE = 500
HIDDEN_SIZE = 4
LIBRARY = "sim 2"  # that frontends compile grammars with
LIBRARIES = (LIBRARY, "sim 1", "sim 3", "")  # that executors mask tokens by; some have none
POISON = 0  # as the first token of a prompt


@dataclass(frozen=True)
class Build:
    """An executor's release: its model, what it can take (a large one can hold every request), and the library that it
    masks tokens by."""

    fingerprint: str
    dtype: str
    limits: ExecutorLimits
    is_large: bool = True
    library: str = LIBRARY

    @property
    def model(self) -> str:
        """As `TokenDelta.model` says it."""
        return f"{self.fingerprint}/{self.dtype}"


def salt(model: str) -> int:
    """Makes a model's tokens its own."""
    return xxhash.xxh3_64_intdigest(model.encode())


def history_of(tokens: list[int]) -> int:
    """The oracle's history after these tokens."""
    history = 0
    for token in tokens:
        history = extend(history, token)
    return history


def token_after(history: int, seed: int, model: str) -> int:
    """What a model says after a history."""
    return next_token(history, seed ^ salt(model), VOCAB_SIZE)


def undisturbed(prompt: list[int], params: m.SamplingParams, seed: int, model: str) -> list[int]:
    """All tokens of a sequence that one model computes."""
    return expected_output(prompt, params, VOCAB_SIZE, seed ^ salt(model))


def result_of(prompt: list[int], params: m.SamplingParams, model: str) -> bytes:
    """The pooled result that a model gives."""
    return expected_pooled(prompt, params, HIDDEN_SIZE, salt(model))


def capacity(limits: ExecutorLimits) -> int:
    """Positions that a sequence can have."""
    return min(limits.max_model_len, limits.num_blocks * limits.block_size)


class ModelOracle(OracleExecutor):
    """The KV oracle with a model."""

    def __init__(self, build: Build) -> None:
        super().__init__(build.limits, model=salt(build.model))

    def is_poisoned(self, plan: m.Plan) -> bool:
        """Whether the plan has a row of a sequence that kills executors that compute it. To be asked after `run`."""
        size = self.limits.block_size
        first = 0
        counts = memoryview(plan.block_counts).cast("i")
        ids = memoryview(plan.block_ids).cast("i")
        for count in counts:
            if self.slots[ids[first] * size].token == POISON:
                return True
            first += count
        return False

    def damage(self, rng: Random, share: float) -> None:
        """Some of what the slots hold becomes something else."""
        for slot in self.slots:
            if rng.random() < share:
                self.slots[slot] = Written(TORN, 0)
