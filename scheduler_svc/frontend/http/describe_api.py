"""The endpoints that describe the models and the state of the service."""

import time
from collections.abc import Mapping

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Struct

from common import __version__
from common.messages import Task
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.permissions import require_status_reader
from scheduler_svc.frontend.http.plain_answers import json_response
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.pooling_model import PoolingModel, num_ready_of_served, tasks_of_served
from scheduler_svc.frontend.requests.served import check_model

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
GET = ["GET", "HEAD"]


class ModelCard(Struct, frozen=True):
    """A name of a model as /v1/models lists it; `max_model_len` is null until the first executor of it has joined.
    `root` is the name in answers, `tasks` are what the name can be asked for."""

    id: str
    created: int
    max_model_len: int | None
    vocab_size: int
    root: str
    tasks: list[Task]
    parent: None = None
    object: str = "model"
    owned_by: str = "baton"


class ModelList(Struct, frozen=True):
    """Answer of /v1/models."""

    data: list[ModelCard]
    object: str = "list"


class Version(Struct, frozen=True):
    """Answer of /version."""

    version: str


class Health(Struct, frozen=True):
    """Answer of /health."""

    status: str = "ok"


class Readiness(Struct, frozen=True):
    """Answer of /ready, with the number of executors that are."""

    executors: int
    status: str = "ready"


class DescribeApi:
    """The endpoints that describe the models and the state of the service.

    Args:
        served: the model that generates.
        pooling: models of their own that other tasks have.
    """

    def __init__(self, link: CoreLink, served: PoolingModel, pooling: Mapping[Task, PoolingModel]) -> None:
        self._link = link
        self._served = served
        self._pooling = pooling
        self._created = int(time.time())
        self.router = APIRouter()
        for path, endpoint in (
            ("/v1/models", self.models),
            ("/v1/models/{model_id:path}", self.model),
            ("/version", self.version),
            ("/health", self.health),
            ("/ready", self.ready),
            ("/status", self.status),
            ("/metrics", self.metrics),
        ):
            self.router.add_api_route(path, endpoint, methods=GET, response_model=None)

    async def models(self) -> Response:
        """The models, each once for each of its names."""
        return json_response(ModelList(list(self._cards().values())))

    async def model(self, model_id: str) -> Response:
        """A model, asked for by one of its names."""
        cards = self._cards()
        check_model(model_id, list(cards))
        return json_response(cards[model_id])

    async def version(self) -> Response:
        """Of this frontend."""
        return json_response(Version(__version__))

    async def health(self) -> Response:
        """Whether this frontend and the core are alive."""
        if not self._link.is_up:
            raise ApiError(503, "The scheduler has not been heard lately.", code="unavailable", retry=True)
        return json_response(Health())

    async def ready(self) -> Response:
        """Whether there is an executor of the served model to run requests on: one that generates, if any ever did."""
        num_ready = num_ready_of_served(self._link.fleet, self._pooling) if self._link.is_up else 0
        if num_ready < 1:
            raise ApiError(503, "No executor is ready.", code="unavailable", retry=True)
        return json_response(Readiness(num_ready))

    async def status(self, request: Request) -> Response:
        """The core's report."""
        require_status_reader(request)
        return Response(msgspec.json.encode(await self._link.status()), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """The metrics of the core and of all frontends, for Prometheus."""
        require_status_reader(request)
        return Response(await self._link.metrics(), headers={"content-type": PROMETHEUS_TEXT})

    def _cards(self) -> dict[str, ModelCard]:
        """By name, the served model's first."""
        fleet = self._link.fleet
        lengths: dict[Task, int] = {state.task: state.max_model_len for state in fleet.tasks}
        tasks = tasks_of_served(fleet, self._pooling)
        length = fleet.max_model_len or max((lengths.get(task, 0) for task in tasks), default=0)
        cards = {name: self._card(name, self._served, tasks, length) for name in self._served.names}
        for task, model in self._pooling.items():
            for name in model.names:
                known = cards[name].tasks if name in cards else []
                cards[name] = self._card(name, model, [*known, task], lengths.get(task, 0))
        return cards

    def _card(self, name: str, model: PoolingModel, tasks: list[Task], max_model_len: int) -> ModelCard:
        size = model.tokenizer.vocab_size
        return ModelCard(name, self._created, max_model_len or None, size, root=model.names[0], tasks=tasks)
