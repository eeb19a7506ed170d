"""How tokens are drawn, and how a request is served: parameters that requests have whatever API they come by."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from common.messages import MAX_BAD_WORDS, MAX_PRIORITY
from scheduler_svc.frontend.requests.fields import (
    INT32_MAX,
    FirstError,
    Penalty,
    StopString,
    TokenId,
    biases,
    minus_one_is_off,
    stop_list,
)
from scheduler_svc.frontend.requests.strict import Allowing

MAX_STOPS = 16


class SamplingFields(Allowing):
    """Absent parameters get the values that the model recommends."""

    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX), AfterValidator(minus_one_is_off)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[FirstError[StopString], BeforeValidator(stop_list), Field(max_length=MAX_STOPS)] = []
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] = []
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100.0)] | None = None
    logit_bias: Annotated[dict[int, float], BeforeValidator(biases)] = {}
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS)] = []
    allowed_token_ids: Annotated[FirstError[TokenId], Field(min_length=1)] = []  # an empty one would ban all

    cache_salt: Annotated[str, Field(max_length=256)] = ""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0  # lower values are served earlier
    timeout_s: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
