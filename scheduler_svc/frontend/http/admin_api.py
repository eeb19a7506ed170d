"""The endpoints for operators; they need an API key with the right `admin`."""

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from common.logging import get_logger
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.permissions import require_admin
from scheduler_svc.frontend.http.plain_answers import json_response
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.body import parse
from scheduler_svc.frontend.requests.schemas import DrainRequest

MAX_NAME_CHARACTERS = 128  # as in `common.messages.Name`

log = get_logger(__name__)


class Drained(Struct, frozen=True):
    """An executor was asked to leave; `GET /status` shows when it has."""

    epoch: int


class AdminApi:
    """The endpoints under /admin."""

    def __init__(self, link: CoreLink) -> None:
        self._link = link
        self.router = APIRouter()
        self.router.post("/admin/executors/{executor:path}/drain", response_model=None)(self.drain)

    async def drain(self, executor: str, request: Request) -> Response:
        """Let an executor, named by its name or epoch, leave."""
        client = require_admin(request)
        raw = await request.body()
        finish = parse(raw, DrainRequest).finish if raw not in (b"", b"null") else False
        if len(executor) > MAX_NAME_CHARACTERS:
            raise ApiError(404, f"No name has more than {MAX_NAME_CHARACTERS} characters.", code="executor_not_found")
        reply = await self._link.drain(executor, finish=finish)
        if reply.refusal:
            raise await self._refusal(executor, reply.refusal)
        log.info("drain asked for", executor=executor, epoch=reply.epoch, finish=finish, client=client.name)
        return json_response(Drained(reply.epoch))

    async def _refusal(self, executor: str, reason: str) -> ApiError:
        report = await self._link.status()
        if any(executor in (known.executor, str(known.epoch)) for known in report.executors):
            return ApiError(409, f"{reason}.", code="executor_refused", param="executor")
        return ApiError(404, f"{reason}.", code="executor_not_found", param="executor")
