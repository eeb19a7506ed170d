"""Pages of other origins, whose browsers ask before they send."""

from collections.abc import Sequence
from itertools import chain

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from scheduler_svc.frontend.errors import SHOULD_RETRY_HEADER
from scheduler_svc.frontend.http.plain_answers import REQUEST_ID_HEADER
from scheduler_svc.frontend.http.rate_limit_headers import OPENAI_HEADERS
from scheduler_svc.frontend.http.traces import LEFT_OUT_HEADER, MESSAGE_REQUEST_ID_HEADER

METHODS = ("GET", "HEAD", "POST", "DELETE")
EXPOSED = (
    REQUEST_ID_HEADER,
    MESSAGE_REQUEST_ID_HEADER,
    LEFT_OUT_HEADER,
    SHOULD_RETRY_HEADER,
    "retry-after",
    *chain(*OPENAI_HEADERS),
)  # a page sees no others of ours
MAX_AGE_S = 600


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application, for pages of these origins too (`*` for all); unchanged for none.

    A browser's question is answered before any API key is looked for, as it carries none. No cookies are used here, so
    that a page can only send what its user gave it: an API key.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),
        expose_headers=EXPOSED,
        max_age=MAX_AGE_S,
    )
