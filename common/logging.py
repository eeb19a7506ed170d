"""Logs for an operator at 3 a.m.: one line an event, with its facts as `key=value`; nothing per token."""

import logging
import sys
import time

import structlog

Logger = structlog.stdlib.BoundLogger


def setup_logging(service: str, level: str = "info") -> None:
    """Send this process's events, and those of libraries that use `logging`, to stderr as logfmt lines.

    Args:
        service: stands in every line (`scheduler`, `frontend`, `executor`).
        level: lowest level shown (`debug`, `info`, `warning`, `error`).
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
    render = structlog.processors.LogfmtRenderer(key_order=["time", "level", "service", "event"], bool_as_flag=False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
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


class DropLog:
    """Counts messages that were dropped, and logs at most one line a second however many there are.

    Args:
        log: where the lines go.
        link: names the socket in them (`executors`, `frontends`, `scheduler`, `core`).
    """

    def __init__(self, log: Logger, link: str) -> None:
        self.count = 0
        self._log = log
        self._link = link
        self._unlogged = 0
        self._last_line = float("-inf")

    def dropped(self, sender: str, reason: Exception | str) -> None:
        """A message of `sender` was dropped."""
        self.count += 1
        self._unlogged += 1
        now = time.monotonic()
        if now - self._last_line >= 1.0:
            self._log.warning(
                "message dropped", link=self._link, sender=sender, reason=str(reason)[:300], since_last=self._unlogged
            )
            self._last_line, self._unlogged = now, 0
