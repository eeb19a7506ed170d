"""Whose line is opened next: a bounded number of sequences is open, and owners and batches take turns."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

FIRST_LIMIT = 8  # until the core has described itself


@dataclass(frozen=True)
class Entrant:
    """A line that wants to be opened.

    Attributes:
        num_sequences: that the core will have of it.
        most_of_owner: sequences that lines of its owner may have open; 0 for any number.
    """

    owner: str
    batch_id: str
    num_sequences: int
    most_of_owner: int = 0


class LineGate:
    """Lets lines in one by one.

    Owners take turns, and so do the batches of an owner, whatever they have open. A line of more sequences than there
    is room for waits until there is, and the others wait behind it; one of more than the limit has the core to itself.
    So it is with an owner's sequences, but only lines of the same owner wait there.

    Attributes:
        num_open: sequences of lines that are in.
        num_over: of those that have left.
    """

    def __init__(self, limit: int = FIRST_LIMIT) -> None:
        self.num_open = 0
        self.num_over = 0
        self._limit = limit
        self._sequences_of_owner: Counter[str] = Counter()
        self._owners: deque[str] = deque()  # that wait, in the order of their turns
        self._batches: dict[str, deque[str]] = {}  # of each owner, likewise
        self._waiting: dict[tuple[str, str], deque[tuple[Entrant, asyncio.Future[None]]]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether any line waits."""
        return bool(self._waiting)

    def set_limit(self, limit: int) -> None:
        """How many sequences may be open from now on; those that are open stay."""
        self._limit = limit
        self._let_in()

    async def enter(self, entrant: Entrant) -> None:
        """Return when it is the line's turn. `leave` has to be called for it then."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(entrant, turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(entrant)  # it was let in a moment ago
            else:
                self._withdraw(entrant, turn)
                self._let_in()
            raise

    def leave(self, entrant: Entrant) -> None:
        """A line is over, or waits outside for a while."""
        self.num_open -= entrant.num_sequences
        self.num_over += entrant.num_sequences
        self._sequences_of_owner[entrant.owner] -= entrant.num_sequences
        if not self._sequences_of_owner[entrant.owner]:
            del self._sequences_of_owner[entrant.owner]
        self._let_in()

    def _queue(self, entrant: Entrant, turn: "asyncio.Future[None]") -> None:
        name = entrant.owner, entrant.batch_id
        if name not in self._waiting:
            self._waiting[name] = deque()
            if entrant.owner not in self._batches:
                self._batches[entrant.owner] = deque()
                self._owners.append(entrant.owner)
            self._batches[entrant.owner].append(entrant.batch_id)
        self._waiting[name].append((entrant, turn))

    def _withdraw(self, entrant: Entrant, turn: "asyncio.Future[None]") -> None:
        name = entrant.owner, entrant.batch_id
        if (entrant, turn) not in self._waiting.get(name, ()):
            return
        self._waiting[name].remove((entrant, turn))
        if not self._waiting[name]:
            self._batches[entrant.owner].remove(entrant.batch_id)
            self._forget(name)

    def _let_in(self) -> None:
        while (owner := self._next_owner()) is not None:
            batch_id = self._batches[owner][0]
            entrant, turn = self._waiting[owner, batch_id][0]
            if turn.cancelled():  # its task has not run since
                self._withdraw(entrant, turn)
                continue
            if self.num_open and self.num_open + entrant.num_sequences > self._limit:
                return
            self._waiting[owner, batch_id].popleft()
            self._owners.remove(owner)
            self._owners.append(owner)
            self._batches[owner].rotate(-1)
            if not self._waiting[owner, batch_id]:
                self._batches[owner].remove(batch_id)
                self._forget((owner, batch_id))
            self.num_open += entrant.num_sequences
            self._sequences_of_owner[owner] += entrant.num_sequences
            turn.set_result(None)

    def _next_owner(self) -> str | None:
        """The owner whose turn it is, of those that may have their next line open, too."""
        for owner in self._owners:
            entrant, _ = self._waiting[owner, self._batches[owner][0]][0]
            num_open = self._sequences_of_owner[owner]
            if not (entrant.most_of_owner and num_open) or num_open + entrant.num_sequences <= entrant.most_of_owner:
                return owner
        return None

    def _forget(self, name: tuple[str, str]) -> None:
        """A batch waits no longer."""
        owner, _ = name
        del self._waiting[name]
        if not self._batches[owner]:
            del self._batches[owner]
            self._owners.remove(owner)


class Seat:
    """A line's place at the gate, which it may give up for a while.

    Args:
        entrant: the line.
    """

    def __init__(self, gate: LineGate, entrant: Entrant) -> None:
        self._gate = gate
        self._entrant = entrant
        self._is_taken = False

    async def take(self) -> None:
        """Return when it is the line's turn."""
        await self._gate.enter(self._entrant)
        self._is_taken = True

    def give_up(self) -> None:
        """Others may have it, if the line has it."""
        if self._is_taken:
            self._is_taken = False
            self._gate.leave(self._entrant)
