"""The real frontend process in front of a fake core."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai

from tests import ROOT
from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, Script, echo
from tests.support.forked_frontends import ForkedFrontend, start_frontend
from tests.support.plain_http import NO_TLS, http

REPOSITORY = ROOT
MODEL = "baton-demo"
COMPLETION = {"model": MODEL, "prompt": "x"}


class Frontend:
    """One `python -m scheduler_svc.frontend` on a socket that it inherits, as under the real core.

    Args:
        bind: the address to listen at.
        forked: from a process that has imported it (`forked_frontends`), which a tenth of the CPU time suffices for.
    """

    def __init__(
        self,
        core: FakeCore,
        log_path: Path,
        *options: str,
        bind: str = "127.0.0.1",
        forked: bool = True,
        **environment: str,
    ) -> None:
        self.core = core
        self.log_path = log_path
        with socket.create_server((bind, 0)) as listener, self.log_path.open("wb") as log:
            self.process: ForkedFrontend | subprocess.Popen[bytes]
            self.address = listener.getsockname()
            self.url = f"http://127.0.0.1:{self.address[1]}"
            # Small, and inherited by connections: a reader that stops reading shows at once.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            arguments = ["--core-endpoint", core.endpoint, "--stop-grace", "4", *options]
            environment = os.environ | environment
            if forked:
                self.process = start_frontend(arguments, listener, log.fileno(), environment)
                return
            command = [sys.executable, "-m", "scheduler_svc.frontend", *arguments]
            fd = listener.fileno()
            self.process = subprocess.Popen(
                [*command, "--fd", str(fd)], cwd=REPOSITORY, env=environment, pass_fds=[fd], stderr=log
            )

    def wait_until_ready(self) -> None:
        """Return when a request would be served."""

        def is_ready() -> bool:
            assert self.process.poll() is None, f"the frontend has ended:\n{self.log}"
            with contextlib.suppress(httpx.TransportError):
                return http.get(f"{self.url}/ready", timeout=5).status_code == 200
            return False

        eventually(is_ready, 120, lambda: f"that the frontend is ready:\n{self.log}")

    @property
    def log(self) -> str:
        """What the process has logged so far."""
        return self.log_path.read_text()

    def client(self, api_key: str = "none", **options) -> openai.OpenAI:
        """The published client, unchanged, that does not retry."""
        plain = openai.DefaultHttpxClient(verify=NO_TLS)
        settings = {"api_key": api_key, "max_retries": 0, "timeout": 20, "http_client": plain} | options
        return openai.OpenAI(base_url=f"{self.url}/v1", **settings)

    def post(self, path: str, body: object) -> httpx.Response:
        """A request that the client would not make."""
        return http.post(f"{self.url}{path}", json=body)

    def begin(self, path: str, body: object, num_submits: int = 1, **headers: str) -> socket.socket:
        """The connection of a request, of which the core has so many parts. The client goes when it is closed."""
        before, content = len(self.core.submits), json.dumps(body).encode()
        headers = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(len(content)),
        } | headers
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection = socket.create_connection(self.address, timeout=60)
        connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
        wanted = before + num_submits
        eventually(lambda: len(self.core.submits) >= wanted, 60, lambda: f"that the core has the request:\n{self.log}")
        return connection

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()


@contextlib.contextmanager
def running_frontend(
    *options: str, script: Script = echo, bind: str = "127.0.0.1", forked: bool = True, **environment: str
) -> Iterator[Frontend]:
    """A fake core and a frontend that is ready."""
    with tempfile.TemporaryDirectory() as folder:
        core = FakeCore(Path(folder), script=script)
        frontend = Frontend(core, Path(folder, "log"), *options, bind=bind, forked=forked, **environment)
        try:
            frontend.wait_until_ready()
            yield frontend
        finally:
            frontend.stop()
            core.close()


def assert_openai_shape(answer: httpx.Response, status: int) -> dict:
    """The error in an answer that must be one; nothing of ours may show in it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message", "param", "type"]
    assert "Traceback" not in body["error"]["message"]
    return body["error"]
