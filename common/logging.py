"""Logs for an operator at 3 a.m.: one line an event, with its facts as `key=value` or JSON; nothing per token, and
nothing that a stranger could flood.
"""

import logging
import sys
import time
from typing import Any

# structlog imports rich where there is one, for tracebacks in colours, which no line here has: a tenth of a second of
# each process's start. Python takes a module that is None for one that is not installed.
_NO_RICH = sys.modules.setdefault("rich", None) is None  # type: ignore[arg-type]

import structlog  # noqa: E402

from common.printable import printable  # noqa: E402

if _NO_RICH:
    del sys.modules["rich"]  # the client's tables need it

Logger = structlog.stdlib.BoundLogger

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("logfmt", "json")
LOG_FORMAT_VARIABLE = "BATON_LOG_FORMAT"
QUIET_S = 1.0  # between two lines about one thing


def setup_logging(service: str, level: str = "info", log_format: str = "logfmt") -> None:
    """Send this process's events, and those of libraries that use `logging`, to stderr, one line an event.

    Args:
        service: stands in every line (`scheduler`, `frontend`, `executor`).
        level: lowest level shown, of LOG_LEVELS.
        log_format: of LOG_FORMATS.
    """

    def add_service(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["service"] = service  # not a context variable: threads do not inherit those
        return event

    shared: list[structlog.typing.Processor] = [
        add_service,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    first = ["time", "level", "service", "event"]
    render: structlog.typing.Processor = structlog.processors.LogfmtRenderer(key_order=first, bool_as_flag=False)
    if log_format == "json":
        render = structlog.processors.JSONRenderer(default=str)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render, _printable],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a request is the client's business
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> Logger:
    """A logger that takes facts as keywords: `log.info("executor joined", executor=name, epoch=3)`."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


class QuietLog:
    """Logs one kind of event now and then; the line says how often it happened since the last line.

    Args:
        log: where the lines go.
        event: the lines' text.
        interval_s: between two lines at least.
        facts: stand in each line.
    """

    def __init__(self, log: Logger, event: str, *, interval_s: float = QUIET_S, **facts: Any) -> None:
        self.count = 0
        self._log = log
        self._event = event
        self._facts = facts
        self._interval_s = interval_s
        self._unlogged = 0
        self._last_line = float("-inf")

    def happened(self, **facts: Any) -> None:
        """Count the event once more. When a line is due, it has the `facts` of the last call."""
        self.count += 1
        self._unlogged += 1
        now = time.monotonic()
        if now - self._last_line >= self._interval_s:
            self._log.warning(self._event, **self._facts, **facts, since_last=self._unlogged)
            self._last_line, self._unlogged = now, 0


class DropLog(QuietLog):
    """Counts messages that were dropped, and logs at most one line a second.

    Args:
        log: where the lines go.
        link: names the socket in them (`executors`, `frontends`, `scheduler`, `core`).
    """

    def __init__(self, log: Logger, link: str) -> None:
        super().__init__(log, "message dropped", link=link)

    def dropped(self, sender: str, reason: Exception | str) -> None:
        """A message of `sender` was dropped."""
        self.happened(sender=sender, reason=str(reason)[:300])


def _printable(_logger: object, _method: str, line: Any) -> str:
    """A rendered line without characters that act on a terminal: facts may be what some peer has sent."""
    return printable(str(line))
