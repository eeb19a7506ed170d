"""The worker's own HTTP, on a socket that only its frontends can reach: they tell it of work, and read streams."""

import asyncio
import contextlib

from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_svc.frontend.background.response_run import ResponseRun
from scheduler_svc.frontend.background.worker import Worker
from scheduler_svc.frontend.errors import ClientGone
from scheduler_svc.frontend.http.fastapi_app import new_app
from scheduler_svc.frontend.http.streaming import COMMENT, Out, unless_disconnected
from scheduler_svc.frontend.link.worker_link import ENDED

DONE = 204
NOT_RUNNING = 404
LONGEST_WAIT_S = 4.0  # for a response to begin: shorter than a frontend waits for an answer


def create_worker_app(worker: Worker, keep_alive_s: float) -> ASGIApp:
    """The application. The caller runs the worker."""
    app = new_app()
    app.include_router(_WorkerApi(worker, keep_alive_s).router)
    return app


class _WorkerApi:
    """Endpoints for one response or batch take its owner and its id as parameters of the query."""

    def __init__(self, worker: Worker, keep_alive_s: float) -> None:
        self._worker = worker
        self._keep_alive_s = keep_alive_s
        self.router = APIRouter()
        self.router.post("/run", response_model=None)(self.run)
        self.router.post("/look", response_model=None)(self.look)
        self.router.post("/cancel", response_model=None)(self.cancel)
        self.router.get("/events", response_model=None)(self.events)
        self.router.post("/batches/run", response_model=None)(self.run_batch)
        self.router.post("/batches/cancel", response_model=None)(self.cancel_batch)

    async def run(self, owner: str, response_id: str) -> Response:
        """There is a response to run."""
        self._worker.start(owner, response_id)
        return Response(status_code=DONE)

    async def look(self) -> Response:
        """Look at the store: a key was revoked, and what its client had open has ended there."""
        self._worker.look()
        return Response(status_code=DONE)

    async def cancel(self, owner: str, response_id: str) -> Response:
        """A response is not wanted any more. Answered when it has ended, unless that takes long."""
        await self._worker.cancel(owner, response_id)
        return Response(status_code=DONE)

    async def events(self, owner: str, response_id: str, after: int, request: Request) -> Response:
        """The stream of a response that is in the store, after the event with this number, once it runs."""
        self._worker.start(owner, response_id)
        run = await self._worker.running(owner, response_id, min(self._keep_alive_s, LONGEST_WAIT_S))
        if run is None:
            return Response(status_code=NOT_RUNNING)
        return _RunStream(run, after, self._keep_alive_s)

    async def run_batch(self, owner: str, batch_id: str) -> Response:
        """There is a batch to run."""
        self._worker.batches.start(owner, batch_id)
        return Response(status_code=DONE)

    async def cancel_batch(self, owner: str, batch_id: str) -> Response:
        """The store has it that a batch is cancelled."""
        self._worker.batches.cancel(owner, batch_id)
        return Response(status_code=DONE)


class _RunStream(Response):
    """A reader of a run. It begins at once, and ends with `ENDED` when the store has the end of the response."""

    media_type = "text/event-stream"

    def __init__(self, run: ResponseRun, after: int, keep_alive_s: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._run = run
        self._after = after
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        with contextlib.suppress(ClientGone):
            await unless_disconnected(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        out = Out(send, self.raw_headers)
        await out.send(COMMENT)
        keeper = asyncio.create_task(out.keep_alive(self._keep_alive_s))
        last = b""
        try:
            async with contextlib.aclosing(self._run.events(self._after)) as parts:
                async for events in parts:
                    if events:
                        await out.send(events)
                        continue
                    await self._run.is_kept.wait()
                    last = ENDED
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        await out.end(last)
