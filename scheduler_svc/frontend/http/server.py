"""Runs a frontend: the HTTP server, the link to the core, and the reasons to stop."""

import asyncio
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import uvicorn
from starlette.types import ASGIApp

from common.logging import get_logger
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.connection_guard import ConnectionGuard, ConnectionLimits, GuardLogs
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.request_counts import RequestCounts

log = get_logger(__name__)

LAST_BYTES_S = 2  # for what the last answers say after the grace
NO_EXECUTOR_S = 2.0  # without one while the frontend stops: no answer can end
KEEP_ALIVE_S = 30
LISTEN_BACKLOG = 2048
ACCEPTS_AT_ONCE = 4  # asyncio accepts as many connections in one go as the backlog is long, and streams wait for that
OTHER_FILES = 128  # open besides connections
WATCH_INTERVAL_S = 0.25
START_INTERVAL_S = 0.01
STOPPING = "the server is shutting down"


@dataclass(frozen=True)
class ServerSettings:
    """When the server gives up.

    Attributes:
        loss_timeout_s: seconds of silence of the core, after which the frontend ends.
        stall_timeout_s: seconds in which a client reads nothing, after which it is dropped.
        max_connections: that may be open at once.
        stop_grace_s: seconds in which open answers may end by themselves when the server stops; then they get an error.
        parent: process that lent the listening socket and needs it back: when it ends, the frontend ends too.
        name: of what serves, for the log.
        is_journaled: whether resumable requests go on after a restart of the core, so that a stop need not wait for
            them.
        access_log: whether each answer has a line in the log.
    """

    loss_timeout_s: float
    stall_timeout_s: float
    max_connections: int
    stop_grace_s: float
    parent: int | None = None
    name: str = "frontend"
    is_journaled: bool = False
    access_log: bool = False


async def serve(
    app: ASGIApp,
    link: CoreLink,
    listener: socket.socket,
    settings: ServerSettings,
    *,
    at_stop: Callable[[], None] = lambda: None,
) -> bool:
    """Serve on a listening socket, perhaps one of several frontends on it, until there is a reason to stop.

    Args:
        at_stop: is called once when there is one: what goes on elsewhere need not be waited for.

    Returns:
        True if a signal was the reason, False if the core or the parent is gone.
    """
    limits = ConnectionLimits(settings.max_connections, stall_timeout_s=settings.stall_timeout_s)
    config = http_config(app, limits, link.counts, settings.stop_grace_s, access_log=settings.access_log)
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    # For signals before uvicorn handles them, and after: once uvicorn has stopped, it raises the signal that stopped
    # it again, which would end this process with that signal's status.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    address = listener.getsockname()
    where = {"socket": address} if isinstance(address, str) else {"host": address[0], "port": address[1]}
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(_stop_when_alone(server, link, settings))
        ending = tasks.create_task(_end_answers_on_stop(server, link, settings, at_stop))
        helpers = [tasks.create_task(link.run()), ending, watch]
        helpers.append(tasks.create_task(_lengthen_backlog(server, listener)))
        await _wait_for_core(server, link)
        log.info(f"{settings.name} started", **where, pid=os.getpid())
        await server.serve(sockets=[listener])
        was_told = not watch.done()
        for helper in helpers:
            helper.cancel()
    log.info(f"{settings.name} stopped")
    return was_told


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether uvicorn's line says more than ours: an ApiError in a body that has begun is logged already, and so
    is what broke off an answer in its middle."""
    error = record.exc_info[1] if record.exc_info else None
    is_told = isinstance(error and error.__cause__, ApiError)  # Starlette's own says that it was too late to answer
    return not is_told and record.msg != "ASGI callable returned without completing response."


def http_config(
    app: ASGIApp,
    limits: ConnectionLimits,
    counts: RequestCounts,
    stop_grace_s: float = 0.0,
    *,
    logs: GuardLogs | None = None,
    access_log: bool = False,
) -> uvicorn.Config:
    """uvicorn as a frontend runs it.

    Args:
        logs: of the server, if they are others than usual.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Config(
        app,
        http=partial(  # type: ignore[arg-type]  # makes protocols
            ConnectionGuard, limits=limits, counts=counts, idle={}, logs=logs or GuardLogs(), access_log=access_log
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # its warnings are of what clients send, which is logged here
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=ceil(stop_grace_s) + LAST_BYTES_S,
        backlog=ACCEPTS_AT_ONCE,
    )


def allowed_connections(wanted: int) -> int:
    """How many of so many connections this process can have open, after raising its limit of open files as far as
    allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2 * wanted + OTHER_FILES  # a stream of a response in the background has one to the worker, too
    if soft != resource.RLIM_INFINITY and soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft - OTHER_FILES, 1))


async def _stop_when_alone(server: uvicorn.Server, link: CoreLink, settings: ServerSettings) -> None:
    """Stop the server, and return, when the core or the parent is gone."""
    while link.silent_s < settings.loss_timeout_s and settings.parent in (None, os.getppid()):
        await asyncio.sleep(WATCH_INTERVAL_S)
    log.error("core gone", silent_s=link.silent_s, parent_gone=settings.parent not in (None, os.getppid()))
    link.leave_all("the scheduler went away")
    server.should_exit = True


async def _wait_for_core(server: uvicorn.Server, link: CoreLink) -> None:
    """Wait until the core has answered, or there is a reason to stop. Until then this frontend would have to refuse
    requests; in the backlog they wait, or another frontend on the same socket takes them."""
    while not (link.is_up or server.should_exit):
        await asyncio.sleep(START_INTERVAL_S)


async def _lengthen_backlog(server: uvicorn.Server, listener: socket.socket) -> None:
    """Let more connections wait than are accepted at once: uvicorn has one number for both."""
    while not server.started:
        await asyncio.sleep(START_INTERVAL_S)
    if not server.should_exit:  # it may have stopped, and closed the socket, as soon as it had started
        listener.listen(LISTEN_BACKLOG)


async def _end_answers_on_stop(
    server: uvicorn.Server, link: CoreLink, settings: ServerSettings, at_stop: Callable[[], None]
) -> None:
    """Once the server was told to stop, let open answers end, as long as they can and the grace lasts; end the others.
    Those that go on after a restart are ended as soon as they are alone."""
    while not server.should_exit:
        await asyncio.sleep(WATCH_INTERVAL_S)
    at_stop()
    stopped = served = time.monotonic()
    while (now := time.monotonic()) < stopped + settings.stop_grace_s and now < served + NO_EXECUTOR_S:
        if link.fleet.num_ready:
            served = now
        if settings.is_journaled and not link.num_lost_with_the_core:
            link.leave_all(STOPPING)
        await asyncio.sleep(WATCH_INTERVAL_S)
    while True:  # a request may have been read meanwhile
        link.leave_all(STOPPING)
        await asyncio.sleep(WATCH_INTERVAL_S)
