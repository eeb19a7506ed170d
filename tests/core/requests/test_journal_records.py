"""What is written of requests is what is read back, however it was cut into batches."""

import random
from array import array
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.wire import int32_array
from scheduler_svc.core.requests.journal_records import (
    ConstraintsRecord,
    Ending,
    EndRecord,
    LifeRecord,
    Progress,
    PromptRecord,
    RequestRecord,
    SamplingRecord,
    StepRecord,
    SubmitRecord,
    encode,
    have_ranks,
)
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.record_frames import frame, unframe
from scheduler_svc.core.sequence import new_sequences
from scheduler_svc.core.step_output import SequenceEnd, StepLogprobs, StepOutput
from tests.support.any_message import AnyMessage
from tests.support.effort import examples

PROMPT = array("i", [5, 6, 7]).tobytes()


def submit(request_id, n=1, logprobs=0, prompt_logprobs=0, **changes):
    params = m.SamplingParams(max_tokens=100, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    return m.Submit(request_id=request_id, prompt=PROMPT, params=params, n=n, **changes)


def request_record(request_id, arrival=0, n=1, logprobs=0):
    return RequestRecord(arrival, 1000.5, SubmitRecord.of(submit(request_id, n, logprobs)), (Progress(),) * n)


def step_record(model, **tokens):
    """A step that gave `s3=(5, 7)`: token number 5, which is 7, to the sequence of arrival 3.

    `s3=(5, 7, ids, values)` came with log-probabilities, as bytes.
    """
    arrivals = array("q", [int(name[1:]) for name in tokens])
    told = [(*each, b"", b"")[:4] for each in tokens.values()]
    positions, token_ids, ids, values = zip(*told, strict=True)
    columns = (arrivals, array("i", token_ids), array("i", positions))
    counts = array("i", [len(each) // 4 for each in ids]).tobytes() if any(ids) else b""
    return StepRecord(model, *(column.tobytes() for column in columns), counts, b"".join(ids), b"".join(values))


def int32(*values):
    return array("i", values).tobytes()


def float32(*values):
    return array("f", values).tobytes()


def replay(payloads):
    """The requests of a journal that is whole."""
    contents = read_batches(payloads)
    assert (contents.num_damaged, contents.cut) == (0, [])
    return contents.requests


def tokens_of(request):
    return [array("i", told.token_ids).tolist() for told in request.progress]


def test_a_request_comes_back_as_it_was_submitted():
    constraints = m.Constraints(
        presence_penalty=2.0,
        frequency_penalty=-0.1,
        repetition_penalty=1.3,
        bias_token_ids=int32(4, 2),
        biases=float32(0.1, -100.0),
        min_tokens=2,
        bad_words=(int32(1), int32(2, 3)),
        allowed_token_ids=int32(9, 4, 2),
        grammar="start: /é/",
    )
    params = m.SamplingParams(
        max_tokens=9, temperature=0.5, seed=2**62, stop_token_ids=(1, 2), logprobs=21, constraints=constraints
    )
    whole = m.Submit(
        request_id="key/cmpl-1-0",
        prompt=PROMPT,
        params=params,
        n=2,
        stream=False,
        cache_salt="salt",
        priority=-4,
        timeout_s=7.5,
        client="key",
        client_limit=3,
        context=b"\x00\xff",
        is_resumable=True,
        may_shorten=True,
    )
    progress = (Progress(), Progress(b"", "", 2, Ending("error", "why", "code")))
    record = RequestRecord(2**40, 1e9 + 0.25, SubmitRecord.of(whole), progress, tokenizer="hash")
    assert replay([encode([record])]) == [record]
    assert record.submit.message() == whole


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32))
def test_any_request_comes_back_as_it_was_submitted(seed):
    """With constraints and without: nothing asked is another thing than constraints that ask nothing."""
    whole = msgspec.structs.replace(AnyMessage(m.Submit, random.Random(seed))(), charge=None, address="")
    record = RequestRecord(0, 0.0, SubmitRecord.of(whole), (Progress(),) * whole.n)
    (found,) = replay([encode([record])])
    assert found == record
    assert found.submit.message() == whole


@pytest.mark.parametrize("constraints", [None, m.Constraints()])
def test_nothing_asked_and_constraints_that_ask_nothing_are_two_things(constraints):
    params = m.SamplingParams(max_tokens=1, constraints=constraints)
    record = SubmitRecord.of(msgspec.structs.replace(submit("a"), params=params))
    (found,) = replay([encode([RequestRecord(0, 0.0, record, (Progress(),))])])
    assert found.submit.message().params.constraints == constraints
    assert (found.submit.params.constraints is None) == (constraints is None)


def test_every_field_of_a_request_is_kept():
    """A field of the message that the journal is not to keep is named here."""
    not_kept = {"charge", "address"}  # a life begins with full accounts, and knows nobody's address
    kinds = ((SubmitRecord, m.Submit), (SamplingRecord, m.SamplingParams), (ConstraintsRecord, m.Constraints))
    for record, message in kinds:
        kept, said = ({f.name: f.default for f in msgspec.structs.fields(kind)} for kind in (record, message))
        assert kept == {name: default for name, default in said.items() if name not in not_kept}


def test_the_length_of_a_request_counts_its_lists_and_its_log_probabilities():
    asked = m.Constraints(bias_token_ids=bytes(8), biases=bytes(8), bad_words=(bytes(4), bytes(12)))
    wide = msgspec.structs.replace(asked, allowed_token_ids=bytes(4000), grammar="é" * 300)
    sizes = []
    columns = [bytes(840)] * 2 + [bytes(84)] * 2
    for constraints, told in ((None, Progress(bytes(40))), (wide, Progress(bytes(40), "", 0, None, *columns))):
        params = m.SamplingParams(max_tokens=99, logprobs=21, constraints=constraints)
        record = SubmitRecord.of(msgspec.structs.replace(submit("a"), params=params))
        sizes.append(RequestRecord(0, 0.0, record, (told,)).num_bytes)
    assert sizes[1] - sizes[0] == 8 + 8 + 16 + 4000 + 600 + 2 * 840 + 2 * 84


def test_records_are_made_of_what_the_scheduler_gives():
    first, second = new_sequences(submit("a", n=2), int32_array("prompt", PROMPT), 1, 2**33, None)
    second.num_cached_prompt = 3
    end = SequenceEnd(second, "error", "too bad", "internal_error")
    output = StepOutput([first, second], [11, 12], [first], [end], "model", np.zeros(2, np.int32))
    second.tokens.append(12)
    payload = encode([request_record("a", 2**33, n=2), StepRecord.of(output), *map(EndRecord.of, output.ends)])
    (request,) = replay([payload])
    assert tokens_of(request) == [[11], [12]]
    assert request.progress[0] == Progress(array("i", [11]).tobytes(), "model", None, None)
    assert request.progress[1].num_cached == 3
    assert request.progress[1].ending == Ending("error", "too bad", "internal_error")


def test_what_the_scheduler_gives_has_log_probabilities_for_those_that_asked():
    """Some with several, some with none; a step in which nobody asked has no columns for them."""
    prompt = int32_array("prompt", PROMPT)
    plain, some = (
        new_sequences(submit(name, logprobs=n), prompt, 1, i, None) for i, (name, n) in enumerate([("a", 0), ("b", 2)])
    )
    sequences, positions = [*some, *plain], np.zeros(2, np.int32)
    came = StepLogprobs(np.array([2, 0], np.int32), np.array([7, 3], np.int32), np.array([-0.5, -1.5], np.float32))
    steps = [
        StepRecord.of(StepOutput(sequences, [7, 8], sequences, [], "model", positions, came)),
        StepRecord.of(StepOutput(plain, [9], [], [], "model", positions[:1] + 1)),
    ]
    requests = replay([encode([request_record("a", 0), request_record("b", 1, logprobs=2), *steps])])
    assert [request.progress for request in requests] == [
        (Progress(int32(8, 9), "model"),),
        (Progress(int32(7), "model", None, None, int32(7, 3), float32(-0.5, -1.5)),),
    ]
    assert (steps[1].logprob_counts, steps[1].logprob_ids, steps[1].logprobs) == (b"", b"", b"")


def test_a_token_with_other_log_probabilities_than_were_asked_for_is_a_gap():
    """Too few, too many or none: what follows is computed again, as after a power cut."""
    good = (7, int32(7, 3), float32(-0.5, -1.5))
    for wrong in ((), (int32(7), float32(-0.5)), (int32(7, 3, 4), float32(-0.5, -1.5, -2.5))):
        steps = [
            step_record("x", s0=(0, *good)),
            step_record("x", s0=(1, 8, *wrong)),
            step_record("x", s0=(2, *good)),
            EndRecord(0, 0, Ending("stop"), 3),
        ]
        contents = read_batches([encode([request_record("a", logprobs=2), *steps])])
        assert contents.requests[0].progress == (Progress(int32(7), "x", None, None, *good[1:]),)
        assert (contents.num_damaged, contents.cut) == (0, ["a"])


@pytest.mark.parametrize(
    ("changes", "num_kept"),
    [
        ({"logprob_ids": bytes(8 * 2 + 4)}, 2),
        ({"logprobs": bytes(8)}, 1),
        ({"logprobs": b""}, 0),
        ({"logprobs": bytes(8 * 4)}, 3),
        ({"logprobs": bytes(8 * 3 + 1)}, 3),
        ({"token_ids": bytes(4 * 2)}, 2),
        ({"token_ids": bytes(4 * 2 + 3)}, 2),
    ],
)
def test_a_request_whose_columns_do_not_fit_together_keeps_the_tokens_that_are_whole(changes, num_kept):
    """It lost an end, then, at the least; and what comes after it does not count if there is a gap."""
    whole = Progress(bytes(12), "x", 1, Ending("stop"), bytes(24), bytes(24))
    told = msgspec.structs.replace(whole, **changes)
    record = msgspec.structs.replace(request_record("a", logprobs=2), progress=(told,))
    contents = read_batches([encode([record])])
    kept = Progress(bytes(4 * num_kept), "x", 1, None, bytes(8 * num_kept), bytes(8 * num_kept))
    assert contents.requests[0].progress == (kept,)
    assert contents.cut == ["a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"arrivals": bytes(8)},
        {"positions": bytes(4)},
        {"token_ids": bytes(7)},
        {"logprob_counts": b""},
        {"logprob_counts": int32(2)},
        {"logprob_counts": int32(2, 1)},
        {"logprob_counts": int32(4, -2)},
        {"logprob_counts": int32(2, 0, 0)},
        {"logprob_ids": int32(7)},
        {"logprobs": b""},
        {"logprob_ids": b"", "logprobs": b""},
    ],
)
def test_a_step_whose_columns_do_not_fit_together_is_damaged(changes):
    """All its sequences have a gap there, and the journal goes on."""
    both = step_record("x", s0=(0, 7, int32(7, 3), float32(-0.5, -1.5)), s1=(0, 8))
    records = [request_record("a", 0, logprobs=2), request_record("b", 1), msgspec.structs.replace(both, **changes)]
    contents = read_batches([encode([*records, step_record("x", s1=(1, 9)), LifeRecord(2)])])
    assert [request.progress for request in contents.requests] == [(Progress(),), (Progress(),)]
    assert (contents.num_damaged, contents.life.crashes, contents.cut) == (1, 2, ["b"])


def prompted(first, count, model="x", arrival=0):
    """Two log-probabilities of each of so many prompt tokens; the position tells them."""
    numbers = range(2 * first, 2 * (first + count))
    return PromptRecord(arrival, first, int32(*numbers), float32(*numbers), model)


@pytest.mark.parametrize(
    ("came", "num_covered", "num_tokens", "is_cut"),
    [
        ([(0, 2)], 2, 1, False),
        ([(0, 1), (1, 1)], 2, 1, False),
        ([(0, 1), (0, 2)], 2, 1, False),
        ([(0, 1), (1, 1), (0, 1)], 2, 1, False),
        ([], 0, 0, True),
        ([(0, 1)], 1, 0, True),
        ([(1, 1)], 0, 0, True),
        ([(0, 1), (1, 2)], 1, 0, True),
    ],
)
def test_a_token_counts_behind_all_log_probabilities_of_the_prompt(came, num_covered, num_tokens, is_cut):
    asked = RequestRecord(0, 0.0, SubmitRecord.of(submit("a", 2, 0, 2)), (Progress(),) * 2)
    records = [asked, *(prompted(*each) for each in came), step_record("x", s0=(0, 7), s1=(0, 8))]
    contents = read_batches([encode(records)])
    numbers = range(2 * num_covered)
    columns = (int32(*numbers), float32(*numbers))
    first = Progress(int32(*[7] * num_tokens), "x" if num_covered else "", None, None, b"", b"", *columns)
    assert contents.requests[0].progress == (first, Progress(int32(8), "x"))
    assert contents.cut == ["a"] * is_cut
    assert read_batches([encode(contents.requests)]).requests == contents.requests


def test_an_end_counts_if_the_log_probabilities_of_the_prompt_are_there_that_had_come():
    asked = RequestRecord(0, 0.0, SubmitRecord.of(submit("a", 1, 0, 2)), (Progress(),))
    end = EndRecord(0, 0, Ending("cancelled"), 0, 1)
    told = [read_batches([encode([asked, *came, end])]) for came in ([], [prompted(0, 1)])]
    assert [each.requests[0].has_ended for each in told] == [False, True]
    assert [each.cut for each in told] == [["a"], []]


def test_an_end_says_how_much_of_the_prompt_was_covered():
    """So what is lost before it is missed."""
    asked = submit("a", prompt_logprobs=1)
    (sequence,) = new_sequences(asked, int32_array("prompt", PROMPT), 1, 0, None)
    sequence.prompt_logprob_ids.extend([6, 7])
    sequence.prompt_logprobs.extend([-0.5, -0.25])
    request = RequestRecord(0, 1000.5, SubmitRecord.of(asked), (Progress(),))
    came = PromptRecord(0, 0, int32(6, 7), float32(-0.5, -0.25), "m")
    end = EndRecord.of(SequenceEnd(sequence, "cancelled"))
    (whole,) = replay([encode([request, came, end])])
    assert whole.progress[0].ending == Ending("cancelled")
    assert read_batches([encode([request, end])]).cut == ["a"]


@pytest.mark.parametrize(
    ("changes", "num_covered"),
    [
        ({"prompt_logprobs": bytes(8)}, 1),
        ({"prompt_logprob_ids": bytes(15)}, 1),
        ({"prompt_logprobs": b""}, 0),
        ({"prompt_logprob_ids": bytes(20), "prompt_logprobs": bytes(24)}, 2),
    ],
)
def test_a_request_whose_prompt_columns_do_not_fit_together_keeps_what_is_whole(changes, num_covered):
    whole = Progress(bytes(4), "x", 1, Ending("stop"), b"", b"", bytes(16), bytes(16))
    record = RequestRecord(0, 0.0, SubmitRecord.of(submit("a", 1, 0, 2)), (msgspec.structs.replace(whole, **changes),))
    contents = read_batches([encode([record])])
    tokens, column = bytes(4 * (num_covered == 2)), bytes(8 * num_covered)
    assert contents.requests[0].progress == (Progress(tokens, "x", 1, None, b"", b"", column, column),)
    assert contents.cut == ["a"]


def test_requests_come_in_the_order_of_their_arrival_not_of_their_records():
    payload = encode([request_record("late", 5), request_record("early", 2), request_record("middle", 3, n=2)])
    assert [request.submit.request_id for request in replay([payload])] == ["early", "middle", "late"]


def test_what_is_said_of_a_request_that_was_let_go_is_passed_over():
    payload = encode(
        [
            step_record("x", s0=(0, 1), s9=(0, 2)),
            request_record("a", 9),
            EndRecord(0, 0, Ending("stop"), 1),
            step_record("x", s9=(0, 3), s0=(1, 4)),
        ]
    )
    (request,) = replay([payload])
    assert tokens_of(request) == [[3]]
    assert request.progress[0].ending is None


def test_an_empty_journal_has_no_requests():
    assert replay([]) == replay([encode([]), encode([])]) == []


@pytest.mark.parametrize("record", [b"", b"\xff", msgspec.msgpack.encode(["unknown", 1]), msgspec.msgpack.encode(7)])
def test_what_is_no_record_is_counted_and_passed_over(record):
    """Its checksum is right: nothing has changed it since it was written."""
    payload = frame([msgspec.msgpack.encode(request_record("a", 1)), record, msgspec.msgpack.encode(LifeRecord(2))])
    contents = read_batches([encode([request_record("b")]), payload])
    assert [request.submit.request_id for request in contents.requests] == ["b", "a"]
    assert (contents.num_damaged, contents.life.crashes, contents.cut) == (1, 2, [])


def damaged(batch, record):
    """The batch, with another byte in a record."""
    at = batch.index(record) + len(record) // 2
    return batch[:at] + bytes([batch[at] ^ 0x04]) + batch[at + 1 :]


def story():
    """Two requests; the first has two sequences, of which one has ended. Each record by its name."""
    return {
        "a": request_record("a", 0, n=2),
        "b": request_record("b", 2),
        "step 1": step_record("x", s0=(0, 10), s1=(0, 20), s2=(0, 30)),
        "step 2": step_record("x", s0=(1, 11), s2=(1, 31)),
        "end of 1": EndRecord(1, 3, Ending("cancelled"), 1),
        "step 3": step_record("y", s0=(2, 12), s2=(2, 32)),
    }


WHOLE = {"a": ([[10, 11, 12], [20]], [None, "cancelled"]), "b": ([[30, 31, 32]], [None])}


@pytest.mark.parametrize(
    ("lost", "expected", "cut"),
    [
        ("a", {"b": WHOLE["b"]}, []),
        ("b", {"a": WHOLE["a"]}, []),
        ("step 1", {"a": ([[], []], [None, None]), "b": ([[]], [None])}, ["a", "b"]),
        ("step 2", {"a": ([[10], [20]], [None, "cancelled"]), "b": ([[30]], [None])}, ["a", "b"]),
        ("end of 1", {"a": ([[10, 11, 12], [20]], [None, None]), "b": WHOLE["b"]}, []),
        ("step 3", {"a": ([[10, 11], [20]], [None, "cancelled"]), "b": ([[30, 31]], [None])}, []),
    ],
)
@pytest.mark.parametrize("batches", [1, 2, 6])
def test_a_record_that_is_lost_costs_those_it_is_of_what_comes_after_it(lost, expected, cut, batches):
    records, payloads = list(story().items()), []
    for part in range(batches):
        chosen = records[part * 6 // batches : (part + 1) * 6 // batches]
        payload = encode([record for _, record in chosen])
        if lost in dict(chosen):
            payload = damaged(payload, msgspec.msgpack.encode(dict(chosen)[lost]))
        payloads.append(payload)
    contents = read_batches(payloads)
    told = {r.submit.request_id: r for r in contents.requests}
    found = {name: (tokens_of(r), [p.ending and p.ending.reason for p in r.progress]) for name, r in told.items()}
    assert found == expected
    assert (contents.num_damaged, contents.cut) == (1, cut)


def test_a_sequence_whose_end_is_lost_does_not_go_on_after_its_stop_token_or_its_limit():
    params = m.SamplingParams(max_tokens=2, stop_token_ids=(9,))
    new = [m.Submit(request_id=name, prompt=PROMPT, params=params) for name in "abc"]
    accepted = [RequestRecord(i, 0.0, SubmitRecord.of(each), (Progress(),)) for i, each in enumerate(new)]
    steps = [step_record("x", s0=(0, 9), s1=(0, 5), s2=(0, 5)), step_record("x", s1=(1, 6))]
    requests = read_batches([encode([*accepted, *steps])]).requests
    endings = [told.ending and told.ending.reason for request in requests for told in request.progress]
    assert endings == ["stop", "length", None]


@dataclass
class Told:
    """What a history said of one sequence."""

    tokens: list = field(default_factory=list)
    logprob_ids: bytes = b""
    logprobs: bytes = b""
    model: str = ""
    num_cached: int | None = None
    ending: Ending | None = None
    prompt_width: int = 0
    prompt_ids: bytes = b""
    prompt_values: bytes = b""

    @property
    def num_covered(self):
        return len(self.prompt_ids) // (4 * self.prompt_width) if self.prompt_width else 0

    @property
    def num_uncovered(self):
        return len(PROMPT) // 4 - 1 - self.num_covered if self.prompt_width else 0

    def progress(self):
        columns = self.logprob_ids, self.logprobs, self.prompt_ids, self.prompt_values
        return Progress(
            int32(*self.tokens), self.model, self.num_cached, self.ending, *columns, have_ranks(self.prompt_ids)
        )


@dataclass
class History:
    """A random history: records in batches, the truth, and in which batch each request was introduced last."""

    batches: list
    submits: dict
    truth: dict
    introduced: dict
    num_logprobs: dict


@st.composite
def histories(draw):
    told = History([[]], {}, {}, {}, {})
    for _ in range(draw(st.integers(1, 40))):
        going = [arrival for arrival, sequence in told.truth.items() if sequence.ending is None]
        kinds = ["accept", "accept again", "batch", "prompt", "step", "step", "step", "end"]
        kind = draw(st.sampled_from(kinds))
        prompts = [arrival for arrival in going if told.truth[arrival].num_uncovered]
        if kind == "accept":
            arrival, n = len(told.truth), draw(st.integers(1, 3))
            width = draw(st.sampled_from([0, 0, 1, 3]))
            told.submits[arrival] = submit(f"r{arrival}", n, draw(st.sampled_from([0, 0, 1, 2, 21])), width)
            told.num_logprobs |= {arrival + i: told.submits[arrival].params.logprobs for i in range(n)}
            told.truth |= {arrival + i: Told(prompt_width=0 if i else width) for i in range(n)}
        if kind == "accept again" and told.submits:
            arrival = draw(st.sampled_from(sorted(told.submits)))
        if kind.startswith("accept") and told.submits:
            n = told.submits[arrival].n
            progress = tuple(told.truth[arrival + i].progress() for i in range(n))
            told.batches[-1].append(
                RequestRecord(arrival, float(arrival), SubmitRecord.of(told.submits[arrival]), progress)
            )
            told.introduced[arrival] = len(told.batches) - 1
        if kind == "batch":
            told.batches.append([])
        if kind == "prompt" and prompts:
            arrival = draw(st.sampled_from(prompts))
            true, rng = told.truth[arrival], random.Random(draw(st.integers(0, 2**16)))
            num_bytes = 4 * true.prompt_width * draw(st.integers(1, true.num_uncovered))
            ids, values = rng.randbytes(num_bytes), rng.randbytes(num_bytes)
            told.batches[-1].append(PromptRecord(arrival, true.num_covered, ids, values, "one", have_ranks(ids)))
            true.prompt_ids, true.prompt_values, true.model = true.prompt_ids + ids, true.prompt_values + values, "one"
        speaking = [arrival for arrival in going if arrival not in prompts]
        if kind == "step" and speaking:
            chosen = draw(st.lists(st.sampled_from(speaking), unique=True, min_size=1))
            model, token = draw(st.sampled_from(["one", "two"])), draw(st.integers(0, 2**31 - 1))
            rng = random.Random(
                draw(st.integers(0, 2**16))
            )  # any bits: also those of numbers that are not equal to themselves
            widths = [4 * told.num_logprobs[arrival] for arrival in chosen]
            came = [(rng.randbytes(width), rng.randbytes(width)) for width in widths]
            positions = [len(told.truth[arrival].tokens) for arrival in chosen]
            rows = zip(chosen, positions, came, strict=True)
            step = {f"s{arrival}": (position, token, *columns) for arrival, position, columns in rows}
            told.batches[-1].append(step_record(model, **step))
            for arrival, (ids, values) in zip(chosen, came, strict=True):
                told.truth[arrival].tokens.append(token)
                told.truth[arrival].logprob_ids += ids
                told.truth[arrival].logprobs += values
                told.truth[arrival].model = model
        if kind == "end" and going:
            arrival, num_cached = draw(st.sampled_from(going)), draw(st.none() | st.integers(0, 3))
            ending = Ending(draw(st.sampled_from(["stop", "length", "cancelled", "error"])), "e", "c")
            true = told.truth[arrival]
            told.batches[-1].append(EndRecord(arrival, num_cached, ending, len(true.tokens), true.num_covered))
            told.truth[arrival].num_cached, told.truth[arrival].ending = num_cached, ending
    return told


@settings(max_examples=examples(150))
@given(histories(), st.data())
def test_any_tail_of_the_journal_tells_all_of_the_requests_introduced_in_it(told, data):
    """So the batches before the oldest RequestRecord that is needed can be let go."""
    keep_from = data.draw(st.integers(0, len(told.batches)))
    requests = {request.arrival: request for request in replay([encode(b) for b in told.batches[keep_from:]])}
    assert set(requests) == {arrival for arrival, batch in told.introduced.items() if batch >= keep_from}
    for arrival, request in requests.items():
        assert request.submit.message() == told.submits[arrival]
        assert request.progress == tuple(told.truth[arrival + i].progress() for i in range(request.submit.n))


@settings(max_examples=examples(300))
@given(histories(), st.data())
def test_damage_is_noticed_and_never_tells_anything_that_was_not_so(told, data):
    """Any bits of a batch, and any number of its bytes."""
    payloads = [encode(batch) for batch in told.batches]
    number = data.draw(st.sampled_from([i for i, payload in enumerate(payloads) if payload] or [0]))
    payload = bytearray(payloads[number])
    if not payload:
        return
    for at in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=3, unique=True)):
        payload[at] ^= data.draw(st.integers(1, 255))
    contents = read_batches([*payloads[:number], bytes(payload), *payloads[number + 1 :]])
    assert contents.num_damaged or contents == read_batches(payloads)
    for request in contents.requests:
        assert request.submit.message() == told.submits[request.arrival]
        for i, found in enumerate(request.progress):
            true = told.truth[request.arrival + i].progress()
            assert true.token_ids.startswith(found.token_ids)
            assert true.logprob_ids.startswith(found.logprob_ids)
            assert true.logprobs.startswith(found.logprobs)
            assert true.prompt_logprob_ids.startswith(found.prompt_logprob_ids)
            assert true.prompt_logprobs.startswith(found.prompt_logprobs)
            assert len(found.prompt_logprob_ids) == len(found.prompt_logprobs)
            assert not found.token_ids or found.prompt_logprob_ids == true.prompt_logprob_ids
            width = len(found.token_ids) * told.num_logprobs[request.arrival]
            assert len(found.logprob_ids) == len(found.logprobs) == width
            assert found.ending in (None, true.ending)


@settings(max_examples=examples(300))
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
def test_what_is_framed_comes_back_and_damage_to_one_byte_takes_one_record(records):
    batch = frame(records)
    assert unframe(batch) == (records, 0)
    for at in range(len(batch)):
        for flip in (0x01, 0x80, 0xFF):
            whole, num_damaged = unframe(batch[:at] + bytes([batch[at] ^ flip]) + batch[at + 1 :])
            assert len(whole) + num_damaged == len(records)
            assert num_damaged <= 1
            assert set(whole) <= set(records)


@settings(max_examples=examples(100))
@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5), st.data())
def test_a_batch_that_is_cut_gives_its_first_records(records, data):
    batch = frame(records)
    whole, num_damaged = unframe(batch[: data.draw(st.integers(1, len(batch) - 1))])
    assert whole == records[: len(whole)]
    assert num_damaged or whole == records
