"""A line of a batch becomes what the core is asked, and the core's deltas become the line's answer. No HTTP in here."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeVar

import msgspec

from common import messages as m
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.requests.answer_context import answer_context
from scheduler_svc.frontend.requests.batches.schemas import BATCH_ENDPOINTS
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest, GenerationRequest
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest, core_request_id, tokenize_completion
from scheduler_svc.frontend.text.tokenizer import Tokenizer

PRIORITY = m.MAX_PRIORITY  # of a line that names none: it goes after all requests that somebody waits for

Body = TypeVar("Body", bound=GenerationRequest)


@dataclass(frozen=True)
class LineName:
    """Which line of which batch. The ids of its requests follow from it, so that they are found again."""

    batch_id: str
    number: int

    def request_id(self, prefix: str) -> str:
        """The id of its answer."""
        return f"{prefix}-{self.batch_id.removeprefix('batch_')}-{self.number}"


@dataclass(frozen=True)
class ReadyLine:
    """A line whose request is complete.

    Attributes:
        request_id: of the answer.
        submits: one for each prompt.
        answer: reads deltas to their end, and returns the answer's JSON. Raises RequestRejected as `Generation` does;
            when it is cancelled, a resumable request goes on without it.
        is_resumable: whether the core lets the request go on without a reader, and over its own restart.
    """

    client: ApiClient
    request_id: str
    submits: tuple[m.Submit, ...]
    answer: Callable[[DeltaQueue], Awaitable[bytes]]
    is_resumable: bool = True

    @property
    def num_sequences(self) -> int:
        """That the core has of it."""
        return sum(submit.n for submit in self.submits)

    def asked(self, attempt: int) -> list[m.Submit]:
        """What to ask the core for. Each attempt after the first (0) has ids of its own."""
        request_id = f"{self.request_id}.{attempt}" if attempt else self.request_id
        return [
            msgspec.structs.replace(submit, request_id=core_request_id(self.client.name, request_id, prompt))
            for prompt, submit in enumerate(self.submits)
        ]


class LineEndpoint(Protocol):
    """Makes lines of one endpoint ready. Raises ApiError and RequestRejected for what a single request is refused."""

    async def __call__(self, client: ApiClient, name: LineName, body: bytes) -> ReadyLine:
        """The line with this body."""


def line_endpoints(reader: RequestReader, style: ChatStyle, model: str) -> Mapping[str, LineEndpoint]:
    """How lines of each of `BATCH_ENDPOINTS` are made ready.

    Args:
        model: its name in answers.
    """
    generating = _GeneratingLines(reader, style, model)
    endpoints = {"/v1/chat/completions": generating.chat, "/v1/completions": generating.completion}
    assert tuple(endpoints) == BATCH_ENDPOINTS, endpoints
    return endpoints


class _GeneratingLines:
    """Lines that ask for texts."""

    def __init__(self, reader: RequestReader, style: ChatStyle, model: str) -> None:
        self._reader = reader
        self._tokenize_chat = partial(tokenize_chat, style=style)
        self._model = model

    async def chat(self, client: ApiClient, name: LineName, body: bytes) -> ReadyLine:
        """A conversation."""
        return await self._ready("chat", client, name, body, ChatRequest, self._tokenize_chat)

    async def completion(self, client: ApiClient, name: LineName, body: bytes) -> ReadyLine:
        """One prompt or several."""
        return await self._ready("completion", client, name, body, CompletionRequest, tokenize_completion)

    async def _ready(
        self,
        kind: Literal["chat", "completion"],
        client: ApiClient,
        name: LineName,
        raw: bytes,
        schema: type[Body],
        tokenize: Callable[[Body, Tokenizer, int], TokenizedRequest],
    ) -> ReadyLine:
        body, tokenized = await self._reader.read(raw, schema, tokenize, client)
        if body.stream:
            raise ApiError(400, "A batch has no streams: leave 'stream' out.", code="invalid_value", param="stream")
        tokenized = replace(
            tokenized,
            request_id=name.request_id("chatcmpl" if kind == "chat" else "cmpl"),
            is_resumable=True,
            priority=body.priority if "priority" in body.model_fields_set else PRIORITY,
        )
        context = answer_context(kind, tokenized, body, self._model)
        tokenizer = self._reader.tokenizer
        submits = tokenized.submits(client, context.encode())
        spec = AnswerSpec(
            tokenized.request_id,
            context,
            sum(map(len, tokenized.prompts)),
            Position.start(context.num_choices),
            await prompts_of(context, [submit.prompt for submit in submits], tokenizer.all_token_bytes),
        )
        return ReadyLine(client, tokenized.request_id, tuple(submits), partial(_generated, tokenizer, spec))


async def _generated(tokenizer: Tokenizer, spec: AnswerSpec, queue: DeltaQueue) -> bytes:
    generation = Generation(queue, tokenizer, spec)
    with generation:
        choices = await generation.whole()
    whole = format_of(spec.answer_id, spec.context).whole(choices, generation.usage, generation.model)
    return to_json(whole)
