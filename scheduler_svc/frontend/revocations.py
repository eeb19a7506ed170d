"""Ends what clients have open whose keys are revoked: in the store, in the background worker and in the core.

Every frontend does so, and each step may be done several times. `ApiKeys` decides who is revoked; requests are refused
long before that.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from common.errors import RequestRejected
from common.logging import get_logger
from scheduler_svc.frontend.answers.batch_objects import BatchError, errors_json
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.storing.storage import Storage
from scheduler_svc.store import owners
from scheduler_svc.store.errors import StoreError
from scheduler_svc.store.store_thread import SERVICE

_ERRORS = errors_json([BatchError("invalid_api_key", "The API key of this batch was revoked.")])

log = get_logger(__name__)


class Revocations:
    """Watches the keys of a service.

    Args:
        storage: None where nothing is kept.
        interval_s: between two looks at the keys.
        again_s: after so long all is ended once more, for requests whose heads came with the key, and whose bodies or
            turns came after it was revoked.
    """

    def __init__(
        self,
        keys: ApiKeys,
        link: CoreLink,
        storage: Storage | None,
        *,
        interval_s: float = 1.0,
        again_s: float = 60.0,
    ) -> None:
        self._keys = keys
        self._link = link
        self._storage = storage
        self._interval_s = interval_s
        self._again_s = again_s
        self._due: dict[str, list[float]] = {}  # when to end what a client has open, by its id

    async def run(self) -> None:
        """Carry them out until cancelled. What cannot be done now is tried again."""
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("internal error")
            await asyncio.sleep(self._interval_s)

    async def _look(self) -> None:
        now = time.monotonic()
        for client in self._keys.newly_revoked():
            log.warning("API key revoked, ending what it has open", client=client.name, id=client.id)
            self._due[client.id] = [now, now + self._again_s]
        for client_id, times in list(self._due.items()):
            if self._keys.of_id(client_id) is not None:  # it is back
                del self._due[client_id]
            elif times[0] <= now:
                with contextlib.suppress(StoreError, RequestRejected):
                    await self._end(client_id)
                    del times[0]
                    if not times:
                        del self._due[client_id]

    async def _end(self, client_id: str) -> None:
        try:
            if self._storage is not None:  # first: the worker would ask the core again for what the store has as open
                await self._end_stored(self._storage, client_id)
        finally:
            self._link.revoke(client_id)

    async def _end_stored(self, storage: Storage, client_id: str) -> None:
        thread = storage.thread
        num_ended = await thread.run(SERVICE, owners.revoke, client_id, thread.clock.now(), errors=_ERRORS)
        if num_ended:
            log.warning("responses and batches ended: key revoked", id=client_id, ended=num_ended)
            await storage.worker.look()


@contextlib.asynccontextmanager
async def watched(revocations: Revocations) -> AsyncIterator[None]:
    """Carry them out as long as this lasts."""
    watching = asyncio.create_task(revocations.run())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
