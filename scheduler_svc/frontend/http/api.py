"""The HTTP API: OpenAI's endpoints, and those for operators and probes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import ASGIApp

from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.grammars.compiler import GrammarCompiler
from scheduler_svc.frontend.http.admin_api import AdminApi
from scheduler_svc.frontend.http.body_limit import LimitBody
from scheduler_svc.frontend.http.cors import with_cors
from scheduler_svc.frontend.http.describe_api import DescribeApi, check_model
from scheduler_svc.frontend.http.error_handlers import install_error_handlers
from scheduler_svc.frontend.http.json_body import json_body
from scheduler_svc.frontend.http.middleware import METRICS_PATH, OPEN_PATHS, RequireApiKey
from scheduler_svc.frontend.http.openapi import OPENAPI_PATHS, OpenApi
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.responses import ANSWER_ID, IS_SUBMITTED, REQUEST_ID_HEADER, json_response
from scheduler_svc.frontend.http.resume_api import ResumeApi
from scheduler_svc.frontend.http.streaming import EventStream, unless_disconnected
from scheduler_svc.frontend.http.tokenize_api import TokenizeApi
from scheduler_svc.frontend.http.traces import Traces
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.answer_context import answer_context
from scheduler_svc.frontend.requests.body import Parsed, parse_noting
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_style import ChatStyle, style_of
from scheduler_svc.frontend.requests.ignored import IgnoredFields, place_of
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest, GenerationRequest
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest, tokenize_completion
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions

MAX_BODY_BYTES = 8 * 2**20
Body = TypeVar("Body", bound=GenerationRequest)


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


def create_app(link: CoreLink, tokenizer: Tokenizer, settings: ApiSettings) -> ASGIApp:
    """The application. The caller runs the link."""
    # No redirect for a slash too many: it would lead to whatever `Host` says.
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    long_work = LongWork()
    style = style_of(tokenizer.chat_template, settings.options)
    served = settings.options.served_model_name
    routers = [
        _Generate(link, tokenizer, settings, style, long_work).router,
        ResumeApi(link, tokenizer, settings.options.keep_alive_s).router,
        AdminApi(link).router,
        TokenizeApi(link, tokenizer, served, style, long_work).router,
        DescribeApi(link, tokenizer.vocab_size, served).router,
    ]
    open_paths: tuple[str, ...] = OPEN_PATHS
    if settings.options.openapi:
        openapi = OpenApi(
            needs_keys=settings.api_keys.are_required,
            allow_unknown=settings.options.allow_unknown,
            open_metrics=settings.options.open_metrics,
        )
        routers.append(openapi.router)
        open_paths += OPENAPI_PATHS
    if settings.options.open_metrics:
        open_paths += (METRICS_PATH,)
    for router in routers:
        app.include_router(router)
    app.add_middleware(LimitBody, max_body_bytes=settings.max_body_bytes)
    # The last one added is the first one asked.
    app.add_middleware(RequireApiKey, api_keys=settings.api_keys, open_paths=open_paths)
    install_error_handlers(app)
    routes = [route for router in routers for route in router.routes]
    return Traces(with_cors(app, settings.options.cors_origin), routes, link.counts)


class _Generate:
    """The endpoints that generate."""

    def __init__(
        self, link: CoreLink, tokenizer: Tokenizer, settings: ApiSettings, style: ChatStyle, long_work: LongWork
    ) -> None:
        self._link = link
        self._tokenizer = tokenizer
        self._long_work = long_work
        self._grammars = GrammarCompiler(tokenizer.path, tokenizer.eos_token_ids)
        self._keep_alive_s = settings.options.keep_alive_s
        self._settings = settings
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
            self._ignored.log(client_of(request).name, ignored)
            for name in ignored:
                self._link.counts.ignored(place_of(name))
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
        request.scope[ANSWER_ID] = tokenized.request_id
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
            return EventStream(generation, form, keep_alive_s=self._keep_alive_s, has_ids=tokenized.is_resumable)
        request.scope[IS_SUBMITTED] = True
        with generation:
            choices = await unless_disconnected(request.receive, generation.whole())
        whole = form.whole(choices, generation.usage, generation.model)
        return json_response(whole, {REQUEST_ID_HEADER: tokenized.request_id})
