"""Whether the pooled results of an answer are what was asked for."""

import numpy as np

from common import messages as m
from common.errors import WireError
from common.wire import array_from


class PooledCheck:
    """Looks at each delta of an answer.

    Args:
        asked: what is asked of all its requests, which is a pooled result.
    """

    def __init__(self, asked: m.SamplingParams) -> None:
        self._num_bytes = 4 * len(asked.pooled_token_ids)  # 0 while that is not known

    def __call__(self, delta: m.TokenDelta) -> None:
        """Raise WireError for tokens, for an end without a result, and for a result of another size than the others or
        with a value that is no number."""
        if delta.token_ids or delta.finish_reason == "length":
            raise WireError("tokens, and a pooled result was asked for")
        if bool(delta.pooled) != (delta.finish_reason == "stop"):
            raise WireError(f"{len(delta.pooled)} bytes of pooled in a delta with finish_reason {delta.finish_reason}")
        if not delta.pooled:
            return
        values = array_from("pooled", delta.pooled, "<f4")
        if len(delta.pooled) != (self._num_bytes or len(delta.pooled)):
            raise WireError(f"pooled has {len(delta.pooled)} bytes, the others have {self._num_bytes}")
        if not np.isfinite(values).all():
            raise WireError("pooled has values that are no numbers")
        self._num_bytes = len(delta.pooled)
