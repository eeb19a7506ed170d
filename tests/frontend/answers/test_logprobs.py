"""Log-probabilities: each token's entry comes once, in order, the same however its tokens came."""

import asyncio
import codecs
import json
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.errors import WireError
from scheduler_svc.frontend.answers import delta_parts
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation, WholeChoice
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from tests.frontend.answers import contexts
from tests.support.demo_tokenizer import EOS, TOKENIZER, ids
from tests.support.effort import examples
from tests.support.fake_core import VOCAB_SIZE, int32

NO_TOKEN = VOCAB_SIZE + 7
BYTES = [i for i, data in TOKENIZER.token_bytes.items() if len(data) == 1 and data >= b"\x80"]
LETTERS = [i for i, data in TOKENIZER.token_bytes.items() if data.strip() in (b"a", b"e", b"i")]
TOKENS = st.sampled_from(BYTES) | st.sampled_from(LETTERS) | st.sampled_from([EOS, NO_TOKEN]) | st.integers(0, 2050)


class Story(NamedTuple):
    """One sequence as the core has it: `rows` and `values` are [tokens, count]."""

    token_ids: list[int]
    rows: np.ndarray
    values: np.ndarray
    reason: m.FinishReason

    def deltas(self, sizes: list[int]) -> Iterator[m.TokenDelta]:
        """In groups of these sizes, over and over; the reason may come by itself."""
        ends = [0, *accumulate(sizes * (len(self.token_ids) // max(sum(sizes), 1) + 1))]
        bounds = [end for end in ends if end < len(self.token_ids)] + [len(self.token_ids)]
        groups = list(pairwise(bounds)) or [(0, 0)]
        for number, (start, end) in enumerate(groups, start=1):
            yield m.TokenDelta(
                request_id="r",
                index=0,
                token_ids=int32(self.token_ids[start:end]),
                finish_reason=self.reason if number == len(groups) else None,
                logprob_ids=self.rows[start:end].astype("<i4").tobytes(),
                logprobs=self.values[start:end].astype("<f4").tobytes(),
            )


@st.composite
def stories(draw: st.DrawFn, count: int) -> Story:
    token_ids = draw(st.lists(TOKENS, max_size=12) | st.lists(TOKENS, min_size=5, max_size=12))
    reason = draw(st.sampled_from(["stop", "length"]))
    if reason == "stop":
        token_ids.append(draw(st.sampled_from([EOS, *LETTERS])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.integers(0, VOCAB_SIZE, (len(token_ids), count))
    values = -rng.exponential(3.0, (len(token_ids), count)).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = -np.inf
    if count:
        rows[:, 0] = token_ids
    return Story(token_ids, rows, values, reason)


def context_of(kind: Literal["chat", "completion"] = "chat", count: int = 3, **more: object) -> AnswerContext:
    return contexts.context_of(kind, logprobs=count, **more)


CONTEXTS = st.builds(
    context_of,
    count=st.sampled_from([1, 2, 6]),
    stop=st.lists(st.text("aei \ufffd", min_size=1, max_size=3), max_size=2).map(tuple),
    min_tokens=st.integers(0, 4),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
)


def read(
    context: AnswerContext, deltas: Iterable[m.TokenDelta], *, after: str = "", turns_between: int = 5, **limits: int
) -> tuple[list[Piece], Generation]:
    """The pieces of an answer whose deltas come with so many turns of the event loop between them."""
    queue = DeltaQueue(lambda _: None, lambda _: None, is_streamed=True, is_resumable=True)
    queue.add("r", 0, 1)
    position = Position.after(after, 1) if after else Position.start(1)
    generation = Generation(queue, TOKENIZER, AnswerSpec("r", context, 3, position), **limits)

    async def put() -> None:
        for delta in deltas:
            queue.put(delta)
            for _ in range(turns_between):
                await asyncio.sleep(0)

    async def run() -> list[Piece]:
        putting = asyncio.create_task(put())
        pieces = [piece async for pieces in generation.pieces() for piece in pieces]
        await putting
        return pieces

    return asyncio.run(asyncio.wait_for(run(), 5)), generation


def read_whole(context: AnswerContext, deltas: Iterable[m.TokenDelta]) -> tuple[dict, int]:
    """The choice of an answer that is not streamed, and how many tokens it counts."""
    queue = DeltaQueue(lambda _: None, lambda _: None, is_streamed=False, is_resumable=False)
    queue.add("r", 0, 1)
    generation = Generation(queue, TOKENIZER, AnswerSpec("r", context, 3, Position.start(1)))

    async def run() -> list[WholeChoice]:
        for delta in deltas:
            queue.put(delta)
        return await asyncio.wait_for(generation.whole(), 60)

    choices = asyncio.run(run())
    answer = json.loads(to_json(format_of("id", context).whole(choices, generation.usage, generation.model)))
    return answer["choices"][0], answer["usage"]["completion_tokens"]


def logprobs_of(context: AnswerContext, pieces: list[Piece]) -> dict:
    """What a client puts together from the chunks."""
    whole: dict[str, list] = {}
    for piece in pieces:
        chunk = json.loads(to_json(format_of("id", context).chunk(piece)))
        for name, value in chunk["choices"][0]["logprobs"].items():
            if isinstance(value, list):
                whole.setdefault(name, []).extend(value)
            else:
                assert (name, value) == ("refusal", None)
    return whole


def by_definition(context: AnswerContext, story: Story, num_tokens: int) -> dict:
    """The log-probabilities of the first tokens, each looked at alone."""
    shown = TOKENIZER.token_bytes if context.skip_special_tokens else TOKENIZER.all_token_bytes
    content, offsets = [], []
    for i, (row, values) in enumerate(zip(story.rows[:num_tokens].tolist(), story.values.tolist(), strict=False)):
        named = [
            (TOKENIZER.all_token_bytes.get(token), max(value, -9999.0))
            for token, value in zip(row, values, strict=True)
        ]
        content.append(
            [
                ("" if data is None else data.decode(errors="replace"), None if data is None else [*data], value)
                for data, value in named
            ]
        )
        before = b"".join(shown.get(token, b"") for token in story.token_ids[:i])
        offsets.append(len(codecs.getincrementaldecoder("utf-8")("replace").decode(before)))
    if context.kind == "chat":
        names = "token", "bytes", "logprob"
        entries = [[dict(zip(names, each, strict=True)) for each in row] for row in content]
        return {"content": [{**first, "top_logprobs": top} for first, *top in entries]}
    return {
        "tokens": [row[0][0] for row in content],
        "token_logprobs": [row[0][2] for row in content],
        "top_logprobs": [
            {row[0][0]: row[0][2]} | {text: value for text, _, value in reversed(row[1:])} for row in content
        ],
        "text_offset": offsets,
    }


def none_of(context: AnswerContext) -> dict:
    """The logprobs of an answer without tokens."""
    return by_definition(context, Story([], np.zeros((0, 1)), np.zeros((0, 1)), "length"), 0)


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["chat", "completion"])
@settings(max_examples=examples(400))
@given(context=CONTEXTS, sizes=SIZES, turns_between=st.sampled_from([0, 1, 5]), data=st.data())
def test_chunks_have_what_the_whole_answer_has(
    kind: str, context: AnswerContext, sizes: list[int], turns_between: int, data: st.DataObject
):
    context = msgspec.structs.replace(context, kind=kind)
    story = data.draw(stories(context.logprobs))
    whole, num_tokens = read_whole(context, story.deltas(sizes))
    logprobs = whole["logprobs"]
    assert logprobs.pop("refusal", None) is None
    assert logprobs == by_definition(context, story, num_tokens)
    pieces, generation = read(context, story.deltas(sizes), turns_between=turns_between)
    assert none_of(context) | logprobs_of(context, pieces) == by_definition(context, story, num_tokens)
    assert generation.usage.completion_tokens == num_tokens
    text = whole["text"] if context.kind == "completion" else whole["message"]["content"]
    assert "".join(piece.text for piece in pieces) == text


@pytest.mark.parametrize("kind", ["chat", "completion"])
@settings(max_examples=examples(400))
@given(context=CONTEXTS, sizes=SIZES, others=SIZES, data=st.data())
def test_a_stream_that_goes_on_after_any_chunk(
    kind: str, context: AnswerContext, sizes: list[int], others: list[int], data: st.DataObject
):
    """Another frontend gets all tokens again, in other groups, and knows from the event's id what the client has."""
    context = msgspec.structs.replace(context, kind=kind)
    story = data.draw(stories(context.logprobs))
    pieces, generation = read(context, story.deltas(sizes))
    whole = by_definition(context, story, generation.usage.completion_tokens)
    for number, piece in enumerate(pieces, start=1):
        event_id = f"{piece.num_tokens}!" if piece.finish_reason else str(piece.num_tokens)
        rest, again = read(context, story.deltas(others), after=event_id)
        assert none_of(context) | logprobs_of(context, [*pieces[:number], *rest]) == whole
        assert again.usage == generation.usage


@settings(max_examples=examples(100))
@given(context=CONTEXTS, data=st.data())
def test_a_long_answer_is_read_in_parts(context: AnswerContext, data: st.DataObject):
    """As many bytes of ids at a time as tokens alone may have, or one token."""
    story = data.draw(stories(context.logprobs))
    [delta] = story.deltas([1000])
    limit = 4 * 8
    parts = delta_parts.parts_of([(0, delta), (1, delta)], 0, most_bytes=limit)
    read_in_parts, _ = read(context, [delta], most_bytes=limit)
    for part in parts:
        num_tokens = sum(len(each.token_ids) // 4 for _, each in part)
        assert num_tokens <= 1 or 4 * num_tokens * (1 + context.logprobs) <= limit
    assert none_of(context) | logprobs_of(context, read_in_parts) == logprobs_of(context, read(context, [delta])[0])
    for choice in (0, 1):
        of_choice = [each for part in parts for number, each in part if number == choice]
        for name in ("token_ids", "logprob_ids", "logprobs"):
            assert b"".join(getattr(each, name) for each in of_choice) == getattr(delta, name)
        assert [each.finish_reason for each in of_choice] == [*[None] * (len(of_choice) - 1), story.reason]


def test_what_follows_a_long_answer_is_read_with_its_end():
    """Deltas share a part where there is room: each part is a turn of the event loop."""
    long, short = (m.TokenDelta("r", 0, token_ids=int32(range(count)), finish_reason="length") for count in (9, 2))
    parts = delta_parts.parts_of([(0, long), (1, short), (2, short)], 0, most_bytes=4 * 8)
    assert [[(choice, len(each.token_ids) // 4) for choice, each in part] for part in parts] == [
        [(0, 8)],
        [(0, 1), (1, 2), (2, 2)],
    ]


def story_of(*tokens: tuple[int, float], reason: m.FinishReason = "length") -> Story:
    """Tokens with a log-probability each, and no likeliest ones."""
    token_ids = [token for token, _ in tokens]
    rows, values = np.array(token_ids).reshape(-1, 1), np.array([value for _, value in tokens]).reshape(-1, 1)
    return Story(token_ids, rows, values, reason)


def told(context: AnswerContext, story: Story) -> list[list[tuple[str, float]]]:
    """The tokens of each chunk, if each token comes alone."""
    pieces, _ = read(context, story.deltas([1]))
    return [[(entry.logprob.token, entry.logprob.logprob) for entry in piece.logprobs or ()] for piece in pieces]


def test_half_a_character_comes_with_the_rest_of_it():
    first, *rest = ids("\u6708")
    assert rest, "a character of several tokens"
    story = story_of((ids("a")[0], -0.5), (first, -1.0), *((token, -2.0) for token in rest), (ids("b")[0], -0.25))
    bad = "\ufffd"
    expected = [[("a", -0.5)], [(bad, -1.0), *[(bad, -2.0)] * len(rest)], [("b", -0.25)]]
    assert told(context_of(count=1), story) == expected


def test_what_a_stop_string_holds_back_comes_with_what_follows():
    one, two, three = (ids(word)[0] for word in (" one", " two", " the"))
    held = story_of((one, -1.0), (two, -2.0), (three, -3.0))
    context = context_of(count=1, stop=(" two three",))
    assert told(context, held) == [[(" one", -1.0)], [(" two", -2.0), (" the", -3.0)]]
    assert told(context, story_of((one, -1.0), (two, -2.0))) == [[(" one", -1.0)], [(" two", -2.0)]], "the end"
    stopped = context_of(count=1, stop=(" two",))
    assert told(stopped, held) == [[(" one", -1.0)], [(" two", -2.0)]], "and none after it"


@pytest.mark.parametrize("include", [False, True])
def test_the_stop_token_has_an_entry_as_in_vllm(include: bool):
    context = context_of(count=1, include_stop_str_in_output=include)
    name = TOKENIZER.all_token_bytes[EOS].decode()
    story = story_of((ids(" one")[0], -1.0), (EOS, -2.0), reason="stop")
    assert told(context, story) == [[(" one", -1.0)], [(name, -2.0)]]
    assert read(context, story.deltas([1]))[1].usage.completion_tokens == 2


@pytest.mark.parametrize("value", [-np.inf, np.nan, -1e30])
def test_what_json_cannot_say(value: float):
    assert told(context_of(count=1), story_of((5, value))) == [[(TOKENIZER.token_texts.of(5).text, -9999.0)]]


def test_tokens_of_one_text():
    """Half characters and ids without a token look alike in an object: the likeliest one counts."""
    [first, second, third] = BYTES[:3]
    rows = np.array([[first, second, third], [ids("a")[0], second, third]])
    values = np.array([[-3.0, -1.0, -2.0], [-3.0, -1.0, -2.0]])
    context = context_of("completion", 3)
    pieces, _ = read(context, Story([first, ids("a")[0]], rows, values, "length").deltas([2]))
    assert logprobs_of(context, pieces)["top_logprobs"] == [{"\ufffd": -1.0}, {"a": -3.0, "\ufffd": -1.0}]


def test_values_are_those_of_the_executor():
    """To the last bit: what is exact across a swap stays so in JSON."""
    value = float(np.float32(-1.2345678))
    assert told(context_of(count=1), story_of((5, value))) == [[(TOKENIZER.token_texts.of(5).text, value)]]


def test_an_answer_without_log_probabilities_has_none():
    context = context_of(count=0)
    pieces, _ = read(context, [m.TokenDelta(request_id="r", index=0, token_ids=int32([5]), finish_reason="length")])
    assert [piece.logprobs for piece in pieces] == [None]
    for kind in ("chat", "completion"):
        form = format_of("id", context_of(kind, 0))
        assert json.loads(to_json(form.chunk(pieces[0])))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("num_logprobs", [0, 2, 6])
def test_as_many_as_were_asked_for(num_logprobs: int):
    """Two tokens have two log-probabilities each."""
    columns = {"logprob_ids": bytes(4 * num_logprobs), "logprobs": bytes(4 * num_logprobs)}
    delta = m.TokenDelta(request_id="r", index=0, token_ids=int32([5, 6]), **columns)
    with pytest.raises(WireError, match=f"2 tokens have {num_logprobs} logprob_ids and {num_logprobs} logprobs, not 2"):
        read(context_of(count=2), [delta])
