"""The files of a batch: what is refused before anything is sent, and what a resumed run makes of its output."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.client.batch.files import (
    BatchError,
    BatchResponse,
    BatchResult,
    InOrder,
    ResultFile,
)
from scheduler_svc.client.batch.input import BatchInput, prompt_line, request_line
from scheduler_svc.client.errors import WrongFile


def request(custom_id="a", **changes):
    body = {"prompt": "hi", "max_tokens": 2}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body, **changes}
    ).encode()


def result(custom_id):
    return BatchResult(custom_id=custom_id, response=BatchResponse(200, "r", {"text": "line\nand \u2028"}))


def test_input_is_read_with_blank_lines_and_without_a_last_line_end(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(request("a") + b"\n\n  \n" + request("b"))
    source = BatchInput(path, request_line())
    assert source.check() == {"a", "b"}
    assert [line.custom_id for line in source] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line 2: no valid JSON: Input data was truncated"),
        (b"\xff", "line 2: "),
        (b"[]", "line 2: Expected `object`"),
        (request(url="/v1/embeddings"), "line 2: Invalid enum value '/v1/embeddings' - at `$.url`"),
        (request(method="GET"), "line 2: Invalid enum value 'GET' - at `$.method`"),
        (request(custom_id=""), "line 2: "),
        (request(body=[]), "line 2: Expected `object`"),
        (request(url="/v1/embeddings"), "the service's /v1/batches takes /v1/embeddings, too"),
        (request("first"), "line 2: custom_id 'first' is in line 1 already"),
        (request(body={"stream": True}), "line 2: a batch cannot be streamed"),
        (request(body={"prompt_logprobs": 0}), "line 2: a batch has no `prompt_logprobs`"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, reason):
    path = tmp_path / "in.jsonl"
    path.write_bytes(request("first") + b"\n" + line + b"\n" + request("last") + b"\n")
    with pytest.raises(WrongFile) as caught:
        BatchInput(path, request_line()).check()
    assert reason in caught.value.message


def test_many_bad_lines_are_counted(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n" * 25)
    with pytest.raises(WrongFile, match="and 15 more"):
        BatchInput(path, request_line()).check()


@pytest.mark.parametrize("content", [b"Who was Romeo?\nAnd Juliet?\n", b"\n[\n", b"\xff\xfe", b"id,prompt\n1,Hi\n"])
def test_a_file_of_something_else_is_one_line_with_the_format(tmp_path, content):
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(WrongFile) as caught:
        BatchInput(path, request_line()).check()
    message = caught.value.message
    example = message.partition("object: ")[2].partition("; --prompts takes a file with a prompt a line")[0]
    assert request_line()(1, example.encode()).body == {"prompt": "Hi", "max_tokens": 50}
    assert "\n" not in message


def test_prompts_are_lines_of_a_text(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes('\ufeffWho was Romeo?\r\n\n  \nÖl: {"a": 1} '.encode())
    source = BatchInput(path, prompt_line(7, as_chat=False))
    assert source.check() == {"1", "4"}
    assert [line.body for line in source] == [
        {"prompt": "Who was Romeo?", "max_tokens": 7},
        {"prompt": 'Öl: {"a": 1} ', "max_tokens": 7},
    ]
    (first, _) = BatchInput(path, prompt_line(7, as_chat=True))
    assert first.url == "/v1/chat/completions"
    assert first.body == {"messages": [{"role": "user", "content": "Who was Romeo?"}], "max_completion_tokens": 7}


def test_prompts_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(WrongFile, match="line 2: 'utf-8' codec"):
        BatchInput(path, prompt_line(7, as_chat=False)).check()


def test_results_are_read_back(tmp_path):
    path = tmp_path / "out.jsonl"
    failed = BatchResult(custom_id="b", error=BatchError("timeout", "too slow"))
    with ResultFile(path, {"a", "b"}) as output:
        assert output.finished == {}
        output.append(result("a"))
        output.append(failed)
    first, second = map(json.loads, path.read_bytes().splitlines())
    assert first["id"].startswith("batch_req_")
    assert first["response"] == {"status_code": 200, "request_id": "r", "body": {"text": "line\nand \u2028"}}
    assert first["error"] is None
    assert (second["response"], second["error"]) == (None, {"code": "timeout", "message": "too slow"})
    with ResultFile(path, {"a", "b", "c"}) as output:
        assert output.finished == {"a": False, "b": True}


LINES = [msgspec.json.encode(result(custom_id)) + b"\n" for custom_id in "abc"]


@given(st.integers(0, sum(map(len, LINES))))
def test_a_file_cut_anywhere_loses_only_the_torn_line(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    path.write_bytes(b"".join(LINES)[:length])
    with ResultFile(path, {"a", "b", "c"}) as output:
        whole = [line for index, line in enumerate(LINES) if sum(map(len, LINES[: index + 1])) <= length]
        assert list(output.finished) == list("abc")[: len(whole)]
        output.append(result("c"))
    assert path.read_bytes().startswith(b"".join(whole))
    assert path.read_bytes().count(b"\n") == len(whole) + 1


@pytest.mark.parametrize(
    "content", [b"my notes", b"my notes\nmore\n", b'{"custom_id": 3}\n', LINES[0] + b"x", b"\0\0\n" + LINES[0]]
)
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(WrongFile):
        ResultFile(path, {"a"})
    assert path.read_bytes() == content


def test_results_of_another_batch_are_refused(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(LINES[0])
    with pytest.raises(WrongFile, match="custom_id 'a' is unknown"):
        ResultFile(path, {"x"})


def test_two_runs_do_not_write_to_one_file(tmp_path):
    with (
        ResultFile(tmp_path / "out.jsonl", set()),
        pytest.raises(WrongFile, match="another run"),
    ):
        ResultFile(tmp_path / "out.jsonl", set())


@given(st.permutations(range(7)))
def test_in_order_releases_each_result_once_and_as_early_as_it_can(arrivals):
    in_order = InOrder()
    released = []
    for count, index in enumerate(arrivals, start=1):
        released += [int(ready.custom_id) for ready in in_order.add(index, result(str(index)))]
        there = set(arrivals[:count])
        assert released == list(range(next(i for i in range(8) if i not in there)))
