"""Logs for an operator at 3 a.m.: one line an event, with its facts as `key=value`; nothing per token."""

import logging
import sys

import structlog

Logger = structlog.stdlib.BoundLogger


def setup_logging(service: str, level: str = "info") -> None:
    """Send this process's events, and those of libraries that use `logging`, to stderr as logfmt lines.

    Args:
        service: bound to every line (`scheduler`, `frontend`, `executor`).
        level: lowest level shown (`debug`, `info`, `warning`, `error`).
    """
    shared: list[structlog.typing.Processor] = [
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
    structlog.contextvars.bind_contextvars(service=service)
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
