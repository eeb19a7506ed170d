"""FastAPI as frontends and the worker use it."""

from fastapi import FastAPI


def new_app() -> FastAPI:
    """An application without FastAPI's own pages, redirects and telemetry.

    A redirect for a slash too many would lead to whatever `Host` says. FastAPI's telemetry knows nothing of what the
    core does, and has the texts of exceptions; `tracing/` makes the spans.
    """
    off = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}
    # Older versions of FastAPI have no `telemetry`, and take parameters that they do not know.
    return FastAPI(
        title="Baton",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=off,  # type: ignore[arg-type]
    )
