"""What frontends leave for one another in the core."""

import msgspec
import pytest

from common.errors import RequestRejected
from scheduler_svc.frontend.answers.answer_context import AnswerContext

CONTEXT = AnswerContext(
    kind="chat",
    created=1_700_000_000,
    model="baton-demo",
    num_prompts=2,
    n=3,
    stop=("\n\n", "🦊"),
    include_usage=True,
    is_resumable=True,
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
        msgspec.msgpack.encode([2, *FIELDS[1:]]),
        msgspec.msgpack.encode([*FIELDS, "of a later version"]),
        msgspec.msgpack.encode([*FIELDS[:4], 0, *FIELDS[5:]]),
    ],
    ids=["nothing", "noise", "cut off", "a map", "version 2", "more fields", "no prompts"],
)
def test_what_another_version_wrote(data: bytes):
    with pytest.raises(RequestRejected, match="this version of Baton cannot go on") as caught:
        AnswerContext.decode(data)
    assert caught.value.code == "internal_error"
