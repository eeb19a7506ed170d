"""Sampling parameters as columns: the table from which both services derive whatever else they say about them.

A parameter of a request (`temperature` in `common.messages.SamplingParams`) is a column of a plan (`temperatures` in
`common.messages.Plan`). The scheduler's lanes, the plan builder, the check of a plan, the channel between ranks and
staging go through `SAMPLING_COLUMNS`; the only columns that they name are `temperatures` (is a row greedy?) and `seeds`
(a sequence has its own). `tests/test_sampling_parameters.py` lists every place that a new parameter is written into.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from common.messages import SamplingParams
from common.wire import IntArray

FloatArray = npt.NDArray[np.float32]

_DEFAULTS = SamplingParams(max_tokens=1)


class Range(NamedTuple):
    """The least and the largest value that a plan may carry."""

    low: float
    high: float


@dataclass(frozen=True)
class Parameter:
    """What a column carries.

    Attributes:
        name: field of `SamplingParams`.
        dtype: of the column.
        allowed: range of the values; None where any value of the dtype is fine.
        trial: a value that turns the parameter on, for plans that no scheduler sent.
    """

    name: str
    dtype: str
    allowed: Range | None
    trial: float

    @property
    def off(self) -> float:
        """The value in a request that does not mention it. A row in which all are off is greedy."""
        value: float = getattr(_DEFAULTS, self.name)
        return value


@dataclass(frozen=True)
class SamplingColumns:
    """How rows draw their tokens: columns with one entry a row, in the order of `Plan`'s fields."""

    temperatures: Annotated[FloatArray, Parameter("temperature", "<f4", Range(0.0, 100.0), trial=1.0)]
    top_ks: Annotated[IntArray, Parameter("top_k", "<i4", Range(0, 2**31 - 1), trial=2)]
    top_ps: Annotated[FloatArray, Parameter("top_p", "<f4", Range(0.0, 1.0), trial=0.9)]
    min_ps: Annotated[FloatArray, Parameter("min_p", "<f4", Range(0.0, 1.0), trial=0.1)]
    seeds: Annotated[npt.NDArray[np.uint64], Parameter("seed", "<u8", None, trial=0)]

    @classmethod
    def greedy(cls, count: int) -> "SamplingColumns":
        """Rows that take the likeliest token."""
        return cls(**{name: np.full(count, of.off, of.dtype) for name, of in SAMPLING_COLUMNS.items()})


SAMPLING_COLUMNS: dict[str, Parameter] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(SamplingColumns, include_extras=True).items()
}
"""The columns by name, in their order."""
