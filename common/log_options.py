"""The options about logs that every service has, and how it says why it cannot start."""

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from common.exit_codes import exit_code_of
from common.logging import LOG_FORMAT_VARIABLE, LOG_FORMATS, LOG_LEVELS, get_logger, setup_logging
from common.paths import why_not
from common.printable import printable

OPTION = "--log-format"

log = get_logger(__name__)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--log-level` and `--log-format`."""
    level = click.option(
        "--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Lowest level of log lines."
    )
    log_format = click.option(
        OPTION,
        type=click.Choice(LOG_FORMATS),
        default="logfmt",
        envvar=LOG_FORMAT_VARIABLE,
        show_envvar=True,
        help="Format of log lines.",
    )
    return level(log_format(command))


class CannotStart(click.ClickException):
    """Ends a service that an error keeps from starting, with one line, whatever a path in it is called.

    Args:
        error: that does.
        passing: errors that pass, as in `exit_code_of`.
    """

    def __init__(self, error: Exception, *passing: type[BaseException]) -> None:
        super().__init__(printable(why_not(error)))
        self.exit_code = exit_code_of(error, *passing)  # type: ignore[misc]  # it is an int of the class otherwise


class ServiceCommand(click.Command):
    """The command of a service. Where its log is JSON, the line that says why it cannot start is JSON, too.

    Args:
        service: stands in that line.
    """

    def __init__(self, *args: Any, service: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._service = service

    def main(  # type: ignore[override]  # the third argument is for completion in shells
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **kwargs: Any
    ) -> Any:
        """Run the command as click does. Usage errors call it by its own name, also after `python -m`."""
        prog_name = prog_name or f"baton-{self._service}"
        if not kwargs.get("standalone_mode", True):
            return super().main(args, prog_name, **kwargs)
        try:
            code = super().main(args, prog_name, **kwargs | {"standalone_mode": False})
        except click.ClickException as error:
            if _wants_json(sys.argv[1:] if args is None else args):
                setup_logging(self._service, log_format="json")
                log.error("cannot start", error=error.format_message(), exit_code=error.exit_code)
            elif isinstance(error, CannotStart):
                click.echo(f"baton-{self._service}: {error}", err=True)
            else:
                error.show()
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether the log is to be JSON, also where the arguments are wrong."""
    said = [each.removeprefix(f"{OPTION}=") for each in arguments if each.startswith(f"{OPTION}=")]
    said += [value for name, value in itertools.pairwise(arguments) if name == OPTION]
    return (said[-1] if said else os.environ.get(LOG_FORMAT_VARIABLE)) == "json"
