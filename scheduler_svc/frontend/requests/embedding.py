"""Embeddings: from a checked request to the core's."""

from collections.abc import Sequence

import numpy as np

from common import messages as m
from common.wire import IntArray
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.limits import check_characters, check_token_ids
from scheduler_svc.frontend.requests.pooled_request import PooledRequest, positions
from scheduler_svc.frontend.requests.pooled_schemas import EmbeddingRequest
from scheduler_svc.frontend.text.tokenizer import Tokenizer

MAX_ANSWER_FLOATS = 2**23  # each is some 12 bytes of JSON
PARAMS = m.SamplingParams(max_tokens=1, pooling="hidden")


def tokenize_embedding(body: EmbeddingRequest, tokenizer: Tokenizer, state: m.TaskState) -> PooledRequest:
    """A /v1/embeddings request, tokenized.

    Args:
        state: of the executors that embed.

    Raises:
        ApiError, RequestRejected: the request cannot be served.
    """
    _check_answer(body, tokenizer)
    limit, truncates = positions(state, body.truncate_prompt_tokens)
    texts = [text for text in body.input if isinstance(text, str)]
    if not all(texts):
        raise _empty()
    if not truncates:
        check_characters(max(map(len, texts), default=0), tokenizer, limit, "input")
    encoded = iter(tokenizer.encode(texts, add_special_tokens=body.add_special_tokens))
    closing = tokenizer.closing_ids if body.add_special_tokens else ()
    prompts: list[IntArray] = []
    for given in body.input:
        if isinstance(given, str):
            ids = next(encoded)
            prompts.append(_array(_cut(ids, limit, closing) if truncates else ids))
        else:
            check_token_ids("input", given, tokenizer.vocab_size)
            prompts.append(_array(given[:limit] if truncates else given))
    if not all(map(len, prompts)):
        raise _empty()
    check_lengths(prompts, limit, "input")
    return PooledRequest.of("embd-", body, prompts, PARAMS)


def check_lengths(prompts: Sequence[IntArray], limit: int, param: str) -> None:
    """Refuse an input that is longer than the model's positions: it needs none beside its own tokens."""
    longest = max(range(len(prompts)), key=lambda number: len(prompts[number]))
    if len(prompts[longest]) > limit:
        message = (
            f"This model's maximum context length is {limit} tokens. However, input {longest} of the {param} has "
            f"{len(prompts[longest])}: shorten it, or send 'truncate_prompt_tokens'."
        )
        raise ApiError(400, message, code="context_length_exceeded", param=param)


def _check_answer(body: EmbeddingRequest, tokenizer: Tokenizer) -> None:
    """Refuse more dimensions than the model has, and an answer with too many floats."""
    if tokenizer.hidden_size and body.dimensions is not None and body.dimensions > tokenizer.hidden_size:
        message = f"'dimensions' is {body.dimensions}, this model's embeddings have {tokenizer.hidden_size}."
        raise ApiError(400, message, code="invalid_value", param="dimensions")
    num_floats = len(body.input) * (body.dimensions or tokenizer.hidden_size)
    if num_floats > MAX_ANSWER_FLOATS:
        message = f"The answer would have {num_floats} numbers, the limit is {MAX_ANSWER_FLOATS}: send fewer inputs."
        raise ApiError(400, message, code="invalid_value", param="input")


def _cut(ids: list[int], limit: int, closing: tuple[int, ...]) -> list[int]:
    """The first tokens of a text. It still ends with what the tokenizer puts at the end: models are trained to gather
    there what the text says."""
    if len(ids) <= limit:
        return ids
    if limit <= len(closing):
        message = f"'truncate_prompt_tokens' leaves {limit} tokens, and {len(closing)} end each text of this model."
        raise ApiError(400, message, code="invalid_value", param="truncate_prompt_tokens")
    return [*ids[: limit - len(closing)], *closing]


def _array(ids: Sequence[int]) -> IntArray:
    return np.asarray(ids, np.int32)


def _empty() -> ApiError:
    return ApiError(400, "An input is empty.", code="invalid_value", param="input")
