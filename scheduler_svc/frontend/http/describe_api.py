"""The endpoints that describe the models and the state of the service."""

import time
from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Struct

from common import __version__
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.permissions import require_status_reader
from scheduler_svc.frontend.http.responses import json_response
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.served import check_model

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
GET = ["GET", "HEAD"]


class ModelCard(Struct, frozen=True):
    """A name of the model as /v1/models lists it; `max_model_len` is null until the first executor has joined. `root`
    is the name in answers."""

    id: str
    created: int
    max_model_len: int | None
    vocab_size: int
    root: str
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
        served: names of the model.
    """

    def __init__(self, link: CoreLink, vocab_size: int, served: Sequence[str]) -> None:
        self._link = link
        self._vocab_size = vocab_size
        self._served = tuple(served)
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
        """The model, once for each of its names."""
        return json_response(ModelList([self._card(name) for name in self._served]))

    async def model(self, model_id: str) -> Response:
        """The model, asked for by one of its names."""
        check_model(model_id, self._served)
        return json_response(self._card(model_id))

    async def version(self) -> Response:
        """Of this frontend."""
        return json_response(Version(__version__))

    async def health(self) -> Response:
        """Whether this frontend and the core are alive."""
        if not self._link.is_up:
            raise ApiError(503, "The scheduler has not been heard lately.", code="unavailable", retry=True)
        return json_response(Health())

    async def ready(self) -> Response:
        """Whether there is an executor to run requests on."""
        num_ready = self._link.fleet.num_ready if self._link.is_up else 0
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

    def _card(self, name: str) -> ModelCard:
        max_model_len = self._link.fleet.max_model_len or None
        return ModelCard(name, self._created, max_model_len, self._vocab_size, root=self._served[0])
