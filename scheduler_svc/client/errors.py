"""How a command fails: one clear line on stderr and an exit code that a script can act on."""

import click

from common.installation import this_command

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130

EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 the request, or some lines of a batch, failed; 2 wrong usage or configuration; "
    "3 the service cannot be reached, is not ready, or cannot start now (a port is in use); 130 interrupted."
)


class RequestFailed(click.ClickException):
    """The service answered with an error, or broke off in the middle of an answer.

    Attributes:
        status: HTTP status of an error answer; 0 for other failures.
        code: the service's code for the error (`queue_full`), from such an answer or from a stream's last event.
        retry_after_s: how long the service wants to be left alone; 0 if it does not say.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, status: int = 0, code: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class ConnectionBroke(RequestFailed):
    """The connection ended before the answer did; whether the service has the request is not known."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"the connection to {url} broke: {reason}")


class ServiceSilent(RequestFailed):
    """The service has sent nothing for longer than the timeout."""

    def __init__(self) -> None:
        super().__init__("the service has sent nothing for too long; see --timeout")


class ServiceUnreachable(click.ClickException):
    """No service answers at the URL."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, url: str, reason: str) -> None:
        start = f"start one with `{this_command()} up`, or name another by --url"
        super().__init__(f"no service answers at {url} ({reason}); {start}")


class ServiceNotReady(RequestFailed):
    """The service answers 503: it is starting or stopping, or it has no executor."""

    exit_code = EXIT_UNREACHABLE


class FleetError(click.ClickException):
    """A service on this machine ended, or ran out of time, before it could serve."""

    exit_code = EXIT_UNREACHABLE


class FleetMisconfigured(FleetError):
    """A service on this machine cannot start as configured; trying again would not help."""

    exit_code = EXIT_USAGE


class OutputFailed(click.ClickException):
    """The output takes nothing more, as the disk is full maybe; what it has stays."""

    exit_code = EXIT_FAILED


class WrongFile(click.ClickException):
    """A file, or what stdin gives, cannot be used; nothing has been sent."""

    exit_code = EXIT_USAGE
