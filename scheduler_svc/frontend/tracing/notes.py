"""What a request's trace is told while it is served. Without a trace in the request's scope, nothing is done."""

from collections.abc import MutableMapping
from typing import Any, Protocol

import msgspec

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.answers.pooled import PooledAnswer
from scheduler_svc.frontend.requests.pooled_request import PooledRequest
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest, core_request_id
from scheduler_svc.frontend.tracing import names
from scheduler_svc.frontend.tracing.life_spans import Attributes
from scheduler_svc.frontend.tracing.request_trace import MAX_SEQUENCES, TRACE, RequestTrace

MAX_STOP_CHARACTERS = 64
MAX_REASONS = 128

Scope = MutableMapping[str, Any]


class _Body(Protocol):
    """A body of a request that generates."""

    model: str
    stream: bool
    seed: int | None


def asked(scope: Scope, body: _Body, tokenized: TokenizedRequest, context: AnswerContext) -> AnswerContext:
    """What a request asks for is known. Returns the context of its answer, which has its place in the trace."""
    trace: RequestTrace | None = scope.get(TRACE)
    if trace is None:
        return context
    return msgspec.structs.replace(context, traceparent=trace.begin(_asked(body, tokenized)))


def asked_pooled(scope: Scope, pooled: PooledRequest, model: str) -> None:
    """The same of a request for pooled results."""
    trace: RequestTrace | None = scope.get(TRACE)
    if trace is not None:
        asks: Attributes = {names.REQUEST_MODEL: model, names.RESPONSE_ID: pooled.request_id}
        trace.begin(asks | {names.NUM_PROMPTS: len(pooled.prompts), names.INPUT_TOKENS: pooled.num_tokens})


def answers(scope: Scope, generation: Generation, client: str) -> None:
    """The core has a request."""
    trace: RequestTrace | None = scope.get(TRACE)
    if trace is not None:
        follow(trace, generation, client)


def answers_pooled(scope: Scope, answer: PooledAnswer, client: str) -> None:
    """The core has a request for pooled results."""
    trace: RequestTrace | None = scope.get(TRACE)
    if trace is not None:
        trace.core_ids = _core_ids(client, answer.answer_id, answer.num_inputs)
        trace.answer = lambda: {names.CACHED_TOKENS: answer.usage.prompt_tokens_details.cached_tokens}


def resumes(scope: Scope, generation: Generation, client: str) -> None:
    """The rest of an answer is read: it belongs to the trace of the request that asked for it, if the client names no
    other one."""
    trace: RequestTrace | None = scope.get(TRACE)
    if trace is not None:
        context = generation.spec.context
        asks: Attributes = {names.REQUEST_MODEL: context.model, names.REQUEST_STREAM: True}
        trace.begin(asks | {names.RESPONSE_ID: generation.spec.answer_id}, context.traceparent)
        follow(trace, generation, client)


def follow(trace: RequestTrace, generation: Generation, client: str) -> None:
    """Have a trace tell at its end what an answer has come to."""
    spec = generation.spec
    trace.core_ids = _core_ids(client, spec.answer_id, spec.context.num_prompts)
    trace.answer = lambda: result_of(generation)
    trace.has_token = lambda: generation.has_tokens


def result_of(generation: Generation) -> Attributes:
    """What an answer has come to."""
    usage, context = generation.usage, generation.spec.context
    told: Attributes = {
        names.RESPONSE_MODEL: context.model,
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.OUTPUT_TOKENS: usage.completion_tokens,
        names.CACHED_TOKENS: usage.prompt_tokens_details.cached_tokens,
        names.FINISH_REASONS: tuple(reason or "error" for reason in generation.finish_reasons[:MAX_REASONS]),
    }
    if generation.model:
        told[names.COMPUTED_BY] = generation.model
    if isinstance(details := usage.completion_tokens_details, msgspec.Struct):
        told[names.THOUGHT_TOKENS] = details.reasoning_tokens
    return told


def _asked(body: _Body, tokenized: TokenizedRequest) -> Attributes:
    """Parameters of a request, and nothing of its prompts."""
    params = tokenized.params[0]
    told: Attributes = {
        names.REQUEST_MODEL: body.model,
        names.RESPONSE_ID: tokenized.request_id,
        names.TEMPERATURE: params.temperature,
        names.TOP_P: params.top_p,
        names.INPUT_TOKENS: sum(map(len, tokenized.prompts)),
    }
    optional: dict[str, Any] = {
        names.REQUEST_STREAM: body.stream,
        names.CHOICE_COUNT: tokenized.n if tokenized.n > 1 else None,
        names.NUM_PROMPTS: len(tokenized.prompts) if len(tokenized.prompts) > 1 else None,
        names.MAX_TOKENS: None if tokenized.may_shorten else params.max_tokens,
        names.TOP_K: params.top_k,
        names.PRESENCE_PENALTY: getattr(body, "presence_penalty", 0.0),
        names.FREQUENCY_PENALTY: getattr(body, "frequency_penalty", 0.0),
        names.STOP_SEQUENCES: tuple(stop[:MAX_STOP_CHARACTERS] for stop in tokenized.stop),
    }
    told |= {name: value for name, value in optional.items() if value}
    if body.seed is not None:
        told[names.SEED] = body.seed
    return told


def _core_ids(client: str, answer_id: str, num_prompts: int) -> tuple[str, ...]:
    """The core's ids of the first prompts of a request."""
    return tuple(core_request_id(client, answer_id, prompt) for prompt in range(min(num_prompts, MAX_SEQUENCES)))
