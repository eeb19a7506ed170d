"""One HTTP request for pooled results while they are computed, and the arithmetic that makes them an answer."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from common import messages as m
from common.errors import RequestRejected
from common.logging import get_logger
from common.wire import array_from
from scheduler_svc.frontend.answers.failure import failure_of
from scheduler_svc.frontend.answers.openai_objects import PromptTokensDetails
from scheduler_svc.frontend.answers.pooled_objects import PooledUsage
from scheduler_svc.frontend.link.delta_queue import DeltaQueue

log = get_logger(__name__)

FloatArray = npt.NDArray[np.float32]
DECIMALS = 9  # of a float32 that is written and read again as the same
FLOATS_AT_ONCE = 2**13  # about 1 ms of writing them; then others have a turn
MAX_EXACT_EXPONENT = 22  # of the powers of ten that a float64 has exactly


class PooledAnswer:
    """The results of all inputs of a request. Use it in a `with`: at its end the core is told what has no reader.

    Args:
        queue: of requests that do not stream, one for each input.
        num_tokens: of all inputs.
    """

    def __init__(self, queue: DeltaQueue, answer_id: str, num_inputs: int, num_tokens: int) -> None:
        self.answer_id = answer_id
        self.num_inputs = num_inputs
        self._queue = queue
        self._num_tokens = num_tokens
        self._num_cached = 0
        self._model = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
        log.debug("pooled answer ended", request=self.answer_id, inputs=self.num_inputs)

    @property
    def rate_limits(self) -> m.RateLimits | None:
        """What its client has left of its limits; None if it has none, or the core has not said so yet."""
        return self._queue.rate_limits

    async def results(self) -> AsyncIterator[tuple[int, FloatArray]]:
        """Each input's number with its result, as they come.

        Raises:
            RequestRejected: the core refused or failed one of them, the connection to the core broke, or another model
                computed some of them: its vectors could not be compared with the others.
        """
        num_missing, num_floats = self.num_inputs, 0
        while num_missing:
            for number, delta in await self._queue.get():
                if (failure := failure_of(delta)) is not None:
                    raise failure
                if delta.finish_reason is None:
                    continue
                self._num_cached += delta.num_cached_tokens
                self._check_model(delta.model)
                num_missing -= 1
                yield number, array_from("pooled", delta.pooled, "<f4")
                num_floats += len(delta.pooled) // 4
                if num_floats >= FLOATS_AT_ONCE:
                    num_floats = 0
                    await asyncio.sleep(0)

    @property
    def usage(self) -> PooledUsage:
        """Tokens of the inputs, and how many of those that have come were in the prefix cache."""
        return PooledUsage(self._num_tokens, self._num_tokens, PromptTokensDetails(cached_tokens=self._num_cached))

    def _check_model(self, model: str) -> None:
        fingerprint = model.partition("/")[0]
        self._model = self._model or fingerprint
        if fingerprint != self._model:
            raise RequestRejected("the model was replaced while it computed this answer: send it again", "unavailable")


def embedding(hidden: FloatArray, dimensions: int | None, *, normalize: bool) -> FloatArray:
    """What a hidden state says of its text: its first dimensions, of length 1 as a whole.

    Args:
        hidden: float32 [hidden_size].
        dimensions: how many are kept; None for all. Models that allow it are trained so that the first ones say most
            (Kusupati and others, "Matryoshka representation learning", 2022).
        normalize: False leaves their length as it is.

    Returns:
        float32 [dimensions]; zeros stay zeros.
    """
    kept = hidden[:dimensions]
    if not normalize:
        return kept
    wide = kept.astype(np.float64)  # squares of float32 may overflow, or vanish
    length = np.sqrt(np.dot(wide, wide))
    return (wide / length).astype(np.float32) if length > 0 else kept


def margin(logits: FloatArray) -> float:
    """How far "yes" is ahead, from the logits of "no" and "yes", float32 [2]. Unlike the probability, which is 1 from
    about 17 on, it tells the best documents apart."""
    return float(logits[1]) - float(logits[0])


def relevance(margins: npt.NDArray[np.float64]) -> FloatArray:
    """The probabilities of "yes" against "no", float32, from margins of the same shape."""
    with np.errstate(over="ignore"):  # to infinity, whose inverse is the 0 that is meant
        return (1 / (1 + np.exp(-margins))).astype(np.float32)


def short_floats(values: FloatArray) -> list[float]:
    """The values as float64 with few decimal digits, which as float32 are the same values again: JSON has half the
    length then."""
    wide: npt.NDArray[Any] = values.astype(np.float64)
    sizes = np.abs(wide)
    exponents = np.floor(np.log10(sizes, where=sizes > 0, out=np.zeros_like(sizes)))
    exponents = DECIMALS - 1 - exponents
    scales = 10.0 ** np.abs(exponents)
    short = np.where(exponents >= 0, np.rint(wide * scales) / scales, np.rint(wide / scales) * scales)
    return np.where(np.abs(exponents) <= MAX_EXACT_EXPONENT, short, wide).tolist()  # type: ignore[no-any-return]
