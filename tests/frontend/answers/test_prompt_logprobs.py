"""`echo` and `prompt_logprobs`: what an answer shows of its prompts, however it comes from the core."""

import asyncio
import codecs
import json
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.errors import RequestRejected, WireError
from scheduler_svc.frontend.answers import delta_parts
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from tests.frontend.answers import contexts
from tests.frontend.sse import events_after, events_of, text_of
from tests.support.demo_tokenizer import EOS, TOKENIZER, decoded, ids
from tests.support.effort import examples
from tests.support.fake_core import (
    FakeCore,
    Step,
    delta,
    int32,
    logprob_columns,
    logprobs_of,
    outputs,
    prompt_columns,
    prompt_rows,
    rank_of,
    say,
    tokens_of,
)
from tests.support.frontend_process import COMPLETION, MODEL, Frontend

NAMES = "tokens", "token_logprobs", "top_logprobs", "text_offset"


STORY = ids("Once 🦊 upon")
HALF = ids("🦊")[:1]
PROMPT = [*ids("A naïve"), EOS, *ids(" 月 story"), *HALF]


def named(token: int) -> str:
    return TOKENIZER.token_texts.of(token).text


def offsets(token_ids: list[int], *, special: bool = True) -> list[int]:
    """Characters before each token; half a character counts where it is completed."""
    table = TOKENIZER.all_token_bytes if special else TOKENIZER.token_bytes
    texts = [b"".join(table.get(token, b"") for token in token_ids[:i]) for i in range(len(token_ids))]
    return [len(codecs.getincrementaldecoder("utf-8")("replace").decode(part)) for part in texts]


def columns_of(token_ids: list[int], count: int, shown: int) -> dict[str, list]:
    """What the fake core says of tokens, of which so many are shown."""
    ids_of, values = logprobs_of(token_ids, count)
    likely = []
    for row, row_values in zip(ids_of, values, strict=True):
        by_text: dict[str, float] = {}
        for token, value in [*zip(row[1:shown], row_values[1:shown], strict=True), (row[0], row_values[0])]:
            by_text.setdefault(named(token), value)
        likely.append(by_text)
    return {
        "tokens": [named(token) for token in token_ids],
        "token_logprobs": [row[0] for row in values],
        "top_logprobs": likely,
    }


def echoed(prompt: list[int], generated: list[int], asked: int, shown: int) -> dict[str, list]:
    """The logprobs of a choice that begins with its prompt.

    Args:
        asked, shown: log-probabilities of each prompt token that the core sends, and that are echoed.
    """
    before, after = columns_of(prompt, asked, shown), columns_of(generated, shown, shown)
    before["token_logprobs"][0] = before["top_logprobs"][0] = None
    start = len(decoded(prompt))
    both = {name: before[name] + after[name] for name in before}
    return both | {"text_offset": offsets(prompt) + [start + offset for offset in offsets(generated, special=False)]}


def listed(prompt: list[int], asked: int, shown: int) -> list[dict | None]:
    """`prompt_logprobs` by definition."""
    entries: list[dict | None] = [None]
    for row, values in zip(*logprobs_of(prompt[1:], asked), strict=True):
        entry = {}
        for place in range(shown):
            ranks = [rank for rank in range(1, shown) if row[rank] == row[place]]
            rank = ranks[0] if ranks else rank_of(row[0])
            fact = {"logprob": values[place], "rank": rank, "decoded_token": named(row[place])}
            entry[str(row[place])] = fact
        entries.append(entry)
    return entries


# --- over HTTP ---


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_log_probabilities(client: openai.OpenAI, core: FakeCore, stream: bool):
    core.script = say(STORY, per_step=2)
    prompts = [PROMPT, [7]]
    answer = client.completions.create(
        model=MODEL, prompt=prompts, n=2, echo=True, logprobs=2, max_tokens=50, stream=stream
    )
    choices = [choice for part in (answer if stream else [answer]) for choice in part.choices]
    assert [submit.params.prompt_logprobs for submit in core.submits] == [3, 3]
    for index in range(4):
        parts = [choice for choice in choices if choice.index == index]
        prompt = prompts[index // 2]
        assert "".join(part.text for part in parts) == decoded(prompt) + decoded(STORY)
        assert parts[0].text.startswith(decoded(prompt)), "in the first piece"
        logprobs = {name: [entry for part in parts for entry in getattr(part.logprobs, name)] for name in NAMES}
        assert logprobs == echoed(prompt, STORY, 3, 3)


def test_echo_alone_asks_the_core_for_nothing(client: openai.OpenAI, core: FakeCore):
    core.script = say(STORY)
    [choice] = client.completions.create(model=MODEL, prompt=PROMPT, echo=True).choices
    assert (choice.text, choice.logprobs) == (decoded(PROMPT) + decoded(STORY), None)
    assert core.submits[0].params.prompt_logprobs == 0
    assert "prompt_logprobs" not in choice.model_extra


def test_prompt_logprobs_of_completions(frontend: Frontend, core: FakeCore):
    core.script = say(STORY)
    body = {"model": MODEL, "prompt": [PROMPT, [7]], "n": 2, "prompt_logprobs": 2}
    answer = frontend.post("/v1/completions", body).json()
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [listed(PROMPT, 3, 3)] * 2 + [[None]] * 2
    assert {choice["text"] for choice in answer["choices"]} == {decoded(STORY)}
    assert {choice["logprobs"] for choice in answer["choices"]} == {None}


def test_prompt_logprobs_beside_echo(frontend: Frontend, core: FakeCore):
    """The core is asked once, for enough."""
    core.script = say(STORY)
    body = {"model": MODEL, "prompt": PROMPT, "echo": True}
    for num_echoed, num_listed in ((0, 3), (3, 0)):
        answer = frontend.post("/v1/completions", body | {"logprobs": num_echoed, "prompt_logprobs": num_listed})
        [choice] = answer.json()["choices"]
        assert core.submits[-1].params.prompt_logprobs == 4
        assert choice["prompt_logprobs"] == listed(PROMPT, 4, 1 + num_listed)
        assert choice["logprobs"] == echoed(PROMPT, STORY, 4, 1 + num_echoed)


def test_prompt_logprobs_of_a_chat_stand_beside_its_choices(frontend: Frontend, core: FakeCore):
    core.script = say(STORY)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go"}], "n": 2, "prompt_logprobs": 1}
    answer = frontend.post("/v1/chat/completions", body).json()
    assert answer["prompt_logprobs"] == listed(tokens_of(core.submits[0].prompt), 2, 2)
    assert {choice["message"]["content"] for choice in answer["choices"]} == {decoded(STORY)}
    assert "prompt_logprobs" not in answer["choices"][0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["length", "stop"])
def test_no_tokens_at_all(frontend: Frontend, core: FakeCore, stream: bool, reason: m.FinishReason):
    core.script = say(STORY[:1], reason)
    asked = {"echo": True, "max_tokens": 0, "logprobs": 1, "stop": [decoded(STORY[:1])], "stream": stream}
    asked |= {"prompt": PROMPT} | ({"stream_options": {"include_usage": True}} if stream else {})
    answer = frontend.post("/v1/completions", COMPLETION | asked)
    events = [event.data for event in events_of(answer.content)[:-1]] if stream else [answer.json()]
    assert core.submits[0].params.max_tokens == 1
    assert events[-1]["usage"]["completion_tokens"] == 0
    [choice] = [choice for event in events for choice in event["choices"]]
    assert (choice["text"], choice["finish_reason"]) == (decoded(PROMPT), "length")
    assert choice["logprobs"] == echoed(PROMPT, [], 2, 2)


def test_other_choices_wait_for_the_prompts_log_probabilities(frontend: Frontend, core: FakeCore):
    """Sequence 1 has ended before they are all there."""

    def script(submit: m.Submit) -> Iterator[Step]:
        yield outputs(delta(submit, [], **prompt_columns(submit, 0, 2)))
        yield outputs(delta(submit, STORY, "length", index=1))
        yield 0.05
        yield outputs(delta(submit, STORY, "length", **prompt_columns(submit, 2)))

    core.script = script
    body = COMPLETION | {"prompt": PROMPT, "n": 2, "echo": True, "logprobs": 0, "stream": True}
    *events, _ = events_of(frontend.post("/v1/completions", body).content)
    for index in (0, 1):
        [choice] = [part for event in events for part in event.data["choices"] if part["index"] == index]
        assert choice["text"] == decoded(PROMPT) + decoded(STORY)
        assert choice["logprobs"] == echoed(PROMPT, STORY, 1, 1)


@pytest.mark.parametrize("replay_size", [1, 1000])
def test_a_stream_that_breaks_off_has_its_prompts_once(frontend: Frontend, core: FakeCore, replay_size: int):
    core.script, core.replay_size = say(STORY, pause_s=0.005), replay_size
    name = f"echoed-{replay_size}"
    body = COMPLETION | {"prompt": [PROMPT, STORY], "echo": True, "logprobs": 1, "stream": True, "request_id": name}
    body["resumable"] = True
    events = events_of(frontend.post("/v1/completions", body).content)
    for number, event in enumerate(events[:-1]):
        rest = events_of(events_after(frontend, name, event.id).content)
        for index, prompt in enumerate([PROMPT, STORY]):
            both = [*events[: number + 1], *rest]
            assert text_of(both, index) == decoded(prompt) + decoded(STORY)
            parts = [part["logprobs"] for e in both[:-1] for part in e.data["choices"] if part["index"] == index]
            logprobs = {name: [entry for part in parts for entry in part[name]] for name in NAMES}
            assert logprobs == echoed(prompt, STORY, 2, 2)


# --- in one process ---


def context_of(**more: object) -> AnswerContext:
    return contexts.context_of("completion", **more)


def asking(
    context: AnswerContext, prompts: list[list[int]], after: str = "", **limits: int
) -> tuple[Generation, DeltaQueue]:
    queue = DeltaQueue(lambda _: None, lambda _: None, is_streamed=False, is_resumable=False)
    for number in range(len(prompts)):
        queue.add(str(number), number, context.n)
    shown = asyncio.run(prompts_of(context, list(map(int32, prompts)), TOKENIZER, tokens_at_once=2))
    position = Position.after(after, context.num_choices) if after else Position.start(context.num_choices)
    return Generation(queue, TOKENIZER, AnswerSpec("r", context, 3, position, shown), **limits), queue


def rows_of(prompt: list[int], count: int, start: int = 0, end: int | None = None) -> dict[str, bytes]:
    return prompt_rows(prompt[1:][start:end], count)


def rows_without_ranks(prompt: list[int], count: int) -> dict[str, bytes]:
    """As a journal of version 5 has them."""
    return {f"prompt_{name}": column for name, column in logprob_columns(prompt[1:], count).items()}


def put(queue: DeltaQueue, token_ids: list[int], reason: m.FinishReason | None = None, **more: object) -> None:
    facts = {"request_id": "0", "index": 0, "token_ids": int32(token_ids), "finish_reason": reason}
    queue.put(m.TokenDelta(**facts | more))


def whole(generation: Generation) -> list[dict]:
    choices = asyncio.run(asyncio.wait_for(generation.whole(), 10))
    form = format_of("id", generation.spec.context)
    return json.loads(to_json(form.whole(choices, generation.usage, generation.model)))["choices"]


def pieces_of(generation: Generation) -> list[Piece]:
    async def run() -> list[Piece]:
        return [piece async for pieces in generation.pieces() for piece in pieces]

    return asyncio.run(asyncio.wait_for(run(), 10))


@settings(max_examples=examples(100))
@given(
    prompts=st.lists(st.lists(st.sampled_from([*PROMPT, *HALF]), min_size=1, max_size=9), min_size=1, max_size=2),
    n=st.integers(1, 2),
    num_echoed=st.integers(0, 3),
    num_listed=st.integers(0, 3),
    limit=st.sampled_from([4, 40, 10**6]),
    data=st.data(),
)
def test_any_groups_make_the_same_answer(
    prompts: list[list[int]], n: int, num_echoed: int, num_listed: int, limit: int, data: st.DataObject
):
    """Whatever comes in one delta, and in whatever order sequences come."""
    context = context_of(
        num_prompts=len(prompts), n=n, logprobs=num_echoed, echo=num_echoed > 0, prompt_logprobs=num_listed
    )
    count = max(num_echoed, num_listed)
    waiting: list[list[dict]] = []
    for place in range(len(prompts) * n):
        number, index = divmod(place, n)
        name = {"request_id": str(number), "index": index}
        deltas = []
        length = len(prompts[number]) - 1
        if index == 0 and count and length:
            cut = data.draw(st.integers(0, length))
            deltas = [name | {"token_ids": []} | rows_of(prompts[number], count, *cuts) for cuts in ((0, cut), (cut,))]
        own = [name | {"token_ids": STORY[:3]} | logprob_columns(STORY[:3], num_echoed)]
        own += [name | {"token_ids": STORY[3:], "reason": "length"} | logprob_columns(STORY[3:], num_echoed)]
        if deltas and data.draw(st.booleans()):
            own[0] = {**deltas.pop(), **own[0]}
        waiting.append(deltas + own)
    generation, queue = asking(context, prompts, most_bytes=limit)
    while any(waiting):
        deltas = data.draw(st.sampled_from([each for each in waiting if each]))
        put(queue, **deltas.pop(0))
    for choice in whole(generation):
        prompt = prompts[choice["index"] // n]
        assert choice["text"] == (decoded(prompt) if num_echoed else "") + decoded(STORY)
        assert choice["logprobs"] == (echoed(prompt, STORY, count, num_echoed) if num_echoed else None)
        assert choice.get("prompt_logprobs") == (listed(prompt, count, num_listed) if num_listed else None)


def test_a_long_prompt_is_read_in_parts():
    """Of a few kilobytes of ids each, whole rows, and all before the first token."""
    prompt, count = [5] * 3001, 21
    given = m.TokenDelta(
        request_id="0",
        index=0,
        token_ids=int32([7]),
        finish_reason="length",
        **rows_of(prompt, count),
        **logprob_columns([7], 2),
    )
    parts = [part for deltas in delta_parts.parts_of([(0, given)], count) for _, part in deltas]
    sizes = [len(part.prompt_logprob_ids) for part in parts]
    assert max(sizes) <= delta_parts.MAX_BYTES_AT_ONCE
    assert len(parts) > 25
    assert not any(size % (4 * count) for size in sizes)
    for name in ("prompt_logprob_ids", "prompt_logprobs", "token_ids", "logprob_ids", "logprobs"):
        assert b"".join(getattr(part, name) for part in parts) == getattr(given, name)
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert not any(part.token_ids for part in parts[:-1])


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        (rows_of([1, 2, 3, 4, 5], 2), "not 2 for each of 3"),
        (rows_of([1, 2, 3], 3), "neither its rank nor its id"),
        (rows_without_ranks([1, 2, 4], 2), "neither its rank nor its id"),
    ],
    ids=["more tokens", "more of each", "another token"],
)
def test_what_is_not_the_prompts(columns: dict, match: str):
    generation, queue = asking(context_of(prompt_logprobs=2), [[1, 2, 3, 4]])
    put(queue, [], **columns)
    with pytest.raises(WireError, match=match):
        whole(generation)


def test_ranks_that_a_journal_of_an_earlier_release_does_not_know_are_null():
    """Unless the token is among the likeliest."""
    generation, queue = asking(context_of(prompt_logprobs=2), [PROMPT])
    put(queue, [], **rows_without_ranks(PROMPT, 2))
    put(queue, STORY, "length")
    [choice] = whole(generation)
    expected = listed(PROMPT, 2, 2)
    for entry, token in zip(expected[1:], PROMPT[1:], strict=True):
        if entry[str(token)]["rank"] == rank_of(token):
            entry[str(token)]["rank"] = None
    assert choice["prompt_logprobs"] == expected


@pytest.mark.parametrize(("asked", "index"), [({}, 0), ({"echo": True}, 0), ({"prompt_logprobs": 2}, 1)])
def test_what_nobody_asked_for(asked: dict, index: int):
    generation, queue = asking(context_of(n=2, **asked), [[1, 2, 3]])
    put(queue, [], index=index, **rows_of([1, 2, 3], 2))
    with pytest.raises(WireError, match=r"not 0 for each|nobody asked"):
        whole(generation)


def test_log_probabilities_that_never_come():
    """An answer without them must not look like one with them, and nobody may wait for ever."""
    for asked in ({"echo": True, "logprobs": 2}, {"prompt_logprobs": 2}):
        context = context_of(n=2, **asked)
        generation, queue = asking(context, [[1, 2, 3]])
        put(queue, [5], "length", **rows_of([1, 2, 3], 2, 0, 1), **logprob_columns([5], context.logprobs))
        with pytest.raises(RequestRejected, match="missing") as caught:
            whole(generation)
        assert caught.value.code == "internal_error"


def test_what_a_failed_prompt_was_refused_for():
    generation, queue = asking(context_of(prompt_logprobs=2), [[1, 2, 3]])
    put(queue, [], "error", error="no room", code="queue_full")
    with pytest.raises(RequestRejected, match="no room"):
        whole(generation)


def test_a_prompt_that_the_client_has_is_not_waited_for():
    """The other frontend has sent it; after a crash of the scheduler it may come late or not at all."""
    context = context_of(n=2, echo=True, logprobs=1)
    generation, queue = asking(context, [PROMPT], after=f"{len(STORY)}!.2")
    put(queue, STORY, "length", index=1, **logprob_columns(STORY, 1))
    put(queue, STORY[:1], "error", **logprob_columns(STORY[:1], 1))
    [piece] = pieces_of(generation)
    assert (piece.choice, piece.text, piece.echoed) == (1, decoded(STORY)[len(decoded(STORY[:2])) :], None)
    start = len(decoded(PROMPT))
    assert [entry.text_offset for entry in piece.logprobs] == [
        start + offset for offset in offsets(STORY, special=False)[2:]
    ]


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_what_json_cannot_say(value: float):
    generation, queue = asking(context_of(echo=True, logprobs=1, prompt_logprobs=1), [[5, 6]])
    column = np.array([value], "<f4").tobytes()
    put(queue, [], prompt_logprob_ids=int32([-9]), prompt_logprobs=column)
    put(queue, [7], "length", **logprob_columns([7], 1))
    [choice] = whole(generation)
    assert choice["logprobs"]["token_logprobs"][:2] == [None, -9999.0]
    assert choice["prompt_logprobs"] == [
        None,
        {"6": {"logprob": -9999.0, "rank": 9, "decoded_token": named(6)}},
    ]
