"""How long answers are kept after their end, so that a client whose connection broke finds the rest. Pure.

A client's request with several prompts is several requests of the core, `ID-0`, `ID-1`, ...: the *whole*. Its client
comes back for all of them together, and the first one says how many there are. So they are let go together, some time
after the last of them has ended; until then an open one *holds* those that have ended.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

RETAIN_S = 300.0
MAX_RETAINED = 10_000  # requests that have ended, held ones among them
MAX_RETAINED_BYTES = 128 * 2**20  # of their tokens, log-probabilities and constraints


@dataclass(slots=True)
class _Whole:
    """The prompts of one request of a client.

    Attributes:
        num_open: prompts that have not ended.
        ended: ids of those that have ended and are retained, with their numbers of bytes.
        ended_at: when the last of them ended.
    """

    num_open: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    ended_at: float = 0.0


class Retention:
    """Which requests that have ended are still retained, by id.

    After `let_go` no more than `max_requests` with `max_bytes` are, held ones among them.
    What is beyond that goes: first wholes that are over, in the order of their ends, then what open prompts hold, the
    longest held first.
    """

    def __init__(self, max_requests: int = MAX_RETAINED, max_bytes: int = MAX_RETAINED_BYTES) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._open: dict[str, _Whole] = {}  # nothing of them has ended, or nothing of that is retained
        self._held: OrderedDict[str, _Whole] = OrderedDict()  # in the order in which the first of each ended
        self._over: OrderedDict[str, _Whole] = OrderedDict()  # in the order in which the last of each ended
        self._num_requests = 0
        self._num_bytes = 0

    def __len__(self) -> int:
        """Wholes that are open or retained."""
        return len(self._open) + len(self._held) + len(self._over)

    def opened(self, request_id: str) -> None:
        """A request begins, or is taken up from the journal; also one that has ended, just before `ended`."""
        name = whole_of(request_id)
        whole = self._lift(name)
        whole.num_open += 1
        self._put(name, whole)

    def ended(self, request_id: str, num_bytes: int, now: float) -> None:
        """A request that was opened has ended, with so many bytes to retain."""
        name = whole_of(request_id)
        whole = self._lift(name)
        whole.num_open -= 1
        whole.ended[request_id] = num_bytes
        whole.ended_at = now
        self._num_requests += 1
        self._num_bytes += num_bytes
        self._put(name, whole)

    def let_go(self, now: float) -> Iterator[list[str]]:
        """Forget what is too much, or has been retained long enough: at each step a whole, whose ids are given."""
        while self._over and (self._is_too_much or self._is_oldest_over(now)):
            yield self._forget(self._over.popitem(last=False)[1])
        while self._held and self._is_too_much:
            name, whole = self._held.popitem(last=False)
            self._open[name] = whole
            yield self._forget(whole)

    def _is_oldest_over(self, now: float) -> bool:
        return next(iter(self._over.values())).ended_at + RETAIN_S <= now

    @property
    def _is_too_much(self) -> bool:
        return self._num_requests > self._max_requests or self._num_bytes > self._max_bytes

    def _lift(self, name: str) -> _Whole:
        """The whole of this name, to be put where it belongs; one that is held keeps its place meanwhile."""
        return self._held.get(name) or self._open.pop(name, None) or self._over.pop(name, None) or _Whole()

    def _put(self, name: str, whole: _Whole) -> None:
        if not whole.num_open:
            self._held.pop(name, None)
            self._over[name] = whole
        elif whole.ended:
            self._held[name] = whole
        else:
            self._open[name] = whole

    def _forget(self, whole: _Whole) -> list[str]:
        gone = list(whole.ended)
        self._num_requests -= len(gone)
        self._num_bytes -= sum(whole.ended.values())
        whole.ended = {}
        return gone


def whole_of(request_id: str) -> str:
    """The request of a client that a request of the core is one prompt of: `alice/ID` for `alice/ID-7`. An id without a
    prompt's number names a request that is a whole by itself."""
    whole, _, prompt = request_id.rpartition("-")
    return whole if whole and prompt.isdecimal() else request_id
