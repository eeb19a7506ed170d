"""The input of a batch: lines wherever the bytes are cut, what a line may be, what a file may be; and forms."""

import asyncio
import contextlib
import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_svc.frontend.background import batch_input
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.multipart import FormReader, PartBegins, PartData, PartEnds
from scheduler_svc.frontend.requests.batches.input_check import MAX_ERRORS, InputCheck
from scheduler_svc.frontend.requests.batches.input_lines import InputLine, LineProblem, LineSplitter, read_line
from scheduler_svc.store import files
from scheduler_svc.store.records import Progress
from tests.store.rows import batch
from tests.support.instructions import instructions_of

MOST = 12  # bytes of a line in these tests
URL = "/v1/completions"
LINE = st.lists(st.sampled_from([b"a", b" ", b"\r", b"\xc3\xa4", b"0123456"]), max_size=4).map(b"".join)
CONTENT = st.lists(st.one_of(LINE, st.just(b"\n"), st.just(b"\xef\xbb\xbf"))).map(b"".join)
CUTS = st.lists(st.integers(0, 60))


def pieces(content, cuts):
    ends = sorted({min(cut, len(content)) for cut in cuts} | {len(content)})
    return [content[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def split(parts, start=0, number=0):
    splitter = LineSplitter(start, number, MOST)
    return [line for part in parts for line in splitter.feed(part)] + [*splitter.end()]


def as_a_whole(content):
    """What the lines are, by another way."""
    found, start = [], 0
    for place, raw in enumerate(content.split(b"\n"), start=1):
        end = start + len(raw) + 1
        data = raw.removesuffix(b"\r")
        data = data.removeprefix(b"\xef\xbb\xbf") if start == 0 else data
        if data.strip():
            is_kept = len(raw) <= MOST + 1 and len(data) <= MOST
            found.append(InputLine(len(found), place, start, min(end, len(content)), data if is_kept else None))
        start = end
    return found


@given(CONTENT, CUTS)
@example(b"a\r\n\r\n  \nb", [2])
@example(b" " * 40 + b"\n" + b" " * 40 + b"a\n" + b" " * 40, [1, 5])
@example(b"\n \n\r\n\xef\xbb\xbf \n\n a\n", [1, 5])
@example(b"x" * (MOST + 1) + b"\nb", [3, MOST + 1])
@example(b"x" * MOST + b"\r\nb", [MOST + 1])
def test_lines_are_the_same_wherever_the_bytes_are_cut(content, cuts):
    assert split(pieces(content, cuts)) == as_a_whole(content)


@given(CONTENT, CUTS, st.integers(0, 20))
def test_reading_goes_on_at_any_line(content, cuts, chosen):
    lines = split([content])
    if chosen < len(lines):
        start = lines[chosen].start
        again = split(pieces(content[start:], cuts), start, chosen)
        assert [line._replace(place=0) for line in again] == [line._replace(place=0) for line in lines[chosen:]]


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \t\n\n"])
def test_blank_lines_cost_no_step_and_count_as_places(blank):
    """A file may be nothing else: 64 MB of them took the event loop for 49 s."""
    few, many = b"a\n" + blank * 2 + b"b", b"a\n" + blank * 20_000 + b"b"
    assert split([many])[1].place == 2 + 20_000 * blank.count(b"\n")
    assert instructions_of(lambda: split([many])) <= instructions_of(lambda: split([few])) + 20


def test_lines_are_cut_off_as_they_are_asked_for():
    lines = LineSplitter().feed(b"a\n" * 20_000)
    assert instructions_of(lambda: next(lines)) < 300


def test_an_input_of_one_byte_lines_leaves_turns_to_others():
    """Of lines in megabytes, no more are cut off than are looked at, and the event loop has a turn after each group."""
    content = b"\n" * 100_000 + b"x\n" * 3000
    reads, turns, sizes = [], [], []

    class Store:
        def now(self):
            return 2.0

        async def ask(self, owner, function, *_, offset, limit):
            assert (owner, function) == ("ann", files.read)
            reads.append(offset)
            return content[offset : offset + min(limit, 50_000)]

    async def others():
        while True:
            turns.append(len(sizes))
            await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(others())
        async for lines in batch_input.input_lines(Store(), batch("b"), Progress(0, 0)):
            sizes.append(len(lines))  # noqa: PERF401 (the other task looks at it meanwhile)
        task.cancel()

    asyncio.run(main())
    assert sum(sizes) == 3000
    assert max(sizes) == batch_input.LINES_AT_ONCE
    assert len(reads) == 4
    assert max(later - turn for turn, later in itertools.pairwise(turns)) == 1


def line(**changes):
    usual = {"custom_id": "1", "method": "POST", "url": URL, "body": {"model": "m"}}
    return json.dumps({name: value for name, value in (usual | changes).items() if value is not None}).encode()


def test_a_good_line():
    request = read_line(line(body={"model": "m", "stream": False}), URL)
    assert (request.custom_id, json.loads(bytes(request.body))) == ("1", {"model": "m", "stream": False})


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (None, "line_too_long", None),
        (b"no json", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (b'{"body":' + b"[" * 30_000, "invalid_json_line", None),
        (b'{"custom_id": "1", "method": "POST"', "invalid_json_line", None),
        (b"[]", "invalid_type", "body"),
        (line(custom_id=None), "missing_required_parameter", "custom_id"),
        (line(custom_id=1), "invalid_value", "custom_id"),
        (line(custom_id=""), "invalid_value", "custom_id"),
        (line(custom_id="x" * 513), "invalid_value", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/chat/completions"), "mismatched_endpoint", "url"),
        (line(url=None), "mismatched_endpoint", "url"),
        (line(body=None), "invalid_type", "body"),
        (line(body=[1]), "invalid_type", "body"),
        (line(body={"stream": True}), "invalid_value", "body.stream"),
    ],
)
def test_what_no_line_may_be(data, code, param):
    with pytest.raises(LineProblem) as refused:
        read_line(data, URL)
    assert (refused.value.code, refused.value.param) == (code, param)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_line_or_none(data):
    with contextlib.suppress(LineProblem):
        assert read_line(data, URL).custom_id


def check(*datas, **limits):
    found = InputCheck(URL, **limits)
    found.add([InputLine(i, i + 1, 0, 0, data) for i, data in enumerate(datas)])
    return found


def test_a_good_input():
    found = check(line(custom_id="a"), line(custom_id="b"))
    assert found.end() == []
    assert found.num_lines == 2


def test_an_input_says_which_lines_are_wrong():
    found = check(line(custom_id="a"), b"{", line(custom_id="a"))
    assert [(error.code, error.line) for error in found.end()] == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]


def test_an_input_has_some_lines_and_not_too_many():
    assert [error.code for error in check().end()] == ["empty_file"]
    found = check(*[line(custom_id=str(i)) for i in range(4)], max_lines=2)
    assert [error.code for error in found.end()] == ["too_many_tasks"]
    assert found.is_over


def test_so_many_errors_are_told():
    found = check(*[b"{"] * (MAX_ERRORS + 5))
    assert len(found.end()) == MAX_ERRORS
    assert found.is_over


# --- forms ---

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="\xc3\xa4.jsonl"\r\nContent-Type: x/y\r\n\r\n'
    b"one\r\n--not the end\r\ntwo\n\r\n--b--\r\n"
)


def parts(datas):
    reader = FormReader("multipart/form-data; boundary=b")
    found = []
    for data in datas:
        for event in reader.feed(data):
            match event:
                case PartBegins(name, filename):
                    found.append([name, filename, b""])
                case PartData(data):
                    found[-1][2] += data
                case PartEnds():
                    found[-1].append("whole")
    reader.end()
    return found


@given(st.lists(st.integers(0, len(FORM))))
def test_a_form_is_the_same_wherever_it_is_cut(cuts):
    content = b"one\r\n--not the end\r\ntwo\n"
    assert parts(pieces(FORM, cuts)) == [
        ["purpose", None, b"batch", "whole"],
        ["file", "ä.jsonl", content, "whole"],
    ]


@given(st.integers(0, len(FORM) - 6))
def test_a_form_that_is_cut_off_is_none(end):
    with pytest.raises(ApiError):
        parts([FORM[:end]])


@given(st.binary(max_size=100), st.integers(0, len(FORM)))
def test_any_bytes_are_a_form_or_none(data, place):
    with contextlib.suppress(ApiError):
        assert isinstance(parts([FORM[:place] + data]), list)


def test_a_form_has_so_many_parts():
    part = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n'
    with pytest.raises(ApiError, match="more than 32 parts"):
        parts([part * 40])
