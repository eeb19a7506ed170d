"""Reranking and scores: from a checked request to the core's, with a prompt for each query and document."""

from collections.abc import Sequence

import numpy as np

from common import messages as m
from common.wire import IntArray
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.embedding import check_lengths
from scheduler_svc.frontend.requests.limits import check_characters
from scheduler_svc.frontend.requests.pooled_request import MAX_TOKENS, PooledRequest, positions
from scheduler_svc.frontend.requests.pooled_schemas import RerankRequest, ScoreRequest, ScoringRequest
from scheduler_svc.frontend.requests.pooling_model import PoolingModel


def tokenize_rerank(body: RerankRequest, model: PoolingModel, state: m.TaskState) -> PooledRequest:
    """A rerank request, tokenized; arguments and errors as for `tokenize_score`."""
    return _tokenize("rerank-", body, [body.query], body.documents, model, state, ("query", "documents"))


def tokenize_score(body: ScoreRequest, model: PoolingModel, state: m.TaskState) -> PooledRequest:
    """A score request, tokenized.

    Args:
        model: that scores.
        state: of the executors that score.

    Raises:
        ApiError, RequestRejected: the request cannot be served.
    """
    return _tokenize("score-", body, body.text_1, body.text_2, model, state, ("text_1", "text_2"))


def work_of(
    num_bytes: int, body: ScoringRequest, model: PoolingModel, queries: Sequence[str], documents: Sequence[str]
) -> int:
    """Characters that are worked on, for `LongWork`: each query is tokenized after the instruction, and becomes a part
    of the prompts of all its documents. Of a model that was never asked, the frame is made first.

    Args:
        num_bytes: of the body.
    """
    size = model.score_prompts.work_of_frame + num_bytes
    return size + len(queries) * len(body.instruction) + len(documents) * max(map(len, queries))


def _tokenize(
    id_prefix: str,
    body: ScoringRequest,
    queries: Sequence[str],
    documents: Sequence[str],
    model: PoolingModel,
    state: m.TaskState,
    names: tuple[str, str],
) -> PooledRequest:
    prompts = model.score_prompts
    if prompts.fault:
        message = f"The model '{model.names[0]}' cannot score: {prompts.fault}."
        raise ApiError(400, message, code="invalid_value", param="model")
    limit, truncates = positions(state, body.truncate_prompt_tokens)
    for name, texts in zip(names, (queries, documents), strict=True):
        if not all(texts):
            raise ApiError(400, f"A text of '{name}' is empty.", code="invalid_value", param=name)
    max_document = body.max_tokens_per_doc if isinstance(body, RerankRequest) else None
    check_characters(max(map(len, queries)), model.tokenizer, limit, names[0])
    if not truncates and max_document is None:
        check_characters(max(map(len, documents)), model.tokenizer, limit, names[1])
    leading = [prompts.leading(body.instruction, query) for query in queries]
    bodies = prompts.documents(documents, max_document)
    leading = leading * len(bodies) if len(leading) == 1 else leading
    _check_total(sum(map(len, leading)) + sum(min(len(ids), limit) for ids in bodies), names[1])
    tail = prompts.frame.tail
    whole = [_joined(lead, ids, tail, limit if truncates else None) for lead, ids in zip(leading, bodies, strict=True)]
    check_lengths(whole, limit, names[1])
    yes_and_no = m.SamplingParams(max_tokens=1, pooling="logits", pooled_token_ids=prompts.frame.answers)
    return PooledRequest.of(id_prefix, body, whole, yes_and_no)


def _joined(leading: IntArray, document: IntArray, tail: IntArray, limit: int | None) -> IntArray:
    """A prompt; if it is longer than a limit, the document's end is left out."""
    if limit is not None and (room := limit - len(leading) - len(tail)) < len(document):
        if room < 1:
            num_other = len(leading) + len(tail)
            message = f"{limit} tokens leave no room for a document: all that stands around it has {num_other}."
            raise ApiError(400, message, code="context_length_exceeded", param="truncate_prompt_tokens")
        document = document[:room]
    return np.concatenate([leading, document, tail])


def _check_total(num_tokens: int, param: str) -> None:
    """Refuse prompts that are too long together, before they are put together."""
    if num_tokens > MAX_TOKENS:
        message = (
            f"The prompts have {num_tokens} tokens together, the limit is {MAX_TOKENS}: a query is a part of each "
            "document's prompt."
        )
        raise ApiError(400, message, code="invalid_value", param=param)
