"""What is in a body is counted before it is decoded, and looked at before it is validated: work is bounded at each."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.frontend.errors import MAX_PARAM_CHARACTERS, ApiError
from scheduler_svc.frontend.requests.body import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_MESSAGES,
    MAX_STRINGS,
    MAX_VALUES,
    BodyLimits,
    count_values,
    parse,
)
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest
from tests.support.effort import examples

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}
IGNORING = " A service that runs with --allow-unknown ignores unknown parameters."
SIGNS = st.text(alphabet='",[]{}\\:a\n\u00e9 ', max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | SIGNS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(SIGNS, inner, max_size=6),
    max_leaves=30,
)


def refusal(raw, schema=CompletionRequest):
    with pytest.raises(ApiError) as caught:
        parse(raw, schema)
    return caught.value.message


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"{" + b",".join(b'"k%d":1' % i for i in range(800_000))[: 8 * 2**20], f"{MAX_STRINGS} strings"),
        (b'{"prompt":[' + b"1," * (MAX_VALUES + 1) + b"1]", f"{MAX_VALUES} values"),
        (b'{"messages":[' + b"{}," * (MAX_CONTAINERS + 1) + b"{}]", f"{MAX_CONTAINERS} objects and arrays"),
        (b'{"a":"' + b'\\",' * MAX_VALUES + b'","b":[' + b"0," * (MAX_VALUES + 1), f"{MAX_VALUES} values"),
        (b"[" * (MAX_CONTAINERS + 1), f"{MAX_CONTAINERS} objects and arrays"),
    ],
    ids=["unknown keys", "numbers", "empty messages", "behind a long text", "depth"],
)
def test_what_holds_too_much_is_not_decoded(raw, what):
    """Or it would be refused as no JSON: none of these is."""
    assert refusal(raw) == f"The body has more than {what}."


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_what_is_not_utf8_is_no_json(encoding):
    """One of its characters may have the byte of a quote, behind which nothing would be counted."""
    content = json.dumps(COMPLETION | {"metadata": {"\u2200": [[]] * 10_000}}, ensure_ascii=False)
    assert "not valid JSON" in refusal(content.encode(encoding))


def test_a_byte_order_mark_does_no_harm():
    assert parse(b"\xef\xbb\xbf" + json.dumps(COMPLETION).encode(), CompletionRequest).prompt == ["x"]


@pytest.mark.parametrize("text", ['",' * 300_000, "\\" * 300_001, '\\"{[,' * 200_000, "\n," * 400_000])
def test_texts_may_have_any_signs(text):
    assert parse(json.dumps(COMPLETION | {"prompt": text}).encode(), CompletionRequest).prompt == [text]


@settings(max_examples=examples(400, quick=100))
@given(value=JSON, indent=st.sampled_from([None, 1]), escape=st.booleans())
def test_the_count_is_exact_for_valid_json(value, indent, escape):
    raw = json.dumps(value, indent=indent, ensure_ascii=escape).encode()
    exact = BodyLimits(*counts(value))
    count_values(raw, exact)
    for name, count in exact._asdict().items():
        if count:
            with pytest.raises(ApiError):
                count_values(raw, exact._replace(**{name: count - 1}))


def counts(value):
    """Strings with names, commas, containers."""
    match value:
        case str():
            return 1, 0, 0
        case dict():
            inner = [counts(each) for pair in value.items() for each in pair]
        case list():
            inner = [counts(each) for each in value]
        case _:
            return 0, 0, 0
    strings, commas, containers = (sum(column) for column in zip(*inner, strict=True)) if inner else (0, 0, 0)
    return strings, commas + max(0, len(value) - 1), containers + 1


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (COMPLETION | {f"k{i}": 1 for i in range(MAX_FIELDS)}, f"has an object with more than {MAX_FIELDS} fields"),
        (COMPLETION | {"metadata": {str(i): 1 for i in range(MAX_FIELDS + 1)}}, f"more than {MAX_FIELDS} fields"),
    ],
)
def test_objects_with_too_many_fields_are_not_validated(content, what):
    assert what in refusal(json.dumps(content).encode())


def test_what_is_nested_too_deeply():
    def nested(depth):
        return json.dumps(COMPLETION | {"metadata": {"a": 0}}).replace("0", "[" * depth + "]" * depth).encode()

    parse(nested(MAX_DEPTH - 2), CompletionRequest)
    assert refusal(nested(MAX_DEPTH - 1)) == f"The body is nested more than {MAX_DEPTH} levels deep."
    assert "nested" in refusal(nested(MAX_CONTAINERS - 10))


def test_a_conversation_has_so_many_messages():
    message = CHAT["messages"][0]
    assert len(parse(json.dumps(CHAT | {"messages": [message] * MAX_MESSAGES}).encode(), ChatRequest).messages)
    longer = json.dumps(CHAT | {"messages": [message] * (MAX_MESSAGES + 1)}).encode()
    assert refusal(longer, ChatRequest) == f"'messages' has {MAX_MESSAGES + 1} messages, the limit is {MAX_MESSAGES}."


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"a": 1, "b": 2}] * MAX_MESSAGES},
        {"messages": [{"role": "user", "content": [{"type": "x"}] * 10_000}]},
        {"tools": [{"type": "x"}] * 128},
        {"stop": [1] * 10_000},
        {"guided_choice": [1] * 10_000},
        {"structured_outputs": {"choice": [1] * 10_000}},
    ],
)
def test_of_a_long_list_that_is_wrong_one_item_is_described(change):
    message = refusal(json.dumps(CHAT | change).encode(), ChatRequest)
    assert "[0]" in message
    assert "[1]" not in message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"temperature": "hot"}, "Invalid value for 'temperature': Input should be a valid number."),
        (
            {"temperature": "hot", "x": 1},
            "Invalid value for 'temperature': Input should be a valid number. Also wrong: 'x'.",
        ),
        ({"messages": None, "u": 1, "v": 2}, "Missing required parameter: 'messages'. Also wrong: 'u' and 'v'."),
        (dict.fromkeys("uvwxyz", 1), f"Unknown parameter: 'u'.{IGNORING} Also wrong: 'v', 'w', 'x' and 2 more."),
        ({"a\nb": 1}, f"Unknown parameter: 'a\\nb'.{IGNORING}"),
        # A value that fits none of several types is one.
        ({"keep_alive": []}, "Invalid value for 'keep_alive': Input should be a valid string."),
    ],
)
def test_all_that_is_wrong_is_named_once(change, told):
    assert refusal(json.dumps(CHAT | change).encode(), ChatRequest) == told


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("repeat_penalty", "repetition_penalty"),
        ("max_new_tokens", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("reasoning_efort", "reasoning_effort"),
        ("lenght_penalty", None),  # is known, and cannot be used
        ("message", None),  # is there
        ("num_ctx", None),
        ("x" * 2**20, None),
    ],
)
def test_the_nearest_parameter_is_named(name, meant):
    message = refusal(json.dumps(CHAT | {name: 1}).encode(), ChatRequest)
    hint = f" Did you mean '{meant}'?" if meant else ""
    assert message == f"Unknown parameter: '{name[:MAX_PARAM_CHARACTERS]}'.{hint}{IGNORING}"


def test_the_nearest_parameter_is_named_inside_of_objects():
    stream = {"stream": True, "stream_options": {"includ_usage": True}}
    message = refusal(json.dumps(CHAT | stream).encode(), ChatRequest)
    assert message == "Unknown parameter: 'stream_options.includ_usage'. Did you mean 'include_usage'?"
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strickt": True}}}
    assert refusal(json.dumps(CHAT | schema).encode(), ChatRequest).endswith("Did you mean 'strict'?")


@settings(max_examples=examples(300, quick=60))
@given(raw=st.binary(max_size=60) | SIGNS.map(str.encode) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_request_or_one_error(raw):
    errors = []
    try:
        parse(raw, CompletionRequest)
    except ApiError as error:
        errors.append(error)
    assert all(error.status == 400 and "\n" not in error.message for error in errors)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"\x1f\x8b\x08\0rest", "compressed (gzip)"),
        (b'{"prompt": "\xff"}', "not UTF-8: invalid start byte, 0xff at byte 12"),
        (b'{"n": NaN}', "NaN is no number"),
        (b'{"n": -Infinity}', "-Infinity is no number"),
        (b'{"n": ' + b"9" * 257 + b"}", "a number of more than 256 characters"),
        (b'{"n": 0.' + b"9" * 256 + b"}", "a number of more than 256 characters"),
        (b'{"a": ' * 20_000 + b"1" + b"}" * 20_000, "nested more than 64 levels"),
        (b'{"n": 1;}', "at character 7"),  # a comma too many has other words, at another place, in Python 3.13
    ],
)
def test_each_kind_of_what_is_no_json_is_told(raw: bytes, told: str):
    assert told in refusal(raw)


def test_long_numbers_in_strings_of_json_are_not_read_either():
    number = "1" * 300
    call = {"function": {"name": "f", "arguments": f'{{"a": {number}}}'}}
    chat = CHAT | {"messages": [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}]}
    [_, message] = parse(json.dumps(chat).encode(), ChatRequest).messages
    assert message.plain()["tool_calls"][0]["function"]["arguments"] == {"arguments": f'{{"a": {number}}}'}
    assert "no valid JSON" in refusal(json.dumps(COMPLETION | {"guided_json": f'{{"const": {number}}}'}).encode())
