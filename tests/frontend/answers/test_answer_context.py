"""What frontends leave for one another in the core."""

import msgspec
import pytest

from common.errors import RequestRejected
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.parsing.message import MessageRules

CONTEXT = AnswerContext(
    kind="chat",
    created=1_700_000_000,
    model="baton-demo",
    num_prompts=2,
    n=3,
    stop=("\n\n", "🦊"),
    include_usage=True,
    is_resumable=True,
    logprobs=6,
    min_tokens=3,
    include_stop_str_in_output=True,
    skip_special_tokens=False,
    echo=True,
    prompt_logprobs=4,
    is_prompt_only=True,
    message=MessageRules(
        thought="may_open",
        calls="qwen3_coder",
        is_one_call=True,
        stop_in_thought=False,
        calls_in_thought=True,
        parameters={"f": {"a": (), "b": ("null",), "c": None}, "g": {}},
    ),
    has_chunk_usage=True,
    hides_thought=True,
    fills_window=True,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


def test_it_comes_back_as_it_was():
    assert AnswerContext.decode(CONTEXT.encode()) == CONTEXT
    assert CONTEXT.num_choices == 6


FIELDS = msgspec.msgpack.decode(CONTEXT.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        CONTEXT.encode()[:-1],
        msgspec.msgpack.encode({"version": 1}),
        msgspec.msgpack.encode([8, *FIELDS[1:]]),
        msgspec.msgpack.encode([*FIELDS, "of a later version"]),
        msgspec.msgpack.encode([*FIELDS[:4], 0, *FIELDS[5:]]),
    ],
    ids=["nothing", "noise", "cut off", "a map", "version 8", "more fields", "no prompts"],
)
def test_what_another_version_wrote(data: bytes):
    with pytest.raises(RequestRejected, match="this version of Baton cannot go on") as caught:
        AnswerContext.decode(data)
    assert caught.value.code == "internal_error"


def test_version_1_asked_for_nothing_of_version_2():
    """What the release before wrote goes on: its last field is `is_resumable`."""
    written = bytes.fromhex("99 01 a463686174 ce6553f100 a16d 02 03 92 a10a a17a c3 c2")
    asked = AnswerContext(
        version=1,
        kind="chat",
        created=1_700_000_000,
        model="m",
        num_prompts=2,
        n=3,
        stop=("\n", "z"),
        include_usage=True,
        is_resumable=False,
    )
    assert AnswerContext.decode(written) == asked
    assert (asked.logprobs, asked.min_tokens) == (0, 0)
    assert (asked.include_stop_str_in_output, asked.skip_special_tokens) == (False, True)


def test_version_2_asked_for_nothing_of_version_3():
    written = bytes.fromhex("9d 02 aa636f6d706c6574696f6e ce6553f100 a16d 01 02 90 c2 c3 06 03 c3 c2")
    asked = AnswerContext.decode(written)
    assert (asked.version, asked.logprobs, asked.skip_special_tokens) == (2, 6, False)
    assert (asked.echo, asked.prompt_logprobs, asked.is_prompt_only, asked.num_prompt_logprobs) == (False, 0, False, 0)


def test_version_3_asked_for_nothing_of_version_4():
    written = bytes.fromhex("dc0010 03 a463686174 ce6553f100 a16d 01 02 90 c2 c3 06 03 c3 c2 c2 00 c2")
    asked = AnswerContext.decode(written)
    assert (asked.version, asked.kind, asked.logprobs, asked.skip_special_tokens) == (3, "chat", 6, False)
    assert (asked.message, asked.has_chunk_usage, asked.hides_thought) == (MessageRules(), False, False)


def test_version_5_was_of_no_trace():
    fields = [5, *FIELDS[1:-1]]
    asked = AnswerContext.decode(msgspec.msgpack.encode(fields))
    assert (asked.version, asked.fills_window, asked.traceparent) == (5, True, "")


def test_version_6_had_the_older_rules_of_thoughts_and_texts():
    fields = [6, *FIELDS[1:]]
    fields[AnswerContext.__struct_fields__.index("message")] = ["may_open", "hermes", False, {"f": ["a"]}]
    asked = AnswerContext.decode(msgspec.msgpack.encode(fields))
    old = {"stop_in_thought": True, "calls_in_thought": False, "parameters": {}}
    assert asked.message == MessageRules(thought="may_open", calls="hermes", text_parameters={"f": ("a",)}, **old)
