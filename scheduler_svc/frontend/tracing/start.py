"""Whether this process notes what becomes of requests, for traces or for the access log. Without the variables that ask
for traces, OpenTelemetry is not even imported."""

import os
from collections.abc import Mapping

from common import __version__
from common.installation import install_command
from common.logging import get_logger
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.tracing.access_log import show_at_any_level
from scheduler_svc.frontend.tracing.request_trace import NoSpans
from scheduler_svc.frontend.tracing.tracing import ClosableSpans, Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"

log = get_logger(__name__)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the variables ask for traces."""
    is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return not is_off and exporter != "none" and _first(environment, ENDPOINTS) != ""


def start_tracing(link: CoreLink, process: str, *, access_log: bool = False) -> Tracing | None:
    """What traces this process's requests; None if it is not to. What keeps it from tracing keeps it from nothing else.

    Args:
        link: to the core, which is asked what became of them.
        process: `frontend` or `worker`.
        access_log: whether each answer has a line in the log.
    """
    if access_log:
        show_at_any_level()
    spans = _spans(process) if is_wanted(os.environ) else None
    return Tracing(spans or NoSpans(), link.life, access_log=access_log) if spans or access_log else None


def _spans(process: str) -> ClosableSpans | None:
    protocol = _first(os.environ, PROTOCOLS)
    if protocol not in ("", PROTOCOL):
        log.warning("no traces", reason=f"Baton exports them by {PROTOCOL}, and not by {protocol}")
        return None
    try:
        from scheduler_svc.frontend.tracing.otel import OtelSpans  # noqa: PLC0415
    except ImportError as error:
        log.warning("no traces", reason=f"{error}; what they need is installed by: {install_command('otel')}")
        return None
    try:
        spans = OtelSpans(process, __version__)
    except Exception as error:  # what a variable may be, the SDK checks in many places and ways
        log.warning("no traces", reason=f"a variable OTEL_... has a wrong value: {error}")
        return None
    log.info("traces are exported", endpoint=_first(os.environ, ENDPOINTS))
    return spans


def _first(environment: Mapping[str, str], variables: tuple[str, ...]) -> str:
    return next((value for name in variables if (value := environment.get(name, "").strip())), "")
