"""Commands whose `--url` leads to something else than the API, and texts that are none."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "hi"),
        ("generate", "hi", "--model", "m"),
        ("generate", "hi", "--model", "m", "--no-stream"),
        ("embed", "hi"),
        ("embed", "hi", "--model", "m"),
        ("responses", "create", "hi"),
        ("responses", "create", "hi", "--model", "m"),
        ("responses", "create", "hi", "--model", "m", "--background"),
        ("responses", "get", "resp_1"),
        ("responses", "follow", "resp_1"),
        ("responses", "items", "resp_1"),
        ("responses", "delete", "resp_1"),
        ("drain", "e1"),
        ("status",),
        ("chat",),
        ("batch", "in.jsonl", "out.jsonl"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("content", [b"<html>hello", b"7"], ids=["html", "number"])
def test_a_url_of_something_else_is_said_to_be(baton, tmp_path, monkeypatch, arguments, content):
    monkeypatch.chdir(tmp_path)
    body = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}
    (tmp_path / "in.jsonl").write_text(json.dumps(body))
    with something_else(content) as url:
        result = baton(*arguments, "--url", url, input="hi")
    assert result.exit_code in (1, 3), result.exception
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize("arguments", [("generate", "hi"), ("status",), ("chat",)], ids=" ".join)
def test_a_page_is_not_shown_as_the_error(baton, arguments):
    with something_else(b"<!DOCTYPE html>no such page", 404) as url:
        result = baton(*arguments, "--url", url, input="hi")
    assert result.exit_code == 1
    assert result.stderr == ("Error: what answers has no API of OpenAI's; does --url name the service? (HTTP 404)\n")


@pytest.mark.parametrize("content", [b"{}", b'{"data": 7}', b'{"data": [{}]}'])
@pytest.mark.parametrize("command", ["generate", "embed"])
def test_a_wrong_list_of_models_is_said_to_be(baton, command, content):
    with something_else(content) as url:
        result = baton(command, "hi", "--url", url)
    assert (result.exit_code, "no list of models" in result.stderr) == (1, True)


@contextlib.contextmanager
def something_else(content, status=200):
    """A server that answers each request with the same."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            self.send_header("content-type", "text/html" if content.startswith(b"<") else "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate",),
        ("chat",),
        ("embed",),
        ("embed", "--file", "-"),
        ("responses", "create"),
        ("embed", "--file", "texts"),
    ],
    ids=" ".join,
)
def test_texts_that_are_not_utf_8_are_refused(baton, server, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").write_bytes(b"caf\xe9\n")
    result = baton(*arguments, input=b"caf\xe9\n")
    name = "texts" if "texts" in arguments else "stdin"
    assert result.exit_code == 2, result.exception
    assert f"{name} is not UTF-8" in result.stderr
    assert server.requests == []
