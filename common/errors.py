"""Errors that cross a module boundary. Each message names the offending value and the limit."""


class BatonError(Exception):
    """Base of everything Baton raises on purpose."""


class TryAgainError(BatonError):
    """A process cannot start now, and a later start without a change could work: it ends with exit code 75."""


class WireError(BatonError):
    """A message from outside is malformed, out of date or contradicts itself. It is dropped."""


class RequestRejected(BatonError):
    """A request cannot be served; nothing else is harmed.

    Args:
        message: what is wrong, with the value and the limit.
        code: a stable machine-readable word (`context_length_exceeded`, `invalid_value`, `queue_full`, ...).
        retry_after_s: seconds after which the same request may be taken; 0 where that is not known.
    """

    def __init__(self, message: str, code: str = "invalid_value", retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class TaskMissing(RequestRejected):
    """No executor takes the request's task: the message says how one is started that does.

    Args:
        may_come: whether one may come, or come back, so that the same request may succeed later.
    """

    def __init__(self, task: str, *, may_come: bool) -> None:
        start = "--task generate" if task == "generate" else f"--task generate --task {task}"
        message = f"no executor takes the task '{task}': start executors, or baton up, with {start}"
        if task != "generate":
            message += f", or give the task a model of its own by --pooling-model {task}=MODEL"
        super().__init__(message, "no_executor" if may_come else "task_not_served")


class CheckpointError(BatonError):
    """A model folder cannot be served: something is missing, unexpected or unsupported in it."""


class KeeperError(BatonError):
    """A keeper cannot be reached, or does not do what was asked: the message names its socket, or the limit."""
