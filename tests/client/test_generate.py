"""`baton generate`."""

import json
import signal

import pytest

from scheduler_svc.client.generate.token_rows import token_rows
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
    """A completion goes on with the text as it is; a message ends where its words do."""
    assert baton("generate", *arguments, input="two\nlines\n").exit_code == 0
    assert server.requests[0]["prompt"] == "two\nlines\n"


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


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "look"}}
CALLING = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "Hm."},
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": " 7}"}}]},
]


@pytest.fixture
def files(tmp_path):
    """Options that name a schema and tools."""
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    return ["--json-schema", tmp_path / "schema.json"], ["--tools", tmp_path / "tools.json"]


def test_a_schema_is_sent_with_either_endpoint(baton, server, files):
    schema, tools = files
    assert baton("generate", "x", *schema).exit_code == 0
    assert baton("generate", "x", *schema, *tools).exit_code == 0
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    assert [request["response_format"] for request in server.requests] == [form, form]


def test_a_wrong_schema_is_wrong_usage(baton, server, tmp_path):
    for text in ("[]", "{"):
        (tmp_path / "schema.json").write_text(text)
        result = baton("generate", "x", "--json-schema", tmp_path / "schema.json")
        assert (result.exit_code, server.requests) == (2, [])
        assert "--json-schema" in result.stderr


@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=str)
def test_tools_make_it_a_chat_whose_calls_are_lines(baton, server, files, options):
    server.deltas.append(CALLING)
    result = baton("generate", *files[1], *options, input="x\n")
    assert (result.exit_code, result.stdout) == (0, "look(at=7)\n")
    assert server.requests[0]["path"] == "/v1/chat/completions"
    assert server.requests[0]["messages"] == [{"role": "user", "content": "x"}]
    assert server.requests[0]["tools"] == [TOOL]


def test_calls_in_json(baton, server, files):
    server.deltas.append(CALLING)
    (choice,) = json.loads(baton("generate", "x", *files[1], "--json").stdout)["choices"]
    assert (choice["text"], choice["finish_reason"], choice["reasoning_content"]) == ("", "tool_calls", "Hm.")
    assert [call["function"] for call in choice["tool_calls"]] == [{"name": "look", "arguments": '{"at": 7}'}]


def test_logprobs_are_a_line_for_each_token(baton, server):
    server.logprobs = True
    rows = """\
"w0 "             -0.5000   60.7%  "x" -0.2500, "w0 " -0.5000
"w1 "             -1.5000   22.3%  "x" -0.2500, "w1 " -1.5000
"""
    result = baton("generate", "x", "--max-tokens", 2, "--logprobs", 1)
    assert (result.exit_code, result.stdout) == (0, rows)
    assert server.requests[0]["logprobs"] == 1
    assert baton("generate", "x", "--max-tokens", 2, "--logprobs", 1, "--no-stream").stdout == rows
    (choice,) = json.loads(baton("generate", "x", "--max-tokens", 2, "--logprobs", 1, "--json").stdout)["choices"]
    assert (choice["text"], choice["logprobs"]["token_logprobs"]) == ("w0 w1 ", [-0.5, -1.5])


def test_logprobs_of_chats(baton, server, files):
    server.logprobs = True
    result = baton("generate", "x", "--max-tokens", 1, "--logprobs", 0, *files[1])
    assert result.stdout == '"w0 "             -0.5000   60.7%\n'
    assert (server.requests[0]["logprobs"], server.requests[0]["top_logprobs"]) == (True, 0)


def listed(**tokens):
    """An entry of `prompt_logprobs`: log-probability and rank of each token."""
    facts = {text: {"logprob": value, "rank": rank, "decoded_token": text} for text, (value, rank) in tokens.items()}
    return {str(number): fact for number, fact in enumerate(facts.values())}


LISTED = [None, listed(ME=(-6.5, 1234), x=(-0.25, 1)), listed(O=(-0.5, 1)), listed(i=(-9999.0, None), O=(-0.5, 1))]


@pytest.mark.parametrize("is_chat", [False, True])
def test_prompt_logprobs_are_lines_before_the_answer(baton, server, files, is_chat):
    server.prompt_logprobs = LISTED
    asked = ["generate", "ROMEO:", "--max-tokens", 2, "--prompt-logprobs", 1, *(files[1] if is_chat else [])]
    result = baton(*asked)
    assert (
        result.stdout
        == """\
"ME"              -6.5000    0.2%   #1234  "x" -0.2500
"O"               -0.5000   60.7%      #1  "O" -0.5000
"i"                  -inf    0.0%  "O" -0.5000
w0 w1 \n"""
    )
    assert (server.requests[0]["prompt_logprobs"], server.requests[0].get("stream")) == (1, None)
    assert json.loads(baton(*asked, "--json").stdout)["prompt_logprobs"] == LISTED


@pytest.mark.parametrize(
    ("logprobs", "row"),
    [
        ({"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None]}, '"a"'),
        ({"tokens": ["a"], "token_logprobs": [-9999.0], "top_logprobs": None}, '"a"                  -inf    0.0%'),
    ],
)
def test_tokens_without_a_number(logprobs, row):
    assert [str(each) for each in token_rows(logprobs)] == [row]


@pytest.mark.parametrize(("value", "exit_code"), [(0.001, 2), (0.01, 0), (100, 0), (101, 2)])
def test_a_repetition_penalty_is_what_the_service_takes(baton, server, value, exit_code):
    assert baton("generate", "hi", "--repetition-penalty", value).exit_code == exit_code
    assert len(server.requests) == (exit_code == 0)


def test_silence_is_a_failure(baton, server):
    server.delay_s = 5
    result = baton("generate", "x", "--timeout", 1)
    assert result.exit_code == 1
    assert "--timeout" in result.stderr


def test_a_silent_stream_that_sends_comments_is_alive(baton, server):
    server.token_delay_s, server.comment_interval_s = 1.1, 0.05
    result = baton("generate", "x", "--timeout", 1, "--max-tokens", 1)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "w0 \n", "")


def test_an_error_without_json_shows_the_text(baton, server):
    server.script.append(Refuse(500, "it broke"))
    assert baton("generate", "x").stderr == "Error: it broke (HTTP 500)\n"


def test_ctrl_c_is_130_and_cancels(start_baton, server):
    server.token_delay_s = 0.05
    server.session = "c2VydmljZS0x"
    process = start_baton("generate", "x")
    assert process.stdout.read(3) == "w0 "
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert "Traceback" not in process.stderr.read()
    eventually(lambda: server.cancelled == 1)
    assert server.known == {}, "not left to go on for one who comes back"
    assert server.sessions == [server.session], "behind a gateway only one service knows the request"
