"""The HTTP API: OpenAI's endpoints, Anthropic's, reranking, and those for operators and probes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from common.messages import Task
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.http.accounts import ClientAccounts
from scheduler_svc.frontend.http.admin_api import AdminApi
from scheduler_svc.frontend.http.batches_api import BatchesApi
from scheduler_svc.frontend.http.body_limit import LimitBody
from scheduler_svc.frontend.http.callers import Callers
from scheduler_svc.frontend.http.cors import with_cors
from scheduler_svc.frontend.http.describe_api import DescribeApi
from scheduler_svc.frontend.http.embeddings_api import EmbeddingsApi
from scheduler_svc.frontend.http.error_handlers import install_error_handlers
from scheduler_svc.frontend.http.fastapi_app import new_app
from scheduler_svc.frontend.http.files_api import FilesApi
from scheduler_svc.frontend.http.generate_api import GenerateApi
from scheduler_svc.frontend.http.messages_api import MessagesApi
from scheduler_svc.frontend.http.middleware import METRICS_PATH, OPEN_PATHS, RequireApiKey
from scheduler_svc.frontend.http.openapi import OPENAPI_PATHS, OpenApi
from scheduler_svc.frontend.http.page_api import PageApi
from scheduler_svc.frontend.http.rerank_api import RerankApi
from scheduler_svc.frontend.http.responses_api import ResponsesApi
from scheduler_svc.frontend.http.resume_api import ResumeApi
from scheduler_svc.frontend.http.tokenize_api import TokenizeApi
from scheduler_svc.frontend.http.traced_requests import TraceRequests
from scheduler_svc.frontend.http.traces import Traces
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.live.hub import LiveHub
from scheduler_svc.frontend.requests.chat_style import style_of
from scheduler_svc.frontend.requests.pooling_model import PoolingModel
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.storing.storage import Storage
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend.tracing.tracing import Tracing
from scheduler_svc.frontend_options import POOLING_TASKS, FrontendOptions

MAX_BODY_BYTES = 8 * 2**20
MAX_FILE_BYTES = 512 * 2**20


@dataclass(frozen=True)
class ApiSettings:
    """How this frontend serves.

    Attributes:
        options: of this frontend; one model name or several.
        api_keys: keys of which a request needs one; without keys, no request needs one.
        max_body_bytes: limit for a request's body.
        max_file_bytes: limit for a file that is uploaded.
        pooling: models of their own that tasks have.
        hosts: names by which clients without keys may ask for the service (`callers.served_hosts`); None for every one.
    """

    options: FrontendOptions
    api_keys: ApiKeys = field(default_factory=ApiKeys)
    max_body_bytes: int = MAX_BODY_BYTES
    max_file_bytes: int = MAX_FILE_BYTES
    pooling: Mapping[Task, PoolingModel] = field(default_factory=dict)
    hosts: frozenset[str] | None = None

    @property
    def model(self) -> str:
        """The model's name in answers."""
        return self.options.served_model_name[0]


def create_app(
    link: CoreLink,
    tokenizer: Tokenizer,
    settings: ApiSettings,
    storage: Storage | None = None,
    live: LiveHub | None = None,
    tracing: Tracing | None = None,
) -> ASGIApp:
    """The application. The caller runs the link.

    Args:
        storage: what outlives requests is kept there; None keeps nothing.
        live: of open pages, which the caller stops; None for one of its own.
        tracing: makes spans of requests; None makes none.
    """
    app = new_app()
    long_work = LongWork()
    style = style_of(tokenizer.chat_template, settings.options)
    served = settings.options.served_model_name
    reader = RequestReader(link, tokenizer, settings.options, long_work)
    model, keep_alive_s = settings.model, settings.options.keep_alive_s
    of_served = PoolingModel(tuple(served), tokenizer)
    embedder, scorer = (settings.pooling.get(task, of_served) for task in POOLING_TASKS)
    routers = [
        GenerateApi(link, reader, style, model=model, keep_alive_s=keep_alive_s).router,
        ResponsesApi(link, reader, style, storage, model=model, options=settings.options).router,
        MessagesApi(link, reader, style, model=model, keep_alive_s=keep_alive_s).router,
        FilesApi(storage).router,
        BatchesApi(storage, settings.options).router,
        ResumeApi(link, tokenizer, keep_alive_s).router,
        AdminApi(link).router,
        TokenizeApi(link, reader, served, style).router,
        EmbeddingsApi(link, reader, embedder, long_work).router,
        RerankApi(link, reader, scorer, long_work).router,
        DescribeApi(link, of_served, settings.pooling).router,
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
    if not settings.options.no_page:
        hub, max_readers = live or LiveHub(link), settings.options.max_readers
        page = PageApi(link, hub, settings.api_keys, tokenizer, style, model=model, max_readers=max_readers)
        routers.append(page.router)
        open_paths += page.open_paths
    for router in routers:
        app.include_router(router)
    limits = {"max_body_bytes": settings.max_body_bytes, "max_file_bytes": settings.max_file_bytes}
    app.add_middleware(LimitBody, **limits)
    # The longest body has to fit into the share of a client that is alone.
    max_bytes = max(settings.options.held_mb * 2**20, 2 * settings.max_body_bytes)
    app.add_middleware(ClientAccounts, max_bytes=max_bytes, max_connections=settings.options.max_connections)
    # The last one added is the first one asked.
    if tracing is not None:  # requests without a key leave no trace
        app.add_middleware(TraceRequests, tracing=tracing)
    trusted = settings.options.trusted_proxies
    callers = Callers(settings.hosts, settings.options.cors_origin, trusted)
    app.add_middleware(RequireApiKey, api_keys=settings.api_keys, callers=callers, open_paths=open_paths)
    routes = [route for router in routers for route in router.routes]
    install_error_handlers(app, routes)
    outer = with_cors(app, settings.options.cors_origin)
    return Traces(outer, routes, link.counts, tracing, trusted)
