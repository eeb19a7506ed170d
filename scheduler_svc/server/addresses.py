"""Where the scheduler listens for HTTP, and where its frontends find it."""

import contextlib
import errno
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from common.logging import get_logger

ADDRESS_TIMEOUT_S = 15.0  # for a scheduler that was killed: its frontends die with it, as soon as the kernel can
RETRY_S = 0.1
BACKLOG = 2048

log = get_logger(__name__)


def listen(
    host: str, port: int, is_stopping: Callable[[], bool] = lambda: False, timeout_s: float = ADDRESS_TIMEOUT_S
) -> socket.socket:
    """A listening TCP socket that child processes may inherit.

    Waits while another process has the address: a scheduler that was here before may still be ending.

    Args:
        is_stopping: whether to wait no longer.
        timeout_s: how long to wait.

    Raises:
        OSError: the address is not free in time, or not on this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    give_up_at = time.monotonic() + timeout_s
    is_first = True
    while True:
        try:
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > give_up_at or is_stopping():
                raise
            if is_first:
                log.warning("the address is in use, waiting for it", host=host, port=port, wait_s=timeout_s)
            is_first = False
            time.sleep(RETRY_S)
        else:
            listener.set_inheritable(True)
            return listener


@contextlib.contextmanager
def private_endpoint() -> Iterator[str]:
    """A ZeroMQ endpoint between the core and its frontends, which no other user of this machine can use.

    On Linux it is a name without a file, of which nothing can be removed under a running service, or left behind by one
    that was killed; the core turns other users away. Elsewhere it is a file in a private folder.
    """
    if sys.platform != "linux":
        folder = tempfile.mkdtemp(prefix="baton-")  # mode 0700
        try:
            yield f"ipc://{folder}/core"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    yield f"ipc://@baton-{os.getpid()}-{secrets.token_hex(8)}"
