"""Batches in the store, as the Batch API has them."""

import secrets
import time

import msgspec

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.storing.errors import as_api_errors
from scheduler_svc.frontend.storing.files import check_room
from scheduler_svc.store import batches
from scheduler_svc.store.errors import Conflict, TooManyOpen
from scheduler_svc.store.records import StoredBatch
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions

MAX_OPEN_BATCHES = 100  # of one API key


class BatchStore:
    """Stored batches. An owner is the id of an API key, empty without keys.

    Every method raises ApiError: (404) for what is not there, (429) for what is more than the owner may have, (503) if
    the store has too much to do, (500) if it fails.
    """

    def __init__(self, thread: StoreThread, options: StoreOptions) -> None:
        self._thread = thread
        self._options = options

    async def add(
        self,
        owner: str,
        *,
        input_file_id: str,
        endpoint: str,
        window: tuple[str, float],
        metadata: dict[str, str],
        output_expires_after_s: float | None,
    ) -> StoredBatch:
        """A new batch for the background worker.

        Args:
            window: as the request has it, and in seconds.
            output_expires_after_s: of its output, not later than all that is stored.

        Raises:
            ApiError: (429) the owner has `MAX_OPEN_BATCHES` that have not ended, (507) the disk is nearly full.
        """
        check_room(self._options)
        now = time.time()  # the wall's, whatever is held back: the record says it
        kept_s = self._options.retention_s
        batch = StoredBatch(
            owner=owner,
            batch_id="batch_" + secrets.token_hex(12),
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=window[0],
            created_at=now,
            due_at=now + window[1],
            expires_at=now + window[1] + kept_s,
            output_expires_after_s=min(output_expires_after_s or kept_s, kept_s),
            metadata=msgspec.json.encode(metadata) if metadata else b"",
        )
        with as_api_errors():
            limits = {"limit_bytes": self._options.limit_bytes, "max_open": MAX_OPEN_BATCHES}
            try:
                await self._thread.run(owner, batches.add, batch, **limits)
            except TooManyOpen as error:
                raise ApiError(429, f"{error}.", code="too_many_batches", retry=True) from error
        return batch

    async def get(self, owner: str, batch_id: str) -> StoredBatch:
        """A batch."""
        with as_api_errors("batch_id"):
            return await self._thread.run(owner, batches.get, owner, batch_id, self._thread.clock.now())

    async def page(self, owner: str, *, after: str | None, limit: int) -> list[StoredBatch]:
        """Some of an owner's batches, the youngest first."""
        with as_api_errors("after"):
            return await self._thread.run(
                owner, batches.list_batches, owner, self._thread.clock.now(), after=after, limit=limit
            )

    async def cancel(self, owner: str, batch_id: str) -> StoredBatch:
        """A batch takes no more lines. Raises ApiError (409) for one that has ended otherwise, or is about to."""
        with as_api_errors("batch_id"):
            try:
                return await self._thread.run(owner, batches.cancel, owner, batch_id, self._thread.clock.now())
            except Conflict as conflict:
                status = (await self._thread.run(owner, batches.get, owner, batch_id, self._thread.clock.now())).status
                message = f"The batch '{batch_id}' is {status}, and cannot be cancelled."
                raise ApiError(409, message, code="batch_ended", param="batch_id") from conflict
