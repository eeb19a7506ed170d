"""`--access-log`: one line of the log for each answer, with nothing of what was asked or answered in it."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from common import messages as m
from common.logging import get_logger
from scheduler_svc.frontend.tracing import names
from scheduler_svc.frontend.tracing.life_spans import Frame
from scheduler_svc.frontend.tracing.request_trace import RequestTrace

Told = tuple[int, m.SequenceLife, Frame]  # the number of a prompt, and what became of one of its sequences

FIELDS = (
    *("id", "request", "trace_id", "key", "address", "method", "endpoint", "status", "error"),
    *("tokens_in", "tokens_cached", "tokens_out", "first_token_s", "total_s", "executors"),
)

log = get_logger("access")


def show_at_any_level() -> None:
    """Write the lines also where `--log-level` hides what is no trouble."""
    logging.getLogger("access").setLevel(logging.INFO)


def write(facts: Mapping[str, Any], trace: RequestTrace | None = None, told: Sequence[Told] = ()) -> None:
    """Write the line of an answer.

    Args:
        facts: of any answer; those that are empty are left out.
        trace: what was noted of one that generates, embeds or scores.
        told: what the core says of its sequences.
    """
    line = dict(facts)
    if trace is not None:
        noted = trace.attributes
        first_s = noted.get(names.TIME_TO_FIRST_CHUNK)
        line |= {
            "id": noted.get(names.RESPONSE_ID) or line.get("id"),
            "trace_id": trace.trace_id,
            "tokens_in": noted.get(names.INPUT_TOKENS) if trace.core_ids else None,  # else nobody computes them here
            "tokens_cached": noted.get(names.CACHED_TOKENS),
            "tokens_out": noted.get(names.OUTPUT_TOKENS),
            "first_token_s": _seconds(first_s if first_s is not None else _first_token_s(trace, told)),
            "executors": ",".join(dict.fromkeys(_executors(told))),
        }
    log.info("answered", **{name: line[name] for name in FIELDS if line.get(name) not in (None, "")})


def _seconds(value: Any) -> float | None:
    return None if value is None else round(value, 4)


def _first_token_s(trace: RequestTrace, told: Iterable[Told]) -> float | None:
    """Return when the core had the first token of all, from the request on: an answer in one piece shows it no sooner
    than the last one."""
    first_ns = [frame.unix_ns(mark.at) for _, life, frame in told for mark in life.marks if mark.what == "first_token"]
    return max(0, min(first_ns) - trace.start_ns) / 1e9 if first_ns else None


def _executors(told: Iterable[Told]) -> Iterator[str]:
    return (mark.executor for _, life, _ in told for mark in life.marks if mark.executor)
