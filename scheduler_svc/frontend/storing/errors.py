"""What the store's errors are to a client."""

from collections.abc import Iterator
from contextlib import contextmanager

from common.logging import get_logger
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.store.errors import (
    ChainTooLong,
    NotFound,
    QuotaExceeded,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreGone,
)

_NOT_FOUND = {"response": "response_not_found", "file": "file_not_found", "batch": "batch_not_found"}

log = get_logger(__name__)


def quota_exceeded(error: QuotaExceeded) -> ApiError:
    """The error (429) for what an owner has no room for. Room comes by waiting only if something was deleted."""
    more = "What was deleted is about to give room" if error.is_passing else "What is deleted gives room"
    return ApiError(429, f"{error}. {more} again.", code="insufficient_quota", retry=error.is_passing)


def store_gone() -> ApiError:
    """Make the error (507) for calls while the store's file is not in its place. The store's thread logs that."""
    message = "The store is gone from the server's disk: nothing can be stored or read until it is back."
    return ApiError(507, message, code="store_gone")


@contextmanager
def as_api_errors(param: str | None = None) -> Iterator[None]:
    """Raise ApiError for errors of the store.

    Args:
        param: the parameter that names what is not found.
    """
    try:
        yield
    except NotFound as error:
        message = f"There is no {error.kind} '{error.record_id[:64]}' here, or none any more."
        raise ApiError(404, message, code=_NOT_FOUND[error.kind], param=param) from error
    except QuotaExceeded as error:
        raise quota_exceeded(error) from error
    except ChainTooLong as error:
        raise ApiError(400, f"The conversation is too long: {error}.", code="invalid_value", param=param) from error
    except StoreBusy as error:
        raise ApiError(503, "The store has too much to do.", code="unavailable", retry=True) from error
    except StoreGone as error:
        raise store_gone() from error
    except StoreDamaged as error:
        message = "The store is damaged, and is about to be replaced by an empty one."
        raise ApiError(503, message, code="unavailable", retry=True) from error
    except StoreError as error:
        log.error("the store failed", reason=str(error))
        raise ApiError(500, "The store failed; the server's log says more.", code="internal_error") from error
