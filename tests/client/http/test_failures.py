"""Commands whose `--url` leads to something else than the API, and texts that are none."""

import json

import pytest
from fastapi.responses import Response


def something_else(content, status=200):
    """Return what answers each request with the same."""
    return Response(content, status, media_type="text/html" if content.startswith(b"<") else "application/json")


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
def test_a_url_of_something_else_is_said_to_be(baton, server, tmp_path, monkeypatch, arguments, content):
    monkeypatch.chdir(tmp_path)
    body = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}
    (tmp_path / "in.jsonl").write_text(json.dumps(body))
    server.instead = something_else(content)
    result = baton(*arguments, input="hi")
    assert result.exit_code in (1, 3), result.exception
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize("arguments", [("generate", "hi"), ("status",), ("chat",)], ids=" ".join)
def test_a_page_is_not_shown_as_the_error(baton, server, arguments):
    server.instead = something_else(b"<!DOCTYPE html>no such page", 404)
    result = baton(*arguments, input="hi")
    assert result.exit_code == 1
    assert result.stderr == ("Error: what answers has no API of OpenAI's; does --url name the service? (HTTP 404)\n")


@pytest.mark.parametrize("content", [b"{}", b'{"data": 7}', b'{"data": [{}]}'])
@pytest.mark.parametrize("command", ["generate", "embed"])
def test_a_wrong_list_of_models_is_said_to_be(baton, server, command, content):
    server.instead = something_else(content)
    result = baton(command, "hi")
    assert (result.exit_code, "no list of models" in result.stderr) == (1, True)


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
