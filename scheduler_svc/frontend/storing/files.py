"""Files in the store, as the Files API has them."""

import secrets
import time
from collections.abc import AsyncIterator

from scheduler_svc.frontend.storing.disk import check_disk
from scheduler_svc.frontend.storing.errors import as_api_errors
from scheduler_svc.frontend.storing.sweeping import Sweeper
from scheduler_svc.store import files
from scheduler_svc.store.errors import NotFound
from scheduler_svc.store.records import Order, StoredFile
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions

CHUNK_BYTES = files.MAX_CHUNK_BYTES
UNKNOWN_PURPOSE = ""  # until a form has said it


class FileStore:
    """Stored files. An owner is the id of an API key, empty without keys.

    Every method raises ApiError: (404) for what is not there, (429) for what is more than the owner may have, (507) for
    what the disk has no room for, (503) if the store has too much to do, (500) if it fails.
    """

    def __init__(self, thread: StoreThread, options: StoreOptions, sweeper: Sweeper) -> None:
        self._thread = thread
        self._options = options
        self._sweeper = sweeper

    async def begin(self, owner: str, filename: str) -> "Upload":
        """A new file, which nobody finds until it is finished."""
        check_room(self._options)
        file_id = new_file_id()
        now = time.time()  # the wall's, whatever is held back: the record says it
        record = StoredFile(owner, file_id, filename, UNKNOWN_PURPOSE, 0, now, None)
        with as_api_errors():
            await self._thread.run(owner, files.begin, record, limit_bytes=self._options.limit_bytes)
        return Upload(self._thread, self._options, self._sweeper, (owner, file_id), now)

    async def get(self, owner: str, file_id: str, *, param: str = "file_id") -> StoredFile:
        """A file, without its content."""
        with as_api_errors(param):
            return await self._thread.run(owner, files.get, owner, file_id, self._thread.clock.now())

    async def page(
        self, owner: str, *, after: str | None, limit: int, order: Order, purpose: str | None
    ) -> list[StoredFile]:
        """Some of an owner's files."""
        asked = {"after": after, "limit": limit, "order": order, "purpose": purpose}
        with as_api_errors("after"):
            return await self._thread.run(owner, files.list_files, owner, self._thread.clock.now(), **asked)  # type: ignore[arg-type]

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """A file's bytes, a chunk at a time."""
        offset = 0
        while offset < file.num_bytes:
            with as_api_errors("file_id"):
                chunk = await self._thread.run(
                    file.owner,
                    files.read,
                    file.owner,
                    file.file_id,
                    self._thread.clock.now(),
                    offset=offset,
                    limit=CHUNK_BYTES,
                )
            offset += len(chunk)
            yield chunk

    async def delete(self, owner: str, file_id: str) -> None:
        """Forget a file."""
        with as_api_errors("file_id"):
            await self._thread.run(owner, files.delete, owner, file_id, self._thread.clock.now())
        self._sweeper.wake()


class Upload:
    """A file while its bytes come. Either `finish` or `abandon` is to be called.

    Args:
        name: owner and id.
    """

    def __init__(
        self, thread: StoreThread, options: StoreOptions, sweeper: Sweeper, name: tuple[str, str], begun_at: float
    ) -> None:
        self._thread = thread
        self._options = options
        self._sweeper = sweeper
        self._name = name
        self._begun_at = begun_at
        self._pieces: list[bytes] = []
        self._num_waiting = 0

    async def add(self, data: bytes) -> None:
        """More bytes, which are written when they are enough for a chunk."""
        self._pieces.append(data)
        self._num_waiting += len(data)
        if self._num_waiting >= CHUNK_BYTES:
            await self._write()

    async def finish(self, purpose: str, expires_after_s: float | None) -> StoredFile:
        """The file is whole.

        Args:
            expires_after_s: when it is to be forgotten; not later than all that is stored.
        """
        await self._write()
        keep_s = min(expires_after_s or self._options.retention_s, self._options.retention_s)
        facts = {"purpose": purpose, "keep_until": self._begun_at + keep_s}
        with as_api_errors():
            return await self._thread.run(self._name[0], files.finish, *self._name, self._thread.clock.now(), **facts)  # type: ignore[arg-type]

    async def abandon(self) -> None:
        """Forget what has come."""
        self._pieces.clear()
        with as_api_errors():
            try:
                await self._thread.run(self._name[0], files.delete, *self._name, self._thread.clock.now())
            except NotFound:
                return  # it was never begun, or a sweep was faster
        self._sweeper.wake()

    async def _write(self) -> None:
        check_room(self._options)
        data, self._pieces, self._num_waiting = b"".join(self._pieces), [], 0
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = data[start : start + CHUNK_BYTES]
            limit = self._options.limit_bytes
            with as_api_errors():
                await self._thread.run(
                    self._name[0], files.append, *self._name, self._thread.clock.now(), chunk, limit_bytes=limit
                )


def check_room(options: StoreOptions) -> None:
    """Raise ApiError (507) if the disk is nearly full."""
    if options.folder is not None:
        check_disk(options.folder)


def new_file_id() -> str:
    """An id that no other file has."""
    return "file-" + secrets.token_hex(12)
