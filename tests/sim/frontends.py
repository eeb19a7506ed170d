"""A frontend's process: it keeps who reads which request, as `scheduler_svc.frontend.link.core_link` does."""

from collections import deque
from typing import Protocol

from common import messages as m
from tests.sim.sockets import Dealer, Port
from tests.sim.world import World

HELLO_INTERVAL_S = 1.0


class Reader(Protocol):
    """The answer to one HTTP request in the making.

    Attributes:
        is_wanted: whether its client is still there.
    """

    is_wanted: bool

    def accepted(self) -> None:
        """The core has accepted its request."""

    def delta(self, delta: m.TokenDelta) -> None:
        """Something of its request has come."""

    def attached(self, answer: m.Attached) -> None:
        """The core has answered its Attach."""

    def broken(self) -> None:
        """Nothing more will come from here."""


class FrontendProcess:
    """The process.

    Args:
        number: of the frontend; the one that takes its place has it too.

    Attributes:
        fleet: as the core said last.
    """

    def __init__(self, world: World, port: Port, number: int) -> None:
        self.number = number
        self.fleet: m.FleetState | None = None
        self._world = world
        self._is_alive = True
        self._is_found = False  # the core was heard on this connection
        self._readers: dict[str, Reader] = {}
        self._attaching: dict[str, deque[Reader]] = {}
        self._queries: dict[int, type[m.Message]] = {}
        self._num_queries = 0
        self._frozen_until = 0.0
        self._dealer = Dealer(port, m.CoreToFrontend, self._receive, self._connection_changed)
        world.after(HELLO_INTERVAL_S, self._beat)

    @property
    def is_up(self) -> bool:
        """Whether a client finds a service here."""
        return self._is_alive and self._is_found and self._world.now >= self._frozen_until

    @property
    def pid(self) -> int:
        """Of its process."""
        return 1 + self.number

    @property
    def peer(self) -> bytes:
        """What the core calls it."""
        return self._dealer.peer

    @property
    def num_unanswered(self) -> int:
        """Queries without an answer."""
        return len(self._queries)

    # --- what clients want ---

    def open(self, submit: m.Submit, reader: Reader) -> bool:
        """Submit a request; False if that cannot be here and now."""
        is_used = submit.request_id in self._readers or submit.request_id in self._attaching
        if not self.is_up or is_used or not self._dealer.send(submit):
            return False
        self._readers[submit.request_id] = reader
        return True

    def attach(self, request_id: str, reader: Reader) -> bool:
        """Continue a request; False if that cannot be here and now."""
        if not self.is_up or not self._dealer.send(m.Attach(request_id=request_id)):
            return False
        self._attaching.setdefault(request_id, deque()).append(reader)
        return True

    def leave(self, request_id: str, reader: Reader, *, may_come_back: bool) -> None:
        """The client's connection broke, or it wants no more."""
        if self._readers.get(request_id) is not reader:
            return
        del self._readers[request_id]
        if request_id not in self._attaching:  # else the core would take it for the one that comes
            self.tell(m.Detach(request_id=request_id) if may_come_back else m.Cancel(request_id=request_id))

    def end(self, request_id: str, reader: Reader) -> None:
        """The reader has all it wanted."""
        if self._readers.get(request_id) is reader:
            del self._readers[request_id]

    def tell(self, message: m.FrontendToCore) -> None:
        """Send something that needs no answer, or whose answer no client waits for."""
        if self._world.now < self._frozen_until:
            self._world.at(self._frozen_until, self.tell, message)
        elif self._is_alive:
            self._world.say(f"front{self.number}", message)
            self._dealer.send(message)

    def ask(self, query: type[m.StatusQuery | m.MetricsQuery | m.DrainExecutor], **fields: object) -> None:
        """Ask the core something."""
        if self.is_up:
            self._num_queries += 1
            answer = {m.StatusQuery: m.Status, m.MetricsQuery: m.Metrics, m.DrainExecutor: m.DrainReply}[query]
            if self._dealer.send(query(query_id=self._num_queries, **fields)):
                self._queries[self._num_queries] = answer

    # --- what happens to it ---

    def kill(self) -> None:
        """kill -9."""
        self._is_alive = False
        self._dealer.close()
        self._fail_all()

    def freeze(self, until: float) -> None:
        """SIGSTOP, and SIGCONT at a time."""
        self._frozen_until = max(self._frozen_until, until)
        self._dealer.cut(self._frozen_until, up=False)

    def read_slowly(self, until: float) -> None:
        """It reads nothing for a while, and goes on otherwise."""
        self._dealer.cut(until, up=False)

    def reset(self) -> None:
        """Its connection to the core breaks."""
        self._dealer.reset()

    # --- inside ---

    def _beat(self) -> None:
        if self._is_alive:
            if self._world.now >= self._frozen_until:
                self._dealer.send(m.FrontendHello(pid=self.pid))
            self._world.at(max(self._world.now + HELLO_INTERVAL_S, self._frozen_until), self._beat)

    def _connection_changed(self, is_connected: bool) -> None:
        if is_connected:
            self._dealer.send(m.FrontendHello(pid=self.pid))
        else:
            self._is_found = False
            self._fail_all()

    def _receive(self, message: m.CoreToFrontend) -> None:
        self._is_found = True
        match message:
            case m.Outputs():
                for delta in message.deltas:
                    if (reader := self._readers.get(delta.request_id)) is not None:
                        reader.delta(delta)
                    if delta.code == "taken_over":
                        self._readers.pop(delta.request_id, None)
            case m.Accepted(request_ids=request_ids):
                for reader in [self._readers[name] for name in request_ids if name in self._readers]:
                    reader.accepted()
            case m.Attached():
                self._attached(message)
            case m.FleetState():
                self.fleet = message
            case m.Status() | m.Metrics() | m.DrainReply():
                expected = self._queries.pop(message.query_id)
                assert isinstance(message, expected), f"{message} is no answer to that query"

    def _attached(self, answer: m.Attached) -> None:
        """The core answers the Attaches of one request in their order."""
        self._world.say(f"front{self.number}", answer)
        waiting = self._attaching[answer.request_id]
        reader = waiting.popleft()
        if not waiting:
            del self._attaching[answer.request_id]
        if answer.found and (earlier := self._readers.pop(answer.request_id, None)) is not None:
            earlier.broken()
        if reader.is_wanted:
            if answer.found:
                self._readers[answer.request_id] = reader
            reader.attached(answer)
        elif answer.found and answer.request_id not in self._attaching:
            self.tell(m.Detach(request_id=answer.request_id))

    def _fail_all(self) -> None:
        readers = list(self._readers.values())
        for waiting in self._attaching.values():
            readers += waiting
        self._readers.clear()
        self._attaching.clear()
        self._queries.clear()
        for reader in readers:
            reader.broken()
