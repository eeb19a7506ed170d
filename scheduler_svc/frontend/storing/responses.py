"""Responses in the store, as the Responses API has them."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from scheduler_svc.frontend.answers.responses.events import Outcome, response_of_item
from scheduler_svc.frontend.answers.responses.objects import NO_ITEMS, NO_TAIL, ResponseStatus
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.storing.disk import check_disk
from scheduler_svc.frontend.storing.errors import as_api_errors
from scheduler_svc.store import quotas, responses
from scheduler_svc.store.errors import NotFound
from scheduler_svc.store.records import OPEN_RESPONSE, AnswerSizes, ChainLink, StoredResponse
from scheduler_svc.store.responses import Cut
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions

MAX_CHAIN_RESPONSES = 1000
MAX_CHAIN_BYTES = 8 * 2**20  # as long as a body may be
MAX_OPEN = 1000  # of an owner in the background
KEEP_WITHIN_S = 5.0
RETRY_S = 0.1
BUSY = 503
PIECE_BYTES = 128 * 1024  # of an answer that is read from the store while it is sent; half costs as much a piece


class AskedToStore(NamedTuple):
    """What is known of a response before its answer.

    Attributes:
        previous_id: the response that it continues.
        head: JSON of its `ResponseHead`.
        input_items: JSON of its own items, without those of the responses before it.
    """

    response_id: str
    previous_id: str | None
    head: bytes
    input_items: bytes


class ResponseStore:
    """Stored responses. An owner is the id of an API key, empty without keys.

    Every method raises ApiError: (404) for what is not there, (503) if the store has too much to do, (500) if it fails.
    """

    def __init__(self, thread: StoreThread, options: StoreOptions) -> None:
        self._thread = thread
        self._options = options

    async def check_room(self, owner: str) -> None:
        """Raise ApiError (429) if the owner has all that it may have, or (507) if the disk is full."""
        if self._options.folder is not None:
            check_disk(self._options.folder)
        if limit := self._options.limit_bytes:
            with as_api_errors():
                await self._thread.run(owner, quotas.check_quota, owner, 1, limit)

    async def check_open(self, owner: str) -> None:
        """Raise ApiError (429) if as many of the owner's responses are open in the background as may be."""
        with as_api_errors():
            num_open = await self._thread.run(owner, responses.count_open, owner, self._thread.clock.now())
        if num_open >= MAX_OPEN:
            message = f"{num_open} responses in the background have not ended, the limit is {MAX_OPEN}."
            raise ApiError(429, message, code="too_many_requests", retry=True)

    async def keep(self, owner: str, asked: AskedToStore, outcome: Outcome) -> None:
        """Add a response that has ended. Its owner's limit was checked before, and is no reason to lose an answer; a
        store that has too much to do is asked again for a while."""
        record = self._record(owner, asked, outcome.status)
        record = replace(record, output_items=outcome.output, tail=outcome.tail)
        give_up_at = time.monotonic() + KEEP_WITHIN_S
        while True:
            try:
                with as_api_errors():
                    await self._thread.run(owner, responses.add, record)
            except ApiError as error:
                if error.status != BUSY or time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def queue(self, owner: str, asked: AskedToStore, work: bytes) -> None:
        """Add a response for the background worker.

        Args:
            work: what the worker needs.
        """
        record = replace(self._record(owner, asked, "queued"), is_background=True, work=work)
        with as_api_errors():
            await self._thread.run(owner, responses.add, record, limit_bytes=self._options.limit_bytes)

    async def answer(self, owner: str, response_id: str) -> "StoredAnswer":
        """A response as it stands, of which nothing is read yet."""
        with as_api_errors("response_id"):
            sizes = await self._thread.run(owner, responses.measure, owner, response_id, self._thread.clock.now())
        return StoredAnswer(self, owner, response_id, sizes)

    async def read(self, owner: str, response_id: str, cuts: Sequence[Cut]) -> list[bytes]:
        """Bytes of what a response has, those of each cut."""
        with as_api_errors("response_id"):
            return await self._thread.run(owner, responses.read, owner, response_id, self._thread.clock.now(), cuts)

    async def delete(self, owner: str, response_id: str) -> None:
        """Forget a response."""
        with as_api_errors("response_id"):
            await self._thread.run(owner, responses.delete, owner, response_id, self._thread.clock.now())

    async def cancel(self, owner: str, response_id: str) -> bool:
        """Cancel a response, if it is open. Returns whether it was."""
        with as_api_errors("response_id"):
            return await self._thread.run(owner, responses.cancel, owner, response_id, self._thread.clock.now())

    async def conversation(self, owner: str, response_id: str) -> list[ChainLink]:
        """A response and all that came before it, oldest first. Raises ApiError (400) if one of them has no answer."""
        limits = {"max_responses": MAX_CHAIN_RESPONSES, "max_bytes": MAX_CHAIN_BYTES}
        with as_api_errors("previous_response_id"):
            links = await self._thread.run(
                owner, responses.chain, owner, response_id, self._thread.clock.now(), **limits
            )
        for link in links:
            if link.status not in ("completed", "incomplete"):
                message = f"The response '{link.response_id}' is {link.status}, and has no answer to go on with."
                raise ApiError(400, message, code="invalid_value", param="previous_response_id")
        return links

    async def of_items(self, owner: str, item_ids: Sequence[str], max_bytes: int) -> list[ChainLink]:
        """The responses that have these items, each once.

        Args:
            max_bytes: how large their items may be together.

        Raises:
            ApiError: (404) an item is of no stored response, or (400) they are larger.
        """
        names: dict[str, str] = {}
        for item_id in item_ids:
            name = response_of_item(item_id)
            if name is None:
                raise item_not_found(item_id)
            names.setdefault(name, item_id)
        if len(names) > MAX_CHAIN_RESPONSES:
            message = f"The items are of {len(names)} responses, the limit is {MAX_CHAIN_RESPONSES}."
            raise ApiError(400, message, code="invalid_value", param="input")
        with as_api_errors("input"):
            try:
                return await self._thread.run(
                    owner, responses.get_items, owner, [*names], self._thread.clock.now(), max_bytes=max_bytes
                )
            except NotFound as error:
                raise item_not_found(names[error.record_id]) from error

    def _record(self, owner: str, asked: AskedToStore, status: ResponseStatus) -> StoredResponse:
        now = time.time()  # the wall's, whatever is held back: the record says it
        return StoredResponse(
            owner,
            asked.response_id,
            status,
            now,
            now + self._options.retention_s,
            is_background=False,
            previous_id=asked.previous_id,
            head=asked.head,
            input_items=asked.input_items,
        )


class StoredAnswer:
    """A response's JSON, which is read while it is sent: whoever sends it holds a piece of it, and never the whole.

    Args:
        sizes: as it stands; if it ends meanwhile, it is still sent as one that is open.
    """

    def __init__(self, store: ResponseStore, owner: str, response_id: str, sizes: AnswerSizes) -> None:
        self.response_id = response_id
        self.sizes = sizes
        self._store = store
        self._owner = owner

    @property
    def status(self) -> ResponseStatus:
        """Where it stands."""
        return self.sizes.status

    @property
    def is_open(self) -> bool:
        """Whether it has no answer yet."""
        return self.status in OPEN_RESPONSE

    @property
    def has_failed(self) -> bool:
        """Whether it ended without its last token."""
        return self.status in ("failed", "cancelled")

    @property
    def num_bytes(self) -> int:
        """How long `json` is."""
        return sum(map(_size, self._parts(None)))

    async def json(self, status: ResponseStatus | None = None) -> AsyncIterator[bytes]:
        """The response piece by piece, as `response_json` writes it.

        Args:
            status: of which it is written without an answer; None for the one that it has, and its answer.

        Raises:
            ApiError: (404) it was deleted meanwhile.
        """
        pieces: list[bytes | Cut] = []
        for part in self._parts(status):
            pieces += [part] if isinstance(part, bytes) else _pieces_of(part)
        while pieces:
            taken, num_bytes = 0, 0
            while taken < len(pieces) and (num_bytes := num_bytes + _size(pieces[taken])) <= PIECE_BYTES:
                taken += 1
            some, pieces = pieces[:taken], pieces[taken:]
            read = iter(await self._read([piece for piece in some if isinstance(piece, Cut)]))
            yield b"".join(piece if isinstance(piece, bytes) else next(read) for piece in some)

    async def input_items(self) -> bytes:
        """JSON of what it answers, as a whole."""
        [items] = await self._read([Cut("input_items", 0, self.sizes.input_items)])
        return items

    async def tokens(self) -> bytes:
        """What its stream is written again from; empty if there is nothing."""
        [tokens] = await self._read([Cut("tokens", 0, self.sizes.tokens)])
        return tokens

    def _parts(self, status: ResponseStatus | None) -> list[bytes | Cut]:
        sizes = self.sizes
        name = b',"status":"%b","output":' % (status or sizes.status).encode()
        head: list[bytes | Cut] = [Cut("head", 0, sizes.head - 1), name]
        if status is not None or self.is_open:
            return [*head, NO_ITEMS, b",", NO_TAIL[1:]]
        items = Cut("output_items", 0, sizes.output_items) if sizes.output_items else NO_ITEMS
        return [*head, items, b",", Cut("tail", 1, sizes.tail) if sizes.tail else NO_TAIL[1:]]

    async def _read(self, cuts: Sequence[Cut]) -> list[bytes]:
        return await self._store.read(self._owner, self.response_id, cuts) if cuts else []


def _size(part: bytes | Cut) -> int:
    return len(part) if isinstance(part, bytes) else part.stop - part.start


def _pieces_of(cut: Cut) -> list[Cut]:
    starts = range(cut.start, cut.stop, PIECE_BYTES)
    return [Cut(cut.part, start, min(start + PIECE_BYTES, cut.stop)) for start in starts]


def item_not_found(item_id: str) -> ApiError:
    """The error for a reference to an item that is not stored."""
    message = f"There is no item '{item_id[:64]}' here, or none any more."
    return ApiError(404, message, code="item_not_found", param="input")
