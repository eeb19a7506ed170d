"""What a rank other than the first does for its pool while it computes."""

import os
import select
import signal
import threading
import time
from collections.abc import Sequence

from executor_svc.keeper.link import KeeperLink

LEAVE_S = 2.0  # from the end of rank 0 until a rank that it has told to leave has heard so


class FollowerThread(threading.Thread):
    """Says to the keeper that this rank lives, and ends the process when rank 0 has ended.

    Without rank 0 nothing that this rank computes has an answer. But on a GPU it may wait for rank 0 in the middle of a
    step for a long time, and would hold its pool meanwhile: no one could go on with the pools of the group.

    Args:
        link: to the keeper; it is this thread's until `leave`.
        leader_pid: of rank 0; None if that process cannot be seen from here.
    """

    def __init__(self, link: KeeperLink, leader_pid: int | None) -> None:
        super().__init__(name="follower", daemon=True)
        self._link = link
        self._leader = -1 if leader_pid is None else os.pidfd_open(leader_pid)
        self._leaving = os.eventfd(0)

    def leave(self) -> None:
        """End the thread, because this rank ends in order: from now on the link is the caller's."""
        os.eventfd_write(self._leaving, 1)
        self.join()

    def run(self) -> None:
        """Until the rank leaves, or the process ends."""
        while True:
            now = time.monotonic()
            self._link.receive()
            self._link.tick(now, "serving")
            tick_at = self._link.next_tick()
            readable = _readable((self._leader, self._leaving, self._link.fileno()), max(0.0, tick_at - now))
            if self._leaving in readable:
                return
            if self._leader in readable:
                break
        if not _readable((self._leaving,), LEAVE_S):
            os.kill(os.getpid(), signal.SIGKILL)


def _readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    """Those of some descriptors that are readable, as soon as one is; negative ones are none."""
    poller = select.poll()
    for fd in fds:
        if fd >= 0:
            poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(1000 * timeout_s + 1)}
