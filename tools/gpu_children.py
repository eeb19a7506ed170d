"""Processes that use a GPU, forked by one that does not: what the proof and the facts of a keeper are made of.

The process that forks plays the keeper. It has imported torch, so that its children need not, and never opens a device:
a fork of a process that has used CUDA cannot use CUDA, and a keeper without CUDA is what is to be shown. A child plays
a function of `gpu_keeper_roles.py`. Both sides talk by JSON over a socket, with descriptors beside it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICE_FILES = "/dev/nvidia"
LOWEST = 3  # the descriptor of a child's socket: each file that CUDA opens has a higher one
ENOUGH_S = 30.0  # for a child's word: making a context takes less than a second, or some seconds without persistence
SLOW_END_S = 10.0  # for the end of a killed child at the end of its block

Figures = dict[str, Any]
MakeDriver = Callable[[], Any]
Role = Callable[..., None]


class Fault(Exception):
    """A child could not do its part.

    Args:
        told: its last word, with an `outcome`.
    """

    def __init__(self, told: Figures) -> None:
        super().__init__(str(told))
        self.told = told


def failed(error: str) -> Fault:
    """Make a fault that says that the tool itself failed."""
    return Fault({"outcome": "failed", "error": error})


@dataclass(frozen=True)
class Death:
    """When a killed child's end showed, in nanoseconds of the monotonic clock.

    Attributes:
        signalled: SIGKILL was sent.
        pidfd: it was readable.
        hung_up: the other end of each watched socket was closed, in the order of the call.
    """

    signalled: int
    pidfd: int
    hung_up: tuple[int, ...]


class Child:
    """A process that plays a role.

    Args:
        sock: to the process.
        deadline_s: when waiting for the process ends, on the monotonic clock.
    """

    def __init__(self, pid: int, sock: socket.socket, deadline_s: float) -> None:
        self.pid = pid
        self.sock = sock
        self._pidfd = os.pidfd_open(pid)
        self._deadline_s = deadline_s

    def told(self) -> Figures:
        """What it says next, without descriptors."""
        return self.handed()[0]

    def handed(self) -> tuple[Figures, list[int]]:
        """What it says next, and the descriptors that came along, which are the caller's.

        Raises:
            Fault: it says that it failed, says nothing in time, or has ended.
        """
        left_s = self._enough_s()
        self.sock.settimeout(left_s)
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, 4)
        except TimeoutError as error:
            raise failed(f"a child said nothing for {left_s:.1f} s") from error
        except ConnectionError as error:
            raise failed("a child ended without a word") from error
        told: Figures = json.loads(data) if data else {"outcome": "failed", "error": "a child ended without a word"}
        if "outcome" in told:
            for fd in fds:
                os.close(fd)
            raise Fault(told)
        return told, list(fds)

    def ask(self, **question: Any) -> Figures:
        """Say something, and hear the answer."""
        with contextlib.suppress(ConnectionError):  # what it said last, or that it has ended, is heard next
            self.sock.send(json.dumps(question).encode())
        return self.told()

    def kill(self, *watched: socket.socket) -> Death:
        """End it by SIGKILL, and wait for its pidfd and until each of its sockets is closed.

        Raises:
            Fault: it does not end in time.
        """
        open_ = {self._pidfd: 0} | {sock.fileno(): 0 for sock in watched}
        poll = select.poll()
        for fd in open_:
            poll.register(fd, select.POLLIN if fd == self._pidfd else 0)  # a socket: its hang-up alone
        signalled = time.monotonic_ns()
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        while not all(open_.values()):
            ended = poll.poll(1000 * self._enough_s())
            now = time.monotonic_ns()
            if not ended:
                raise failed("a killed child has not ended in time")
            for fd, _ in ended:
                open_[fd] = now
                poll.unregister(fd)
        return Death(signalled, open_[self._pidfd], tuple(open_[sock.fileno()] for sock in watched))

    def close(self) -> None:
        """End it, whether it has ended or not. One that takes too long is left to itself."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if poll.poll(1000 * SLOW_END_S):
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self.sock.close()

    def left_s(self) -> float:
        """Seconds in which it is waited for."""
        return self._deadline_s - time.monotonic()

    def _enough_s(self) -> float:
        if self.left_s() <= 0:
            raise Fault({"outcome": "skipped", "error": "no time is left"})
        return min(ENOUGH_S, self.left_s())


class Children:
    """Forks children.

    Args:
        play: has a child play a role; see `gpu_keeper_roles.play`.
        make_driver: makes a child's bindings of CUDA; None for NVIDIA's.
        seconds: after which no child is waited for any more.
    """

    def __init__(self, play: Callable[..., None], make_driver: MakeDriver | None, seconds: float) -> None:
        self._play = play
        self._make_driver = make_driver
        self._deadline_s = time.monotonic() + seconds

    def left_s(self) -> float:
        """Seconds that are left."""
        return self._deadline_s - time.monotonic()

    @contextmanager
    def child(self, role: Role, *fds: int, **arguments: Any) -> Iterator[Child]:
        """A child that plays a role with these descriptors and arguments, until the end of the block."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self._become(role, theirs, fds, arguments)
        theirs.close()
        child = Child(pid, ours, self._deadline_s)
        try:
            yield child
        finally:
            child.close()

    def _become(self, role: Role, sock: socket.socket, fds: tuple[int, ...], arguments: Figures) -> None:
        """Play a role and end, in the child."""
        try:
            # A fork has all descriptors of the keeper, and each of them would keep the memory that it stands for.
            kept = [os.dup(fd) for fd in (sock.fileno(), *fds)]
            for number in _descriptors():
                if number > 2 and number not in kept:
                    with contextlib.suppress(OSError):
                        os.close(number)
            sock.detach()
            if kept[0] != LOWEST:  # the first copy has the lowest number that was free
                os.dup2(kept[0], LOWEST, inheritable=False)
                os.close(kept[0])
            self._play(role, socket.socket(fileno=LOWEST), self._make_driver, tuple(kept[1:]), arguments)
        except BaseException as error:  # whatever it is, the keeper waits for a word
            told = {"outcome": "failed", "error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(OSError):
                socket.socket(fileno=LOWEST).send(json.dumps(told).encode())
        finally:
            os._exit(0)


def has_cuda(handed: tuple[int, ...] = ()) -> bool:
    """Whether this process has a device of CUDA's open. Libraries that it has loaded, as with torch, do no harm.

    Args:
        handed: descriptors of memory that the process was handed; the driver may have made them of a device file.
    """
    return any(fd not in handed and DEVICE_FILES in link for fd, link in links(Path("/proc/self/fd")).items())


def links(folder: Path) -> dict[int, str]:
    """What the descriptors of a process stand for, by a folder of /proc; none if the process is gone."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found[int(name)] = os.readlink(folder / name)
    return found


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]
