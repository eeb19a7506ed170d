"""Work of several owners for threads that they share: owners take turns, and each one's work is done in its order."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from common.errors import BatonError

Result = TypeVar("Result")


class QueueFull(BatonError):
    """An owner's work waits or runs in so many pieces already that no other one is taken."""


class FairQueue:
    """Pieces of work by owner. Any thread may call any method; each `put` needs one `do_next` in a thread that works.

    Args:
        max_pieces: that wait or run of an owner that is alone. Owners that have some at the same time share them
            evenly, and each has room for one, so that there are never more than `max_pieces` times the number's
            harmonic sum: nobody is refused for what others have put. None: no limit.
    """

    def __init__(self, max_pieces: int | None = None) -> None:
        self._max_pieces = max_pieces
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}  # owners in the order of turns
        self._counts: Counter[str] = Counter()  # of pieces that wait or run; no zeros

    @property
    def num_pieces(self) -> int:
        """How many wait or run."""
        with self._lock:
            return self._counts.total()

    def put(self, owner: str, work: Callable[[], Result]) -> Future[Result]:
        """Add a piece after the others of its owner. It is left out if the future is cancelled before its turn.

        Raises:
            QueueFull: the owner has its share of `max_pieces`.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._max_pieces is not None:
                limit = max(self._max_pieces // len(self._counts | {owner: 1}), 1)
                if (num := self._counts[owner]) >= limit:
                    raise QueueFull(f"{num} calls of this owner wait, which is its limit at the moment")
            self._counts[owner] += 1
            self._waiting.setdefault(owner, deque()).append((future, work))
        return future

    def do_next(self) -> None:
        """Do the piece whose turn it is; its future has the result, or what was raised."""
        with self._lock:
            owner = next(iter(self._waiting))
            pieces = self._waiting.pop(owner)
            future, work = pieces.popleft()
            if pieces:
                self._waiting[owner] = pieces  # after the other owners
        # A piece is over before its caller hears of it, so that the caller's next one finds the place free.
        try:
            if not future.set_running_or_notify_cancel():
                self._over(owner)
                return
            try:
                result = work()
            except BaseException as error:
                self._over(owner)
                future.set_exception(error)
            else:
                self._over(owner)
                future.set_result(result)
        finally:
            del future, work, pieces  # an error has this frame, and must not hold itself, or what the work was given

    def _over(self, owner: str) -> None:
        with self._lock:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
