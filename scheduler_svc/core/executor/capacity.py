"""What the executors seen so far could ever run. Pure."""

from common.errors import RequestRejected
from common.plan import ExecutorLimits
from scheduler_svc.core.sequence import Sequence


def capacity(limits: ExecutorLimits) -> int:
    """Positions that one sequence can have on an executor of these limits."""
    return min(limits.max_model_len, limits.num_blocks * limits.block_size)


class SeenCapacity:
    """The capacity of the most capable executor so far: what is beyond it is refused even while no executor is there,
    and what is not may wait for one that comes back."""

    def __init__(self) -> None:
        self._is_known = False
        self._capacity = 0
        self._vocab_size = 0

    @property
    def is_known(self) -> bool:
        """Whether an executor has been seen."""
        return self._is_known

    def has_fitted(self, sequence: Sequence) -> None:
        """An executor that an earlier life of the scheduler has seen could run the sequence."""
        self._capacity = max(self._capacity, sequence.max_length)
        self._vocab_size = max(self._vocab_size, sequence.largest_token + 1)

    def widen(self, limits: ExecutorLimits) -> None:
        """Another executor has joined. All members of a fleet have one vocabulary."""
        self._is_known = True
        self._capacity = max(self._capacity, capacity(limits))
        self._vocab_size = max(self._vocab_size, limits.vocab_size)

    def refusal(self, sequence: Sequence) -> RequestRejected | None:
        """Why no executor so far could ever run the sequence, if so; None before the first one was seen."""
        if not self._is_known:
            return None
        if sequence.max_length > self._capacity:
            return RequestRejected(
                f"prompt of {sequence.num_prompt} tokens plus max_tokens {sequence.params.max_tokens} is "
                f"{sequence.max_length}, the limit is {self._capacity}",
                "context_length_exceeded",
            )
        if sequence.largest_token >= self._vocab_size:
            return RequestRejected(
                f"prompt has token id {sequence.largest_token}, the vocabulary ends at {self._vocab_size - 1}"
            )
        return None
