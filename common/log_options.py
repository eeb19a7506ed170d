"""The options about logs that every service has."""

from collections.abc import Callable
from typing import Any

import click

from common.logging import LOG_FORMAT_VARIABLE, LOG_FORMATS, LOG_LEVELS


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--log-level` and `--log-format`."""
    level = click.option(
        "--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Lowest level of log lines."
    )
    log_format = click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="logfmt",
        envvar=LOG_FORMAT_VARIABLE,
        show_envvar=True,
        help="Format of log lines.",
    )
    return level(log_format(command))
