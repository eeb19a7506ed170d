"""The `AnswerContext` of a new request: what any frontend needs to write its answer."""

import time

from scheduler_svc.frontend.answers.answer_context import AnswerContext, AnswerKind
from scheduler_svc.frontend.requests.schemas import ChatRequest, GenerationRequest
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest


def answer_context(kind: AnswerKind, tokenized: TokenizedRequest, body: GenerationRequest, model: str) -> AnswerContext:
    """How a new request is to be answered.

    Args:
        model: its name in the answer.
    """
    return AnswerContext(
        kind=kind,
        created=int(time.time()),
        model=model,
        num_prompts=len(tokenized.prompts),
        n=tokenized.n,
        stop=tokenized.stop,
        include_usage=body.has_usage,
        is_resumable=tokenized.is_resumable,
        logprobs=tokenized.params[0].logprobs,
        min_tokens=body.min_tokens,
        include_stop_str_in_output=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
        echo=tokenized.echo,
        prompt_logprobs=body.num_listed_prompt_logprobs,
        is_prompt_only=tokenized.is_prompt_only,
        message=tokenized.message,
        has_chunk_usage=body.has_chunk_usage,
        hides_thought=isinstance(body, ChatRequest) and not body.shows_thought,
    )
