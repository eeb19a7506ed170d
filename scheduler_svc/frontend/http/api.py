"""The HTTP API: OpenAI's endpoints, and those for operators and probes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response

from scheduler_svc.frontend.answers.event_ids import Position, has_event_ids
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.compiler import GrammarCompiler
from scheduler_svc.frontend.http.admin_api import AdminApi
from scheduler_svc.frontend.http.body_limit import LimitBody
from scheduler_svc.frontend.http.error_handlers import install_error_handlers
from scheduler_svc.frontend.http.json_body import json_body
from scheduler_svc.frontend.http.middleware import RequireApiKey
from scheduler_svc.frontend.http.permissions import client_of, require_status_reader
from scheduler_svc.frontend.http.responses import REQUEST_ID_HEADER, ModelCard, ModelList, json_response
from scheduler_svc.frontend.http.resume_api import ResumeApi
from scheduler_svc.frontend.http.streaming import EventStream, unless_disconnected
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.answer_context import answer_context
from scheduler_svc.frontend.requests.body import Parsed, parse_noting
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_style import style_of
from scheduler_svc.frontend.requests.ignored import IgnoredFields
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest, GenerationRequest
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest, tokenize_completion
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions

MAX_BODY_BYTES = 8 * 2**20
Body = TypeVar("Body", bound=GenerationRequest)
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class ApiSettings:
    """How this frontend serves.

    Attributes:
        options: of this frontend; one model name or several.
        api_keys: keys of which a request needs one; without keys, no request needs one.
        max_body_bytes: limit for a request's body.
    """

    options: FrontendOptions
    api_keys: ApiKeys = field(default_factory=ApiKeys)
    max_body_bytes: int = MAX_BODY_BYTES

    @property
    def model(self) -> str:
        """The model's name in answers."""
        return self.options.served_model_name[0]


def create_app(link: CoreLink, tokenizer: Tokenizer, settings: ApiSettings) -> FastAPI:
    """The application. The caller runs the link."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(_Generate(link, tokenizer, settings).router)
    app.include_router(ResumeApi(link, tokenizer).router)
    app.include_router(AdminApi(link).router)
    app.include_router(_Describe(link, tokenizer.vocab_size, settings).router)
    app.add_middleware(LimitBody, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(RequireApiKey, api_keys=settings.api_keys)  # the last one added is the first one asked
    install_error_handlers(app)
    return app


class _Generate:
    """The endpoints that generate."""

    def __init__(self, link: CoreLink, tokenizer: Tokenizer, settings: ApiSettings) -> None:
        self._link = link
        self._tokenizer = tokenizer
        self._long_work = LongWork()
        self._grammars = GrammarCompiler(tokenizer.path, tokenizer.eos_token_ids)
        self._settings = settings
        style = style_of(tokenizer.chat_template, settings.options)
        self._tokenize_chat = partial(tokenize_chat, style=style)
        self._ignored = IgnoredFields()
        self.router = APIRouter()
        self.router.post("/v1/completions", response_model=None)(self.completions)
        self.router.post("/v1/chat/completions", response_model=None)(self.chat_completions)

    async def completions(self, request: Request) -> Response:
        """Continue one prompt or several."""
        body, tokenized = await self._read(request, CompletionRequest, tokenize_completion)
        return await self._answer("completion", tokenized, body, request)

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        body, tokenized = await self._read(request, ChatRequest, self._tokenize_chat)
        return await self._answer("chat", tokenized, body, request)

    async def _read(
        self,
        request: Request,
        schema: type[Body],
        tokenize: Callable[[Body, Tokenizer, int], TokenizedRequest],
    ) -> tuple[Body, TokenizedRequest]:
        """The body, checked and tokenized: in a thread if it is long, as nothing may hold up every stream for that. Its
        grammar is compiled by another process."""
        raw = await json_body(request)
        options = self._settings.options

        def work() -> tuple[Parsed[Body], TokenizedRequest]:
            parsed = parse_noting(raw, schema, allow_unknown=options.allow_unknown)
            check_model(parsed.body.model, options.served_model_name)
            return parsed, tokenize(parsed.body, self._tokenizer, self._link.fleet.max_model_len)

        try:
            (body, ignored), tokenized = await self._long_work.run(len(raw), work)
            self._ignored.count(client_of(request).name, ignored)
            if (asked := tokenized.grammar) is not None:
                grammar = await self._grammars.compile(asked.spec, asked.param, client_of(request).name)
                tokenized = tokenized.compiled(grammar)
            return body, tokenized
        finally:
            request.scope["baton.body"].release()

    async def _answer(
        self,
        kind: Literal["completion", "chat"],
        tokenized: TokenizedRequest,
        body: GenerationRequest,
        request: Request,
    ) -> Response:
        context = answer_context(kind, tokenized, body, self._settings.model)
        submits = tokenized.submits(client_of(request), context.encode())
        spec = AnswerSpec(
            tokenized.request_id,
            context,
            sum(map(len, tokenized.prompts)),
            Position.start(context.num_choices),
            await prompts_of(context, [submit.prompt for submit in submits], self._tokenizer.all_token_bytes),
        )
        generation = Generation(self._link.open(submits, is_resumable=tokenized.is_resumable), self._tokenizer, spec)
        form = format_of(tokenized.request_id, context)
        if body.stream:
            has_ids = has_event_ids(context.num_choices, is_resumable=tokenized.is_resumable)
            return EventStream(generation, form, has_ids=has_ids)
        with generation:
            choices = await unless_disconnected(request.receive, generation.whole())
        whole = form.whole(choices, generation.usage, generation.model)
        return json_response(whole, {REQUEST_ID_HEADER: tokenized.request_id})


class _Describe:
    """The endpoints that describe the models and the state of the service."""

    def __init__(self, link: CoreLink, vocab_size: int, settings: ApiSettings) -> None:
        self._link = link
        self._vocab_size = vocab_size
        self._model = settings.model
        self._served = settings.options.served_model_name
        self._created = int(time.time())
        self.router = APIRouter()
        self.router.get("/v1/models")(self.models)
        self.router.get("/v1/models/{model_id:path}")(self.model)
        for path, endpoint in (
            ("/health", self.health),
            ("/ready", self.ready),
            ("/status", self.status),
            ("/metrics", self.metrics),
        ):
            self.router.get(path)(endpoint)

    async def models(self) -> Response:
        """The one model."""
        return json_response(ModelList([self._describe_model()]))

    async def model(self, model_id: str) -> Response:
        """The one model, asked for by its name."""
        check_model(model_id, self._served)
        return json_response(self._describe_model())

    async def health(self) -> Response:
        """Whether this frontend and the core are alive."""
        if not self._link.is_up:
            raise ApiError(503, "The scheduler has not been heard lately.", code="unavailable", retry=True)
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(self) -> Response:
        """Whether there is an executor to run requests on."""
        num_ready = self._link.fleet.num_ready if self._link.is_up else 0
        if num_ready < 1:
            raise ApiError(503, "No executor is ready.", code="unavailable", retry=True)
        return Response(b'{"status":"ready","executors":%d}' % num_ready, media_type="application/json")

    async def status(self, request: Request) -> Response:
        """The core's report."""
        require_status_reader(request)
        return Response(msgspec.json.encode(await self._link.status()), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """The core's metrics, for Prometheus."""
        require_status_reader(request)
        return Response(await self._link.metrics(), headers={"content-type": PROMETHEUS_TEXT})

    def _describe_model(self) -> ModelCard:
        return ModelCard(self._model, self._created, self._link.fleet.max_model_len or None, self._vocab_size)


def check_model(asked: str, served: tuple[str, ...]) -> None:
    """Raise the ApiError (404) for a model that is not served here."""
    if asked not in served:
        names = " or ".join(f"'{name}'" for name in served)
        message = f"The model '{asked[:200]}' does not exist here; {names} does."
        raise ApiError(404, message, code="model_not_found", param="model")
