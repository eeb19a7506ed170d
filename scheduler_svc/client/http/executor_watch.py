"""Tells a user who waits for a service without an executor what the service waits for."""

import http
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx

from scheduler_svc.client.clock import Clock
from scheduler_svc.client.output import notice

LOOK_INTERVAL_S = 2.0


class ExecutorWatch:
    """While the context lasts, looks every two seconds whether the work goes on, and if it does not, why. It says so
    once.

    Args:
        client: of the service; another thread sends with it, too.
        progress: gives another value when something has come.
        clock: tells when to look.
    """

    def __init__(self, client: httpx.Client, progress: Callable[[], object], clock: Clock) -> None:
        self._client = client
        self._progress = progress
        self._clock = clock
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="executor-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        seen = self._progress()
        while not self._clock.wait(self._ended, LOOK_INTERVAL_S):
            if (now := self._progress()) == seen and self._is_without_executor() and not self._ended.is_set():
                notice("waiting: no executor is ready")
                return
            seen = now

    def _is_without_executor(self) -> bool:
        """Ask the service. One that does not answer is away, which whoever sends the request sees and says."""
        try:
            answer = self._client.get("/ready", timeout=LOOK_INTERVAL_S)
        except (httpx.HTTPError, RuntimeError):  # RuntimeError: it was closed meanwhile
            return False
        return answer.status_code == http.HTTPStatus.SERVICE_UNAVAILABLE
