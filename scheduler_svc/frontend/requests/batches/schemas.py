"""What a request for a batch may have, and the fields of an upload."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.strict import Allowing, Strict

HOUR_S = 3600
SHORTEST_EXPIRY_S, LONGEST_EXPIRY_S = HOUR_S, 30 * 24 * HOUR_S  # as OpenAI has them
MAX_WINDOW_HOURS = 30 * 24
MAX_METADATA = 16
FILE_ID = r"file-[A-Za-z0-9]{1,64}"
BATCH_ID = r"batch_[A-Za-z0-9]{1,64}"
PURPOSES = ("batch",)  # those with an effect
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h", re.ASCII)


def _endpoint(value: str) -> str:
    if value not in BATCH_ENDPOINTS:
        allowed = ", ".join(BATCH_ENDPOINTS)
        raise PydanticCustomError("unsupported_parameter", "it should be one of {allowed}", {"allowed": allowed})
    return value


def _window(value: str) -> str:
    window_s(value)
    return value


BATCH_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


class ExpiresAfter(Strict):
    """When a file is forgotten."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=SHORTEST_EXPIRY_S, le=LONGEST_EXPIRY_S)]


class BatchRequest(Allowing):
    """POST /v1/batches."""

    input_file_id: Annotated[str, Field(max_length=128)]
    endpoint: Annotated[str, AfterValidator(_endpoint)]
    completion_window: Annotated[str, AfterValidator(_window)]
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=MAX_METADATA),
    ] = {}
    output_expires_after: ExpiresAfter | None = None


def window_s(value: str) -> float:
    """Seconds of a completion window such as `24h`."""
    match = _WINDOW.fullmatch(value)
    if match is None or int(match[1]) > MAX_WINDOW_HOURS:
        message = "it should be a number of hours from '1h' to '{most}h', such as '24h'"
        raise PydanticCustomError("completion_window", message, {"most": MAX_WINDOW_HOURS})
    return float(int(match[1]) * HOUR_S)


def upload_expiry(fields: dict[str, str]) -> float | None:
    """Seconds after which an uploaded file is to be forgotten: of its form's fields. Raises ApiError (400) for values
    that they cannot have."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise _refused("'expires_after[anchor]' should be 'created_at'", "expires_after[anchor]")
    limits = f"from {SHORTEST_EXPIRY_S} to {LONGEST_EXPIRY_S}"
    if seconds is None or re.fullmatch(r"[0-9]{1,8}", seconds, re.ASCII) is None:
        raise _refused(f"'expires_after[seconds]' should be a number {limits}", "expires_after[seconds]")
    if not SHORTEST_EXPIRY_S <= int(seconds) <= LONGEST_EXPIRY_S:
        raise _refused(f"'expires_after[seconds]' is {seconds}, it should be {limits}", "expires_after[seconds]")
    return float(seconds)


def upload_purpose(fields: dict[str, str]) -> str:
    """The purpose of an uploaded file. Raises ApiError (400) for one that has no effect here."""
    purpose: Any = fields.get("purpose")
    if purpose is None:
        raise ApiError(
            400, "Missing required parameter: 'purpose'.", code="missing_required_parameter", param="purpose"
        )
    if purpose not in PURPOSES:
        message = (
            f"The purpose '{purpose[:64]}' has no effect on this server; it takes files for: {', '.join(PURPOSES)}."
        )
        raise ApiError(400, message, code="unsupported_parameter", param="purpose")
    return str(purpose)


def _refused(reason: str, param: str) -> ApiError:
    return ApiError(400, f"Invalid value for '{param}': {reason}.", code="invalid_value", param=param)
