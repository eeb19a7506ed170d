"""`baton embed`."""

import io
import json
import os

import numpy as np
import pytest

from scheduler_svc.client.processes.local_fleet import free_ports
from tests.client.fake_server import EMBEDDER, MODEL, Drop, Refuse, vector_of

TEXTS = ("a", "two words", "x" * 60)


def test_lines_of_json_are_exact(baton, server):
    result = baton("embed", *TEXTS)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert [line["text"] for line in lines] == list(TEXTS)
    for line in lines:
        assert np.array_equal(np.array(line["embedding"], np.float32), vector_of(line["text"]))
    [sent] = server.requests
    assert sent == {
        "model": EMBEDDER,
        "input": list(TEXTS),
        "encoding_format": "base64",
        "normalize": True,
        "path": "/v1/embeddings",
        "authorization": None,
    }


def test_asks_for_what_was_said(baton, server):
    options = ("--dimensions", 3, "--no-normalize", "--truncate", -1, "--prefix", "query: ", "--model", "m")
    assert baton("embed", "a", *options, "--api-key", "k").exit_code == 0
    sent = {"input": ["query: a"], "dimensions": 3, "normalize": False, "truncate_prompt_tokens": -1, "model": "m"}
    assert server.requests[0].items() >= {**sent, "authorization": "Bearer k"}.items()


def test_lines_of_a_file_in_batches_become_one_array(baton, server, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{'y' * i}\n\n" for i in range(1, 6)))
    result = baton(
        "embed", "--file", tmp_path / "in.txt", "--batch", 2, "--output", tmp_path / "out.npy", "--format", "npy"
    )
    assert (result.exit_code, result.stdout) == (0, "")
    array = np.load(tmp_path / "out.npy")
    assert (array.dtype, array.shape) == (np.float32, (5, 6))
    assert np.array_equal(array, [vector_of("y" * i) for i in range(1, 6)])
    assert [len(request["input"]) for request in server.requests] == [2, 2, 1]


def test_an_array_on_stdout(baton):
    result = baton("embed", "a", "--format", "npy")
    assert np.array_equal(np.load(io.BytesIO(result.stdout_bytes)), [vector_of("a")])


@pytest.mark.parametrize("arguments", [(), ("--file", "-")])
def test_reads_stdin(baton, arguments):
    result = baton("embed", *arguments, "--format", "text", input="one\ntwo\n")
    assert result.stdout.splitlines() == [
        f"{'one':<40}  -3.0000 -2.8571 -2.7143 -2.5714 ... (6 numbers)",
        f"{'two':<40}  -3.0000 -2.8571 -2.7143 -2.5714 ... (6 numbers)",
    ]


def test_long_texts_are_shortened_for_people(baton):
    assert baton("embed", "x" * 60, "a\tb", "--format", "text").stdout.startswith("x" * 37 + "...  -60.0000")


def test_without_a_model_that_says_so_the_first_one_is_asked(baton, server):
    server.embeds = False
    assert baton("embed", "a").exit_code == 0
    assert server.requests[0]["model"] == MODEL


@pytest.mark.parametrize(
    "action", [Refuse(429), Refuse(503), Refuse(429, retry_after="0.3"), Drop()], ids=["429", "503", "later", "broken"]
)
def test_what_passes_is_asked_again(baton, server, clock, action):
    server.script.extend([None, action, action])
    result = baton("embed", "a", "b", "c", "--batch", 1)
    assert result.exit_code == 0, result.stderr
    assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == ["a", "b", "c"]
    assert len(server.requests) == 5
    assert "waiting up to 1:00 min for it" in result.stderr
    if isinstance(action, Refuse) and action.retry_after:
        assert clock.slept_s >= 0.6


@pytest.mark.parametrize(
    ("words", "actions"),
    [
        (("embed", "a", "b", "--batch", 1), (None,)),
        (("generate", "x"), ()),
        (("generate", "x", "--no-stream"), ()),
        (("chat",), ()),
        (("bench", "--num-requests", 1), (None,)),
    ],
)
def test_a_service_without_an_executor_is_not_called_away(baton, server, words, actions):
    server.script.extend([*actions, Refuse(503, "there is no executor", code="no_executor")])
    result = baton(*words, input="x\n")
    assert result.exit_code == 0, result.stderr
    assert "the service is there, but there is no executor (HTTP 503); waiting up to 1:00 min" in result.stderr
    assert "away" not in result.stderr


@pytest.mark.parametrize(
    ("action", "options"),
    [
        (Refuse(503), ("--reconnect-timeout", 0)),
        (Refuse(429, retry_after="100"), ()),
        (Refuse(429, code="insufficient_quota"), ()),
        (Refuse(400), ()),
        (Refuse(503, code="no_executor"), ("--reconnect-timeout", 0)),
    ],
    ids=["no patience", "too late", "quota", "refused", "no executor"],
)
def test_what_does_not_pass_is_asked_once(baton, server, action, options):
    server.script.append(action)
    assert baton("embed", "a", *options).exit_code == (3 if action.status == 503 else 1)
    assert len(server.requests) == 1


def test_a_service_that_was_never_there_is_not_waited_for(baton, clock):
    assert baton("embed", "a", "--model", "m", "--url", f"http://127.0.0.1:{free_ports(1)[0]}").exit_code == 3
    assert clock.slept_s == 0


@pytest.mark.parametrize("before", [None, b"of yesterday"])
def test_a_file_is_whole_or_what_it_was(baton, server, tmp_path, before):
    output, link = tmp_path / "out.npy", tmp_path / "link.npy"
    link.symlink_to(output)
    if before is not None:
        output.write_bytes(before)
        output.chmod(0o640)
    server.script.extend([None, Refuse(400, "too long")])
    options = ("--batch", 1, "--output", link, "--format", "npy")
    result = baton("embed", "a", "b", *options)
    assert (result.exit_code, "too long" in result.stderr) == (1, True)
    assert (output.read_bytes() if output.exists() else None) == before
    assert baton("embed", "a", "b", *options).exit_code == 0
    assert np.load(output).shape == (2, 6)
    assert link.is_symlink()
    assert before is None or output.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in tmp_path.iterdir() if "embed" in path.name} == set(), "nothing else is left"


def test_what_is_no_file_is_written_and_stays(baton, server, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    server.script.extend([None, Refuse(400, "too long")])
    assert baton("embed", "a", "b", "--batch", 1, "--output", pipe).exit_code == 1
    assert json.loads(os.read(reader, 2**16))["text"] == "a"
    assert pipe.is_fifo()
    os.close(reader)


def test_lines_end_with_a_line_feed_alone(baton, server, tmp_path):
    """`str.splitlines` would cut at other characters, too."""
    lines = ["a\u2028b", "c\x0cd", "e\x85f"]
    (tmp_path / "in.txt").write_bytes("\r\n".join([*lines, ""]).encode())
    for arguments in (("--file", tmp_path / "in.txt"), ("--file", "-")):
        result = baton("embed", *arguments, input="\n".join(lines))
        assert [json.loads(line)["text"] for line in result.stdout_bytes.splitlines()] == lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--file", "-"), "two sources"),
        (("--file", "-"), "there is no text"),
        (("a", "--output", "/nowhere/x"), "cannot be written"),
        (("a", "--truncate", -2), "-2"),
    ],
)
def test_wrong_usage(baton, server, arguments, message):
    result = baton("embed", *arguments, input="\n")
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert not server.requests
