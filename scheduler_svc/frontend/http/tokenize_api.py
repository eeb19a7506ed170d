"""The endpoints that count and translate tokens, and generate none."""

from collections.abc import Sequence
from typing import TypeVar

from fastapi import APIRouter, Request, Response

from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.body import parse
from scheduler_svc.frontend.requests.chat_steps import ChatSteps
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.requests.served import check_model
from scheduler_svc.frontend.requests.tokenization import DetokenizeRequest, TokenizeRequest, detokenize, tokenize

Body = TypeVar("Body", TokenizeRequest, DetokenizeRequest)


class TokenizeApi:
    """POST /tokenize and /detokenize, with the limits that requests to generate have.

    Args:
        reader: renders chats, and has threads for long texts.
        served: names of the model.
        style: of its chats.
    """

    def __init__(self, link: CoreLink, reader: RequestReader, served: Sequence[str], style: ChatStyle) -> None:
        self._link = link
        self._reader = reader
        self._served = tuple(served)
        self._style = style
        self.router = APIRouter()
        self.router.post("/tokenize", response_model=None)(self.tokenize)
        self.router.post("/detokenize", response_model=None)(self.detokenize)

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation."""
        max_model_len = self._link.fleet.max_model_len

        def steps(raw: bytes) -> ChatSteps[bytes]:
            body = self._body(raw, TokenizeRequest)
            return to_json((yield from tokenize(body, self._reader.tokenizer, self._style, max_model_len)))

        async with read_body(request) as raw:
            answer = await self._reader.finish(steps(raw), len(raw), client_of(request))
            return Response(answer, media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        async with read_body(request) as raw:

            def work() -> bytes:
                return to_json(detokenize(self._body(raw, DetokenizeRequest), self._reader.tokenizer))

            content = await self._reader.long_work(client_of(request).id, len(raw), work)
            return Response(content, media_type="application/json")

    def _body(self, raw: bytes, schema: type[Body]) -> Body:
        body = parse(raw, schema, self._reader.options)
        if body.model is not None:
            check_model(body.model, self._served)
        return body
