"""What functions of the store raise. Each message names the record, or the value and the limit."""

from common.errors import BatonError


class StoreError(BatonError):
    """The store cannot be used: the message says which file, and what is wrong with it."""


class StoreDamaged(StoreError):
    """The file is ours, and its structure is broken."""


class StoreGone(StoreError):
    """The file of an open store is not in its place any more: nothing was done. It may come back."""


class StoreBusy(StoreError):
    """Others kept the store too long, or too many calls wait: nothing was done, and the call can be made again."""


class StoreClosed(StoreError):
    """The thread of the store has been closed, or was never able to carry the call out."""


class NotFound(BatonError):
    """An owner has no such record (any more).

    Args:
        kind: `response`, `file` or `batch`.
        record_id: the id that was not found.
    """

    def __init__(self, kind: str, record_id: str) -> None:
        super().__init__(f"no {kind} {record_id!r}")
        self.kind = kind
        self.record_id = record_id


class Conflict(BatonError):
    """A record is in a state, or has an id, with which this cannot be done: the message says which."""


class TooManyOpen(BatonError):
    """An owner has as many batches that have not ended as it may have: nothing was added.

    Args:
        num_open: how many the owner has.
        limit: how many the owner may have.
    """

    def __init__(self, num_open: int, limit: int) -> None:
        super().__init__(f"{num_open} batches have not ended, the limit is {limit}")


class QuotaExceeded(BatonError):
    """An owner would have more in the store than the limit: nothing was added.

    Args:
        what: is limited (`stored bytes`).
        used: how much the owner has.
        limit: how much the owner may have.
        is_passing: whether something of it was deleted already, and gives room as soon as it is swept.
    """

    def __init__(self, what: str, used: int, limit: int, *, is_passing: bool) -> None:
        super().__init__(f"{used} of {limit} {what} are in use, and this needs more")
        self.what = what
        self.used = used
        self.limit = limit
        self.is_passing = is_passing


class ChainTooLong(BatonError):
    """A response has more predecessors, or larger ones, than the caller takes.

    Args:
        what: is limited (`responses` or `bytes`).
        limit: the largest number of them.
    """

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"it has more than {limit} {what}")
        self.what = what
        self.limit = limit
