"""What a rank other than the first does for its pool while it computes."""

import os
import select
import signal
import threading
import time

from executor_svc.keeper.link import KeeperLink

LEAVE_S = 2.0  # from the end of rank 0 until a rank that it has told to leave has heard so


class FollowerThread(threading.Thread):
    """Says to the keeper that this rank lives, and ends the process when rank 0 has ended.

    Without rank 0 nothing that this rank computes has an answer. But on a GPU it may wait for rank 0 in the middle of a
    step for a long time, and would hold its pool meanwhile: no one could go on with the pools of the group.

    Args:
        link: to the keeper; it is this thread's from now on.
        leader_pid: of rank 0; None if that process cannot be seen from here.
    """

    def __init__(self, link: KeeperLink, leader_pid: int | None) -> None:
        super().__init__(name="follower", daemon=True)
        self._link = link
        self._leader = -1 if leader_pid is None else os.pidfd_open(leader_pid)
        self._is_leaving = threading.Event()

    def leaves(self) -> None:
        """This rank ends in order."""
        self._is_leaving.set()

    def run(self) -> None:
        """Until the process ends."""
        while True:
            now = time.monotonic()
            self._link.receive()
            self._link.tick(now, "serving")
            poller = select.poll()
            for fd in (self._leader, self._link.fileno()):
                if fd >= 0:
                    poller.register(fd, select.POLLIN)
            readable = poller.poll(1000 * max(0.0, self._link.next_tick() - now) + 1)
            if any(fd == self._leader for fd, _ in readable):
                break
        if not self._is_leaving.wait(LEAVE_S):
            os.kill(os.getpid(), signal.SIGKILL)
