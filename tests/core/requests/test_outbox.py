"""Every reader gets every token of its requests once, in order, with one ending, and hears which model gave it.

A token's log-probabilities come with it.
"""

from array import array

import pytest

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.core.requests.journal_records import Ending, Progress
from scheduler_svc.core.requests.outbox import MAX_ANSWERS, ONE_MESSAGE, MessageLimits, Outbox
from scheduler_svc.core.requests.token_stream import PromptRun
from scheduler_svc.core.step_output import SequenceEnd
from tests.core.requests.outputs import came_with, drain, output, prompt_columns, prompt_step, request


def take(outbox, peer):
    """The deltas that wait for a peer, as (request, index, tokens, finish_reason)."""
    deltas = [delta for outputs in drain(outbox, peer) for delta in outputs.deltas]
    return [(d.request_id, d.index, array("i", d.token_ids).tolist(), d.finish_reason) for d in deltas]


def test_a_slow_reader_finds_several_tokens_in_one_delta():
    outbox, (submit, (sequence,)) = Outbox(), request("a")
    outbox.open(b"p", submit, [sequence])
    for token in (7, 8):
        outbox.push(output([sequence], [token]))
    assert take(outbox, b"p") == [("a", 0, [7, 8], None)]
    assert outbox.peers() == []
    outbox.push(output([sequence], [9], ends=[sequence]))
    assert take(outbox, b"p") == [("a", 0, [9], "length")]


def test_what_does_not_stream_comes_in_one_piece():
    outbox, (submit, (first, second)) = Outbox(), request("a", 2, stream=False)
    outbox.open(b"p", submit, [first, second])
    outbox.push(output([first, second], [1, 2]))
    assert outbox.peers() == []
    outbox.push(output([first, second], [3, 4], ends=[second]))
    assert take(outbox, b"p") == [("a", 1, [2, 4], "length")]


def test_another_model_is_named_with_the_first_of_its_tokens():
    outbox, (submit, (sequence,)) = Outbox(), request("a")
    outbox.open(b"p", submit, [sequence])
    for token, model in enumerate(["one", "one", "two", "one"]):
        outbox.push(output([sequence], [token], model=model))
    deltas = outbox.peek(b"p").deltas
    assert [(d.model, array("i", d.token_ids).tolist()) for d in deltas] == [
        ("one", [0, 1]),
        ("two", [2]),
        ("one", [3]),
    ]
    outbox.sent(b"p")
    outbox.push(output([sequence], [4], model="one"))
    assert [d.model for d in outbox.peek(b"p").deltas] == [""]


def test_a_reader_that_comes_back_finds_everything_from_the_first_token_and_nothing_twice():
    """Although the end of what it missed had been waiting for it."""
    outbox, (submit, (sequence,)) = Outbox(), request("a")
    outbox.open(b"p", submit, [sequence])
    outbox.push(output([sequence], [5]))
    take(outbox, b"p")
    outbox.push(output([sequence], [6], ends=[sequence]))
    everything = Progress(array("i", [5, 6]).tobytes(), "m", 0, Ending("length"))
    for _ in range(2):
        outbox.attach(b"p", [sequence], (everything,))
    assert take(outbox, b"p") == [("a", 0, [5, 6], "length")]


@pytest.mark.parametrize("logprobs", [1, 21])
def test_log_probabilities_come_with_their_tokens(logprobs):
    """To each sequence its own, also where a neighbour in the step asked for none, or for others."""
    outbox, streams = Outbox(), {}
    for name, count in (("a", logprobs), ("b", 0), ("c", 2)):
        submit, (streams[name],) = request(name, logprobs=count)
        outbox.open(b"p", submit, [streams[name]])
    gone = request("gone", logprobs=3)[1]
    for token in (7, 8):
        outbox.push(output([streams["a"], *gone, streams["b"], streams["c"]], [token] * 4))
    for told in ([7, 8], [9], []):
        for delta in [delta for outputs in drain(outbox, b"p") for delta in outputs.deltas]:
            sequence = streams[delta.request_id]
            assert delta.token_ids == array("i", told).tobytes()
            assert (delta.logprob_ids, delta.logprobs) == came_with(sequence, told)
        if told == [7, 8]:
            outbox.push(output([streams["c"], streams["a"]], [9, 9]))
    assert len(came_with(streams["a"], [7])[0]) == 4 * logprobs


def test_a_step_of_which_the_reader_of_log_probabilities_has_gone_harms_nobody():
    outbox, (submit, (sequence,)) = Outbox(), request("a", logprobs=2)
    outbox.open(b"p", submit, [sequence])
    outbox.close([sequence])
    outbox.push(output([sequence], [7]))
    assert outbox.peers() == []


def test_a_refusal_is_told_with_its_code():
    outbox = Outbox()
    outbox.refuse(b"p", "a", RequestRejected("x" * 5000, "queue_full"))
    (delta,) = outbox.peek(b"p").deltas
    assert (delta.request_id, delta.index, delta.finish_reason, delta.code) == ("a", 0, "error", "queue_full")
    assert delta.error == "x" * 4096, "the longest that the protocol allows"


def test_a_reader_is_told_that_another_has_taken_over_before_it_is_answered_again():
    outbox, (submit, sequences) = Outbox(), request("a", 2)
    outbox.open(b"p", submit, sequences)
    outbox.attach(b"q", sequences, (Progress(),) * 2)
    assert take(outbox, b"p") == [("a", 0, [], "error")]
    outbox.attach(b"p", sequences, (Progress(),) * 2)
    again = m.Attached(request_id="a", found=True)
    outbox.answer(b"q", again)
    outbox.attach(b"q", sequences, (Progress(b"\1\0\0\0"),) * 2)
    told, answer, _tokens = drain(outbox, b"q")
    assert [delta.code for delta in told.deltas] == ["taken_over"], "of the stream that it had"
    assert answer == again
    assert take(outbox, b"p") == [("a", 0, [], "error")]


def test_answers_go_first_and_one_by_one():
    outbox, (submit, (sequence,)) = Outbox(), request("a")
    outbox.open(b"p", submit, [sequence])
    outbox.push(output([sequence], [5]))
    answers = [m.Attached(request_id=name, found=False) for name in "xy"]
    for answer in answers:
        outbox.answer(b"p", answer)
    assert outbox.peers() == [b"p"]
    *first, last = drain(outbox, b"p")
    assert first == answers
    assert isinstance(last, m.Outputs)


def test_who_asks_and_asks_and_takes_no_answer_gets_no_more_than_so_many():
    outbox = Outbox()
    for i in range(MAX_ANSWERS + 10):
        outbox.answer(b"p", m.Attached(request_id=str(i), found=False))
    assert [answer.request_id for answer in drain(outbox, b"p")] == [str(i) for i in range(MAX_ANSWERS)]


@pytest.mark.parametrize("logprobs", [0, 1, 21])
def test_no_message_has_more_than_it_may_and_none_is_left_out(logprobs):
    outbox, told, ended = Outbox(MessageLimits(10 * (4 + 8 * logprobs) + 3, streams=3)), {}, []
    submit, sequences = request("r", 5, stream=False, logprobs=logprobs)
    outbox.open(b"a", submit, sequences)
    for token in range(17):
        outbox.push(output(sequences, [token] * 5, [], "one" if token < 8 else "two"))
    outbox.push(output(sequences, [17] * 5, sequences, "two"))
    numbers = []
    while (message := outbox.peek(b"a")) is not None:
        assert sum(len(delta.token_ids) // 4 for delta in message.deltas) <= 10
        numbers.append(message.number)
        for delta in message.deltas:
            assert delta.index not in ended
            came = came_with(sequences[delta.index], array("i", delta.token_ids))
            assert (delta.logprob_ids, delta.logprobs) == came
            told.setdefault(delta.index, []).extend((token, delta.model) for token in array("i", delta.token_ids))
            ended += [delta.index] if delta.finish_reason else []
        outbox.sent(b"a")
    assert numbers == list(range(9))
    assert sorted(ended) == list(range(5))
    assert all([token for token, _ in tokens] == list(range(18)) for tokens in told.values())
    assert all({model for _, model in tokens} <= {"one", "two", ""} for tokens in told.values())
    assert outbox.peers() == []
    outbox.end(SequenceEnd(sequences[0], "length"))
    assert outbox.peers() == [], "its streams are forgotten"


@pytest.mark.parametrize("how", ["streams", "held", "attached"])
def test_log_probabilities_of_a_long_prompt_come_in_several_messages_before_the_first_token(how):
    """32,768 tokens with 21 each are 5.5 MB."""
    outbox = Outbox()
    submit, (sequence,) = request("a", stream=how != "held", prompt_logprobs=21, num_prompt=2**15)
    outbox.open(b"p", submit, [sequence])
    for first in range(0, 2**15 - 1, 6000):
        outbox.push(prompt_step(sequence, first, min(first + 6000, 2**15 - 1)))
    assert (outbox.peers() == []) == (how == "held")
    outbox.push(output([sequence], [7], [sequence]))
    if how == "attached":
        told = Progress(array("i", [7]).tobytes(), "m", 0, Ending("length"), b"", b"", *prompt_columns(sequence))
        outbox.attach(b"p", [sequence], (told,))
    messages = drain(outbox, b"p")
    sizes = [sum(len(d.prompt_logprob_ids) + len(d.prompt_logprobs) for d in each.deltas) for each in messages]
    assert len(sizes) == 2
    assert max(sizes) <= ONE_MESSAGE.token_bytes
    *prompt, last = [delta for each in messages for delta in each.deltas]
    ids, values = (
        b"".join(column) for column in zip(*((d.prompt_logprob_ids, d.prompt_logprobs) for d in prompt), strict=True)
    )
    assert (ids, values) == prompt_columns(sequence)
    assert not any(delta.token_ids or delta.model for delta in prompt)
    assert (last.token_ids, last.model, last.prompt_logprobs) == (array("i", [7]).tobytes(), "m", b"")


def test_the_first_token_names_the_model_although_log_probabilities_of_the_prompt_came_before():
    """Also to a client that comes back between the two, when the model is known."""
    outbox, (submit, (sequence,)) = Outbox(), request("a", prompt_logprobs=2)
    outbox.open(b"p", submit, [sequence])
    outbox.attach(b"p", [sequence], (Progress(b"", "m", 0, None, b"", b"", *prompt_columns(sequence)),))
    outbox.push(output([sequence], [7]))
    (both,) = drain(outbox, b"p")
    outbox.attach(b"p", [sequence], (Progress(b"", "m", 0, None, b"", b"", *prompt_columns(sequence)),))
    (prompt,) = drain(outbox, b"p")
    outbox.push(output([sequence], [7]))
    (token,) = drain(outbox, b"p")
    models = [[(delta.token_ids, delta.model) for delta in each.deltas] for each in (both, prompt, token)]
    seven = array("i", [7]).tobytes()
    assert models == [[(b"", ""), (seven, "m")], [(b"", "")], [(seven, "m")]]


@pytest.mark.parametrize("num_bytes", [8 * 3, 100, 8 * 3 * 7, 1000])
def test_log_probabilities_of_a_prompt_that_come_when_some_are_told_come_behind_those(num_bytes):
    outbox = Outbox(MessageLimits(num_bytes))
    submit, (sequence,) = request("a", prompt_logprobs=3, num_prompt=61)
    outbox.open(b"p", submit, [sequence])
    deltas = []
    for first in range(0, 60, 5):
        outbox.push(prompt_step(sequence, first, first + 5))
        deltas += outbox.peek(b"p").deltas
        outbox.sent(b"p")
    deltas += [delta for each in drain(outbox, b"p") for delta in each.deltas]
    assert all(len(delta.prompt_logprob_ids) + len(delta.prompt_logprobs) <= num_bytes for delta in deltas)
    ids, values = zip(*((delta.prompt_logprob_ids, delta.prompt_logprobs) for delta in deltas), strict=True)
    assert (b"".join(ids), b"".join(values)) == prompt_columns(sequence)


def test_what_is_left_of_a_long_prompt_is_not_copied_for_each_message():
    run = PromptRun(21)
    run.add(bytes(84 * 1000), bytes(84 * 1000))
    first, others = run.split(168 * 10)
    assert (first.num_bytes, others.num_bytes) == (168 * 10, 168 * 990)
    assert others.ids is run.ids
    assert others.values is run.values
