"""Anthropic's endpoints: messages, which are chats by another name, and the count of their tokens."""

from functools import partial

from fastapi import APIRouter, Request, Response

from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.answers.messages_api.events import MessageEvents, whole_message
from scheduler_svc.frontend.answers.messages_api.objects import MessageTokens
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import (
    ANSWER,
    ANSWER_ID,
    IS_SUBMITTED,
    MESSAGES_PATH,
    REQUEST_ID_HEADER,
    json_response,
)
from scheduler_svc.frontend.http.streaming import EventStream, unless_disconnected
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.generating import open_generation
from scheduler_svc.frontend.requests.messages_api.schemas import CountTokensRequest, MessageRequest
from scheduler_svc.frontend.requests.messages_api.tokenize import message_context, tokenize_message, tokenize_to_count
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.tracing.notes import answers, asked


class MessagesApi:
    """POST /v1/messages and /v1/messages/count_tokens.

    Args:
        model: its name in answers.
        keep_alive_s: seconds of silence of a stream before a comment.
    """

    def __init__(
        self, link: CoreLink, reader: RequestReader, style: ChatStyle, *, model: str, keep_alive_s: float
    ) -> None:
        self._link = link
        self._reader = reader
        self._tokenize = partial(tokenize_message, style=style)
        self._tokenize_to_count = partial(tokenize_to_count, style=style)
        self._model = model
        self._keep_alive_s = keep_alive_s
        self.router = APIRouter()
        self.router.post(MESSAGES_PATH, response_model=None)(self.messages)
        self.router.post(f"{MESSAGES_PATH}/count_tokens", response_model=None)(self.count_tokens)

    async def messages(self, request: Request) -> Response:
        """Answer a conversation."""
        generation, streams = await self._open(request)
        spec = generation.spec
        if streams:
            has_ids = spec.context.is_resumable
            events = MessageEvents(spec.answer_id, spec.context, spec.num_prompt_tokens, has_ids=has_ids)
            return EventStream(generation, events, keep_alive_s=self._keep_alive_s)
        request.scope[IS_SUBMITTED] = True
        with generation:
            message = await unless_disconnected(request.receive, whole_message(generation))
        return json_response(message, {REQUEST_ID_HEADER: spec.answer_id})

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the prompt of a request has."""
        async with read_body(request) as raw:
            client, scope = client_of(request), request.scope
            _, tokenized = await self._reader.read(raw, CountTokensRequest, self._tokenize_to_count, client, scope)
        return json_response(MessageTokens(sum(map(len, tokenized.prompts))))

    async def _open(self, request: Request) -> tuple[Generation, bool]:
        """The answer to a request, and whether it streams. Its body ends here, long before the answer does."""
        client = client_of(request)
        async with read_body(request) as raw:
            body, tokenized = await self._reader.read(raw, MessageRequest, self._tokenize, client, request.scope)
            request.scope[ANSWER_ID] = tokenized.request_id
            context = asked(request.scope, body, tokenized, message_context(tokenized, body, self._model))
            generation = await open_generation(self._link, self._reader.tokenizer, tokenized, context, client)
        request.scope[ANSWER] = generation
        answers(request.scope, generation, client.id)
        return generation, body.stream
