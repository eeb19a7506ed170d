"""Two services behind a gateway with the routes of deploy/kubernetes: a stream goes on at its own scheduler."""

import contextlib
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.deploy.manifests import only
from tests.e2e.service import Service, output_of, read, start_baton

RULES = only("gateway", "HTTPRoute")["spec"]["rules"]
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive", "date", "server"}


def matches(match, path, headers):
    """Whether a request fits one match of a rule."""
    prefix = match["path"]["value"]
    wanted = match.get("headers", [])
    return (path == prefix or path.startswith(f"{prefix}/")) and all(
        headers.get(h["name"]) == h["value"] for h in wanted
    )


class Gateway:
    """What a gateway and its endpoint picker do with our route; the pool's schedulers take turns.

    Attributes:
        url: where it listens.
        taken: method, path and number of the scheduler of each request.
    """

    def __init__(self, schedulers):
        gateway, turns = self, itertools.cycle(range(len(schedulers)))
        tokens = [rule["matches"][0]["headers"][0]["value"] for rule in RULES[:-1]]
        self.taken = []

        class Handler(BaseHTTPRequestHandler):
            def forward(self):
                rule = next(r for r in RULES if any(matches(m, self.path, self.headers) for m in r["matches"]))
                (backend,) = rule["backendRefs"]
                is_pool = backend.get("kind") == "InferencePool"
                index = next(turns) if is_pool else int(backend["name"].rpartition("-")[2])
                gateway.taken.append((self.command, self.path, index))
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                with contextlib.suppress(httpx.HTTPError, BrokenPipeError):
                    try:
                        self.pass_on(
                            schedulers[index], headers, body, {"x-session-token": tokens[index]} if is_pool else {}
                        )
                    except httpx.ConnectError:
                        self.send_error(503)

            do_GET = do_POST = do_DELETE = forward

            def pass_on(self, url, headers, body, more):
                with httpx.stream(self.command, url + self.path, headers=headers, content=body, timeout=60) as answer:
                    self.send_response(answer.status_code)
                    for name, value in [*answer.headers.items(), *more.items()]:
                        if name not in HOP_BY_HOP:
                            self.send_header(name, value)
                    self.end_headers()
                    for piece in answer.iter_raw():
                        self.wfile.write(piece)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stream_goes_on_at_its_own_scheduler_when_that_one_was_killed(tmp_path):
    folders = [tmp_path / str(index) for index in range(2)]
    for folder in folders:
        folder.mkdir()
    with contextlib.ExitStack() as stack:
        services = [stack.enter_context(Service(folder)) for folder in folders]
        gateway = stack.enter_context(Gateway([service.url for service in services]))
        model = httpx.get(f"{gateway.url}/v1/models").json()["data"][0]["id"]  # the first turn
        asked = ("generate", "JULIET:\nO Romeo! ", "--model", model, "--max-tokens", 400, "--ignore-eos", "--seed", 7)
        calm = output_of(services[1].start(*asked))
        process = start_baton(gateway.url, *asked)
        begun = read(process, 10)
        services[1].kill_scheduler()
        assert begun + output_of(process, outages=1) == calm
        (post, *rest) = gateway.taken[1:]
        assert post == ("POST", "/v1/completions", 1)
        assert rest
        assert {(method, index) for method, _, index in rest} == {("GET", 1)}
