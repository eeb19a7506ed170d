"""The files behind handles. A descriptor is looked at and closed, and nothing else: no byte is read or mapped."""

import errno
import os
import signal
import stat
from pathlib import Path

from common.errors import KeeperError, WireError
from keeper_svc.actions import Descriptor, Handle, MemoryHandle, ProcessHandle


class Descriptors:
    """Descriptors that came from peers, by their handles, until they are closed."""

    def __init__(self) -> None:
        self._fds: dict[Handle, int] = {}
        self._next_handle = 1
        if not Path("/proc/self/fdinfo").is_dir():
            raise KeeperError("a keeper needs /proc: it says which descriptors are processes")
        # /proc may be that of another PID namespace; then process ids in it mean nothing here.
        self._can_compare = os.readlink("/proc/self") == str(os.getpid())

    def __len__(self) -> int:
        return len(self._fds)

    def fd(self, handle: Handle) -> int:
        """The descriptor behind a handle."""
        return self._fds[handle]

    def take(self, fd: int, peer_pid: int) -> Descriptor:
        """Keep a descriptor that has come.

        Raises:
            WireError: it is a pidfd of another process than the peer; it has been closed.
        """
        pid = _pid_of(fd)
        if pid is not None and pid > 0 and self._can_compare and pid != peer_pid:
            os.close(fd)
            raise WireError(f"a pidfd of process {pid} has come from process {peer_pid}")
        handle = self._next_handle
        self._next_handle += 1
        self._fds[handle] = fd
        if pid is not None:
            return ProcessHandle(handle, _can_signal(fd))
        status = os.fstat(fd)
        return MemoryHandle(handle, status.st_size if stat.S_ISREG(status.st_mode) else None)

    def close(self, handle: Handle) -> None:
        """Keep a descriptor no longer."""
        os.close(self._fds.pop(handle))

    def close_all(self) -> None:
        """The keeper ends."""
        for handle in list(self._fds):
            self.close(handle)


def _pid_of(fd: int) -> int | None:
    """The process of a pidfd, 0 or less if it has ended or is out of sight; None if this is no pidfd."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return None


def _can_signal(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except OSError as error:
        return error.errno == errno.ESRCH  # it has ended, which can be waited for
    return True
