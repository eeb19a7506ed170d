"""A request of the Responses API made ready: its conversation is put together and tokenized."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.responses.events import ResponseSpec
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.answer_context import answer_context
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_steps import ChatSteps
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.requests.renaming import in_words_of, tokenized_in_words_of
from scheduler_svc.frontend.requests.responses.conversation import NAMES, ResponseChat, chat_of
from scheduler_svc.frontend.requests.responses.head import head_json
from scheduler_svc.frontend.requests.responses.items import Item
from scheduler_svc.frontend.requests.responses.schemas import ENCRYPTED, ResponseRequest
from scheduler_svc.frontend.requests.responses.stored import SizedItem, read_items, references, resolved, written
from scheduler_svc.frontend.requests.schemas import ChatRequest
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest
from scheduler_svc.frontend.storing.responses import MAX_CHAIN_BYTES, AskedToStore, ResponseStore, item_not_found
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.store.records import ChainLink

MAX_LOGPROBS = 2**16  # of an answer: 5 MB in each of its last events


@dataclass(frozen=True)
class ReadyResponse:
    """What is to be done for a response.

    Attributes:
        asked: what the store is to have of it.
        is_stored: whether the client wants it stored.
        streams: whether its answer does.
    """

    tokenized: TokenizedRequest
    context: AnswerContext
    spec: ResponseSpec
    asked: AskedToStore
    is_stored: bool
    streams: bool


class ResponsePreparer:
    """Makes requests ready.

    Args:
        model: its name in answers.
        store: None where nothing is stored.
    """

    def __init__(self, reader: RequestReader, style: ChatStyle, store: ResponseStore | None, *, model: str) -> None:
        self._reader = reader
        self._style = style
        self._store = store
        self._model = model

    async def ready(
        self, body: ResponseRequest, size: int, client: ApiClient, hold: Callable[[int], None]
    ) -> ReadyResponse:
        """Make a request ready. Raises ApiError and RequestRejected for one that cannot be served.

        Args:
            size: of its body, in bytes.
            hold: is told how many bytes are read from the store for it; may raise ApiError.
        """
        body = self._stored_if_possible(body)
        before = await self._before(body, client.id, hold)
        own = await self._own_items(body, client.id, MAX_CHAIN_BYTES - _size(before), hold)
        size += _size(before) + _size(own)
        items = [sized.item for sized in (*before, *own)]
        chat = await self._reader.long_work(client.id, size, lambda: in_words_of(NAMES, lambda: chat_of(body, items)))
        tokenized = await self._reader.tokenize(chat.request, self._tokenize, size, client)
        response_id = "resp_" + secrets.token_hex(12)
        tokenized = replace(tokenized, request_id=response_id, is_resumable=body.background)
        said = [sized.item for sized in own]
        return await self._reader.long_work(client.id, size, lambda: self._assembled(body, chat, tokenized, said))

    def _tokenize(self, chat: ChatRequest, tokenizer: Tokenizer, max_model_len: int) -> ChatSteps[TokenizedRequest]:
        """As `tokenize_chat`, in the words of this API."""
        steps = tokenize_chat(chat, tokenizer, max_model_len, self._style)
        return _with_few_logprobs((yield from tokenized_in_words_of(NAMES, steps)))

    def _assembled(
        self, body: ResponseRequest, chat: ResponseChat, tokenized: TokenizedRequest, own: list[Item]
    ) -> ReadyResponse:
        response_id = tokenized.request_id
        context = answer_context("response", tokenized, chat.request, self._model)
        params, created = tokenized.params[0], int(time.time())
        head = head_json(body, params, response_id=response_id, model=self._model, created=created)
        in_summary = body.reasoning is not None and body.reasoning.has_summary
        called = dict(chat.called)
        spec = ResponseSpec(response_id, head, in_summary, ENCRYPTED in body.include, body.background, called)
        asked = AskedToStore(response_id, body.previous_response_id, head, written(own, response_id))
        return ReadyResponse(tokenized, context, spec, asked, is_stored=body.store, streams=body.stream)

    def _stored_if_possible(self, body: ResponseRequest) -> ResponseRequest:
        """The request, which says whether it will be stored. Raises ApiError (400) if it needs a store that is not
        there."""
        if self._store is not None:
            return body
        for name in ("background", "previous_response_id"):
            if getattr(body, name):
                message = f"'{name}' needs a store, and this server runs without one."
                raise ApiError(400, message, code="unsupported_parameter", param=name)
        return body.model_copy(update={"store": False})

    async def _own_items(
        self, body: ResponseRequest, owner: str, max_bytes: int, hold: Callable[[int], None]
    ) -> list[SizedItem]:
        """The request's items, references replaced; the body's own ones have no size, as the body has it."""
        missing = references(body.input)
        if not missing:
            return resolved(body.input, [], 0)
        if self._store is None:
            raise item_not_found(missing[0])
        links = await self._store.of_items(owner, missing, MAX_CHAIN_BYTES)
        return await self._in_thread(owner, links, lambda stored: resolved(body.input, stored, max_bytes), hold)

    async def _before(self, body: ResponseRequest, owner: str, hold: Callable[[int], None]) -> list[SizedItem]:
        """The items of the conversation before this request."""
        if body.previous_response_id is None:
            return []
        assert self._store is not None, "such a request was refused"
        links = await self._store.conversation(owner, body.previous_response_id)
        return await self._in_thread(owner, links, lambda stored: stored, hold)

    async def _in_thread(
        self,
        owner: str,
        links: Sequence[ChainLink],
        work: Callable[[list[SizedItem]], list[SizedItem]],
        hold: Callable[[int], None],
    ) -> list[SizedItem]:
        """What `work` makes of the items of stored responses."""
        parts = [data for link in links for data in (link.input_items, link.output_items)]
        num_bytes = sum(map(len, parts))
        hold(num_bytes)
        return await self._reader.long_work(owner, num_bytes, lambda: work(read_items(parts)))


def _size(items: Sequence[SizedItem]) -> int:
    return sum(sized.num_bytes for sized in items)


def _with_few_logprobs(tokenized: TokenizedRequest) -> TokenizedRequest:
    """The request, whose last events each have all log-probabilities of its answer. Raises ApiError (400) if those are
    too many."""
    [params] = tokenized.params
    if params.logprobs * params.max_tokens <= MAX_LOGPROBS:
        return tokenized
    most = MAX_LOGPROBS // params.logprobs
    if tokenized.may_shorten:
        return replace(tokenized, params=[msgspec.structs.replace(params, max_tokens=most)])
    message = f"With {params.logprobs} log-probabilities of each token, 'max_output_tokens' may be {most} at most."
    raise ApiError(400, message, code="invalid_value", param="max_output_tokens")
