"""`baton generate`."""

import json
import signal

import pytest

from tests.client.fake_server import MODEL, Refuse
from tests.support.eventually import eventually


def test_streams_the_text(baton, server):
    result = baton("generate", "ROMEO:", "--max-tokens", 3)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "w0 w1 w2 \n", "")
    assert server.requests[0]["stream"] is True
    assert server.requests[0]["model"] == MODEL


def test_sends_what_was_asked_for_and_nothing_else(baton, server):
    options = "--temperature 0 --top-p 0.9 --top-k 0 --min-p 0.1 --seed 7 --stop a --stop b --ignore-eos"
    options += " --min-tokens 2 --presence-penalty -0.5 --frequency-penalty 0 --repetition-penalty 1.5"
    assert baton("generate", "x", *options.split(), "--reconnect-timeout", 0).exit_code == 0
    sampling = {"temperature": 0.0, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "seed": 7, "stop": ["a", "b"]}
    sampling |= {"min_tokens": 2, "presence_penalty": -0.5, "frequency_penalty": 0.0, "repetition_penalty": 1.5}
    sent = {"model": MODEL, "prompt": "x", "n": 1, "max_tokens": 256, "ignore_eos": True, **sampling}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert server.requests[0] == {**sent, **streamed, "path": "/v1/completions", "authorization": None}
    assert baton("generate", "x").exit_code == 0
    assert (
        not {"temperature", "top_k", "seed", "ignore_eos", "min_tokens", "presence_penalty"} & server.requests[1].keys()
    )


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_reads_the_prompt_from_stdin(baton, server, arguments):
    assert baton("generate", *arguments, input="two\nlines").exit_code == 0
    assert server.requests[0]["prompt"] == "two\nlines"


def test_json_is_one_object_with_text_and_usage(baton):
    answer = json.loads(baton("generate", "a b", "--max-tokens", 2, "--json").stdout)
    assert answer["text"] == "w0 w1 "
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"] == [{"index": 0, "text": "w0 w1 ", "finish_reason": "length"}]


def test_several_answers(baton):
    result = baton("generate", "x", "--n", 2, "--max-tokens", 1)
    assert result.stdout == "w0 \nw0 \n"
    assert "answer 2 of 2" in result.stderr


def test_silence_is_a_failure(baton, server):
    server.delay_s = 5
    result = baton("generate", "x", "--timeout", 0.2)
    assert result.exit_code == 1
    assert "--timeout" in result.stderr


def test_a_silent_stream_that_sends_comments_is_alive(baton, server):
    server.token_delay_s, server.comment_interval_s = 0.5, 0.05
    result = baton("generate", "x", "--timeout", 0.25, "--max-tokens", 1)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "w0 \n", "")


def test_an_error_without_json_shows_the_text(baton, server):
    server.script.append(Refuse(500, "it broke"))
    assert baton("generate", "x").stderr == "Error: it broke (HTTP 500)\n"


def test_ctrl_c_is_130_and_cancels(start_baton, server):
    server.token_delay_s = 0.05
    process = start_baton("generate", "x")
    assert process.stdout.read(3) == "w0 "
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert "Traceback" not in process.stderr.read()
    eventually(lambda: server.cancelled == 1)
    assert server.known == {}, "not left to go on for one who comes back"
