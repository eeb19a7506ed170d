"""What each client holds of a frontend: bytes of its requests and answers, and places among those that are served.

Plain ASGI, because Starlette's BaseHTTPMiddleware would hide a client's disconnect from its stream.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from functools import partial

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler_svc.fair_queue import FairQueue
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.middleware import METRICS_PATH, OPEN_PATHS
from scheduler_svc.frontend.http.plain_answers import HELD, ErrorResponse

PIECE_BYTES = 32 * 1024  # of an answer that are sent at once, and so may wait in a connection's buffer
PLACES_OF_FREE = 8  # of places: a client that is alone has eight ninths
STEPS_AT_ONCE = 4  # requests that begin, or pieces that are sent, before all else has its turn: a millisecond each
RESERVED_PLACES = 64  # connections for probes, and requests of administrators where their share is used up
PROBE_PATHS = (*OPEN_PATHS, METRICS_PATH)


class Shares:
    """So much of something for all clients, of which each may have a share.

    A client may hold as much as it leaves free, or `of_free` times that. With 1 it has half of all if it is alone, a
    quarter beside a client that has half, and so on. So no client takes the room of those that come after it (Choudhury
    and Hahne, "Dynamic queue length thresholds", 1998).

    Args:
        limit: how much there is.

    Attributes:
        num_held: by all clients.
    """

    def __init__(self, limit: int, of_free: int = 1) -> None:
        self.num_held = 0
        self._limit = limit
        self._of_free = of_free
        self._of_client: Counter[str] = Counter()

    def has_room(self, client: str, amount: int = 1) -> bool:
        """Whether so much more may be the client's."""
        free = self._limit - self.num_held - amount
        return self._of_client.get(client, 0) + amount <= self._of_free * free

    def is_exceeded(self, client: str) -> bool:
        """Whether the client has more than it could take if it were alone: it was given more by `add`."""
        return self._of_client.get(client, 0) > self._limit * self._of_free / (1 + self._of_free)

    def take(self, client: str, amount: int = 1) -> bool:
        """Whether there is room for so much more, which is the client's then."""
        if not self.has_room(client, amount):
            return False
        self.add(client, amount)
        return True

    def add(self, client: str, amount: int) -> None:
        """The client has so much more, whether there is room or not."""
        self.num_held += amount
        self._of_client[client] += amount
        if not self._of_client[client]:
            del self._of_client[client]

    def give_back(self, client: str, amount: int = 1) -> None:
        """The client has so much less."""
        self.add(client, -amount)


class Held:
    """The bytes that one request holds of its client's share; in the ASGI scope as `HELD`.

    All of it goes back when the request is over; what is let go before gives its bytes back by itself.
    """

    def __init__(self, shares: Shares, client: str) -> None:
        self._shares = shares
        self._client = client
        self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Hold so many bytes more. Raises ApiError (503) if the client's share has no room for them."""
        if num_bytes and not self._shares.has_room(self._client, num_bytes):
            raise busy()
        self.add(num_bytes)

    def add(self, num_bytes: int) -> None:
        """The same of bytes that are there already, whether there is room or not."""
        self._num_bytes += num_bytes
        self._shares.add(self._client, num_bytes)

    def release(self) -> None:
        """Nothing of it is needed any more."""
        self.add(-self._num_bytes)

    @contextlib.contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """So many bytes are there in the `with`."""
        self.add(num_bytes)
        try:
            yield
        finally:
            self.add(-num_bytes)


class LoopTurns:
    """Lets requests begin, and long answers go on, some steps at a time; in between, all else that is ready has its
    turn. A stream needs several turns of the loop for a token, and hundreds of steps in one would hold it up for as
    long as they take. Clients take turns.

    Attributes:
        is_counting: whether steps are counted, turn by turn: while there are any.
    """

    def __init__(self) -> None:
        self._waiting = FairQueue()
        self._num_steps = 0  # in this turn of the loop
        self.is_counting = False

    async def turn(self, client: str) -> None:
        """Return when a step for the client may begin."""
        loop = asyncio.get_running_loop()
        if not self.is_counting:
            self.is_counting = True
            loop.call_soon(self._next)
        if self._num_steps < STEPS_AT_ONCE:
            self._num_steps += 1
            return
        begins = loop.create_future()
        self._waiting.put(client, partial(_begin, begins))
        await begins

    def _next(self) -> None:
        """Another turn of the loop has begun."""
        self._num_steps = min(self._waiting.num_pieces, STEPS_AT_ONCE)
        for _ in range(self._num_steps):
            self._waiting.do_next()
        self.is_counting = bool(self._num_steps)
        if self.is_counting:
            asyncio.get_running_loop().call_soon(self._next)


class ClientAccounts:
    """Counts what clients hold, and refuses requests of those that hold their share: 503, and the others go on.

    What an answer has in one piece is counted until its last part is on its way, and is passed on in pieces, so that no
    connection's buffer has more of it. Probes are always served, and administrators have places of their own.

    Args:
        max_bytes: that all requests and answers may hold.
        max_connections: of this process.

    Attributes:
        held: the bytes.
        places: of requests that are served.
        reserved: further ones, for probes and administrators.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_connections: int) -> None:
        self._app = app
        self.held = Shares(max_bytes)
        self.places = Shares(max(max_connections - RESERVED_PLACES, 1), PLACES_OF_FREE)
        self.reserved = Shares(RESERVED_PLACES)
        self._turns = LoopTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503, or pass on with an account."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = account_name(scope)
        held = scope[HELD] = Held(self.held, name)
        if scope["path"] in PROBE_PATHS:
            await self._app(scope, receive, send)
            return
        places = self._taken_from(scope["baton.client"], name)
        try:
            await self._turns.turn(name)
            if places is None or self.held.is_exceeded(name):
                error = busy()
                error.headers["connection"] = "close"  # its body is not read
                await ErrorResponse(error)(scope, receive, send)
            else:
                await self._app(scope, receive, in_pieces(send, held, lambda: self._turns.turn(name)))
        finally:
            held.release()
            if places is not None:
                places.give_back(name)

    def _taken_from(self, client: ApiClient, name: str) -> Shares | None:
        """The places of which the request has one; None if it gets none."""
        if self.places.take(name):
            return self.places
        return self.reserved if client.is_admin and self.reserved.take(name) else None


class Readers:
    """Counts those who read one thing at once: each costs its process time for all that is new.

    Args:
        most: that one thing may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[Hashable] = Counter()

    @contextlib.contextmanager
    def one_more(self, name: Hashable, what: str) -> Iterator[None]:
        """One more in the `with`.

        Args:
            what: is read, for the error.

        Raises:
            ApiError: (429) there are as many as may be.
        """
        if self._counts[name] >= self._most:
            message = f"{self._most} connections read {what} already, which is the limit."
            raise ApiError(429, message, code="too_many_requests", retry=True)
        self._counts[name] += 1
        try:
            yield
        finally:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]


def held_of(request: Request) -> Held:
    """What a request holds."""
    held: Held = request.scope[HELD]
    return held


def account_name(scope: Scope) -> str:
    """Name the account in which a request is counted: its client's id; without keys, the machine that sends it."""
    client_id: str = scope["baton.client"].id
    host, _ = scope.get("client") or ("", 0)
    return client_id or host


def busy() -> ApiError:
    """The error of a client that holds its share."""
    message = "This client has too many requests open, or too many bytes of them and of answers that it has not read."
    return ApiError(503, message, code="unavailable", retry=True)


def _begin(step: asyncio.Future[None]) -> None:
    if not step.cancelled():
        step.set_result(None)


def in_pieces(send: Send, held: Held, turn: Callable[[], Awaitable[None]]) -> Send:
    """A `send` that counts what it is given, and passes long parts on piece by piece, each in its turn."""

    async def sending(message: Message) -> None:
        body: bytes = message.get("body", b"")
        if len(body) <= PIECE_BYTES:
            await send(message)
            return
        with held.holding(len(body)):
            for start in range(0, len(body), PIECE_BYTES):
                end = start + PIECE_BYTES
                more = end < len(body) or message.get("more_body", False)
                await turn()
                await send({"type": "http.response.body", "body": body[start:end], "more_body": more})

    return sending
