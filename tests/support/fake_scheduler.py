"""A scheduler as one executor's process sees it: a socket, and messages that the test sends."""

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypeVar

import zmq

from common import messages as m
from common.wire import Codec
from tests import ROOT
from tests.support.eventually import eventually

Kind = TypeVar("Kind", bound=m.Message)


class FakeScheduler:
    """A ROUTER socket, and one executor process that connects to it.

    It plans nothing, keeps no pool, checks no message against another, has no keys, and sends a heartbeat only where
    `expect` is asked to. What it does not expect fails the test.

    Args:
        command: of the process, after the interpreter; ENDPOINT in it becomes the socket's.

    Attributes:
        epoch: that the executor was last welcomed to; the first is 1.
        identity: of the connection that the last message came from.
    """

    def __init__(self, *command: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.epoch = 0
        self.identity = b""
        self.codec: Codec[m.ExecutorToScheduler] = Codec(m.ExecutorToScheduler)
        self._listen()
        self.endpoint = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self._output = tempfile.TemporaryDirectory(prefix="executor-")
        self._log_start = 0
        arguments = [part.replace("ENDPOINT", self.endpoint) for part in command]
        with self._file("stdout").open("wb") as stdout, self._file("stderr").open("wb") as stderr:
            self.process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=stdout, stderr=stderr)

    def restart(self) -> None:
        """Lose all connections, as a scheduler that starts again at the same address."""
        self.forget_log()
        self.router.close()
        self.wait_for_log("epoch over")
        self._listen()
        eventually(self._bind)

    def _bind(self) -> bool:
        """False while the address is still that of the socket before."""
        with contextlib.suppress(zmq.ZMQError):
            self.router.bind(self.endpoint)
            return True
        return False

    def close(self) -> str:
        """Kill what is left of the process and return its log. Can be called again."""
        if not self.router.closed:
            self.process.kill()
            self.process.wait()
            self._whole_log = self.log
            self.router.close()
            self.context.term()
            self._output.cleanup()
        return self._whole_log

    # --- what the process prints ---

    @property
    def log(self) -> str:
        """What the process has logged since `forget_log`."""
        return self._file("stderr").read_text()[self._log_start :]

    def forget_log(self) -> None:
        """Begin another log."""
        self._log_start = len(self._file("stderr").read_text())

    def wait_for_log(self, event: str) -> None:
        """Return when the process has logged `event`."""
        eventually(lambda: event in self.log, told=lambda: self.log)

    def wait_for_output(self, line: str) -> None:
        """Return when the process has printed `line` to its output."""
        eventually(lambda: line in self._file("stdout").read_text(), told=lambda: self.log)

    def exit_code(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)

    # --- messages ---

    def send(self, message: m.Message) -> None:
        self.send_frames(*self.codec.encode(message))

    def send_frames(self, *frames: bytes) -> None:
        self.router.send_multipart([self.identity, *frames])

    def receive(self, timeout_s: float = 20.0) -> Any:
        assert self.router.poll(timeout_s * 1000), f"the executor says nothing {self.log}"
        self.identity, *frames = self.router.recv_multipart()
        return self.codec.decode(frames)

    def expect(self, kind: type[Kind], timeout_s: float = 20.0, beat: int = 0) -> Kind:
        """The next message that is no heartbeat, which must be of `kind`. Sends heartbeats of epoch `beat`."""
        deadline = time.monotonic() + timeout_s
        while True:
            if beat:
                self.send(m.SchedulerHeartbeat(epoch=beat))
            message = self.receive(max(0.0, deadline - time.monotonic()))
            if not isinstance(message, m.ExecutorHeartbeat) or kind is m.ExecutorHeartbeat:
                assert isinstance(message, kind), message
                return message

    def join(self) -> m.Hello:
        """Welcome the executor to the next epoch, and hear that it has joined. Hellos that are left are taken, too."""
        hello = self.expect(m.Hello)
        self.epoch += 1
        self.send(m.Welcome(epoch=self.epoch))
        while isinstance(message := self.receive(), m.Hello):
            pass
        assert message == m.ExecutorHeartbeat(epoch=self.epoch), message
        return hello

    def _listen(self) -> None:
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.sndhwm = 0  # a ROUTER silently drops what a slow peer has no room for

    def _file(self, name: str) -> Path:
        return Path(self._output.name, name)
