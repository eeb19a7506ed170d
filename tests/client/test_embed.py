"""`baton embed`."""

import io
import json

import numpy as np
import pytest

from tests.client.fake_server import EMBEDDER, MODEL, Refuse, vector_of

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


def test_no_part_of_an_array_is_left(baton, server, tmp_path):
    server.script.extend([None, Refuse(400, "too long")])
    result = baton("embed", "a", "b", "--batch", 1, "--output", tmp_path / "out.npy", "--format", "npy")
    assert (result.exit_code, "too long" in result.stderr) == (1, True)
    assert not (tmp_path / "out.npy").exists()


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
