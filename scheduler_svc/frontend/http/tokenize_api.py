"""The endpoints that count and translate tokens, and generate none."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.body import parse
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.served import check_model
from scheduler_svc.frontend.requests.tokenization import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer

Body = TypeVar("Body", TokenizeRequest, DetokenizeRequest)


class TokenizeApi:
    """POST /tokenize and /detokenize, with the limits that requests to generate have.

    Args:
        served: names of the model.
        style: of its chats.
        long_work: threads for long texts, which others have work for, too.
    """

    def __init__(
        self, link: CoreLink, tokenizer: Tokenizer, served: Sequence[str], style: ChatStyle, long_work: LongWork
    ) -> None:
        self._link = link
        self._tokenizer = tokenizer
        self._served = tuple(served)
        self._style = style
        self._long_work = long_work
        self.router = APIRouter()
        self.router.post("/tokenize", response_model=None)(self.tokenize)
        self.router.post("/detokenize", response_model=None)(self.detokenize)

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation."""
        max_model_len = self._link.fleet.max_model_len

        def work(body: TokenizeRequest) -> Struct:
            return tokenize(body, self._tokenizer, self._style, max_model_len)

        return await self._answer(request, TokenizeRequest, work)

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        return await self._answer(request, DetokenizeRequest, lambda body: detokenize(body, self._tokenizer))

    async def _answer(self, request: Request, schema: type[Body], work: Callable[[Body], Struct]) -> Response:
        async with read_body(request) as raw:

            def whole_work() -> bytes:
                body = parse(raw, schema)
                if body.model is not None:
                    check_model(body.model, self._served)
                return to_json(work(body))

            return Response(
                await self._long_work.run(client_of(request).name, len(raw), whole_work), media_type="application/json"
            )
