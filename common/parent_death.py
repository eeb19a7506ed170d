"""A child process that the kernel kills when its parent ends, even by SIGKILL (Linux)."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def killed_with(parent: int) -> Callable[[], None] | None:
    """What the child calls, before or after exec, so that it does not outlive its parent; None where that cannot be.

    The kernel kills the child when the *thread* that started it ends.

    Args:
        parent: its process id.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: after fork, only the call itself is safe

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before prctl took effect
            os._exit(1)

    return in_child
