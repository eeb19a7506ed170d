"""Why a sequence ended without what it was asked for."""

from common import messages as m
from common.errors import RequestRejected


def failure_of(delta: m.TokenDelta) -> RequestRejected | None:
    """The failure that a delta tells; None if it tells none."""
    match delta.finish_reason:
        case "error":
            message, code = delta.error or "the request failed", delta.code or "internal_error"
            return RequestRejected(message, code, delta.retry_after_s)
        case "cancelled":
            return RequestRejected("the request was cancelled", "cancelled")
        case _:
            return None
