"""Codec and messages: what is not a well-formed message of its direction is a WireError, never anything else."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from common import messages as m
from common.errors import WireError
from common.wire import HEADER, MAX_MESSAGE_BYTES, Codec, VersionError, array_from, int32_array
from tests.support.effort import examples
from tests.support.hello import hello
from tests.support.status_reports import executor_status, status_report

DIRECTIONS = (m.ExecutorToScheduler, m.SchedulerToExecutor, m.FrontendToCore, m.CoreToFrontend)
HELLO = hello(pool=m.Pool(pool="0" * 32, lease=1, layout="x", epoch=0))


def members(direction):
    return direction.__args__


CONSTRAINTS = m.Constraints(presence_penalty=0.5, bad_words=(b"ab", b"c"), grammar="g")
START = m.LaneStart(lane=1, num_prompt=2, tokens=b"abcd", constraints=CONSTRAINTS)
LIFE = m.SequenceLife(index=0, marks=[m.Mark(at=1.0, what="queued", tokens=3)], num_left_out=0, output=2)
VIEW = m.View(
    number=1,
    is_fresh=True,
    at=2.0,
    report=status_report(executors=[executor_status()]),
    waiting=(
        m.WaitingSequence(request="r", index=0, client="", tokens=3, output=0, priority=0, since=1.0, reason="memory"),
    ),
    running=(m.RunningSequence(request="r", index=1, client="", epoch=7, since=1.0),),
    events=(m.FleetEvent(number=0, at=1.0, kind="joined", executor="x", epoch=7),),
    history=(m.HistorySample(1.0, 2.0, 3.0, -1.0, 4, 5),),
    blocks=(m.BlockChanges(epoch=7, changed=b"abcd", found=b"abcd"),),
)
PLAN_COLUMNS = [field for field in m.Plan.__struct_fields__[2:] if field != "lane_starts"]


def test_every_direction_has_unique_tags():
    for direction in DIRECTIONS:
        tags = [member.__struct_config__.tag for member in members(direction)]
        assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_round_trip_of_every_message(direction):
    codec = Codec(direction)
    samples = {
        m.Hello: HELLO,
        m.StepResult: m.StepResult(epoch=1, step=2, token_ids=b"abcd", compute_us=3),
        m.StepFailed: m.StepFailed(epoch=1, step=2, error="x"),
        m.ExecutorHeartbeat: m.ExecutorHeartbeat(epoch=1, has_standby=True),
        m.Reject: m.Reject(reason="x"),
        m.EpochOver: m.EpochOver(epoch=1, reason="x"),
        m.Plan: m.Plan(epoch=1, step=2, **{f: f.encode() for f in PLAN_COLUMNS}, lane_starts=(START,)),
        m.FrontendHello: m.FrontendHello(pid=4),
        m.FrontendCounts: m.FrontendCounts(
            http=(m.HttpCount(path="/health", status=200, count=3),), refused=(m.NamedCount(name="x", count=1),)
        ),
        m.Submit: m.Submit(
            request_id="r",
            prompt=b"abcd",
            params=m.SamplingParams(max_tokens=3, top_p=0.5, logprobs=2, prompt_logprobs=3, constraints=CONSTRAINTS),
            n=2,
            charge=m.Charge(tokens=2**41, tokens_per_minute=5),
        ),
        m.Revoke: m.Revoke(client="a"),
        m.Attach: m.Attach(request_id="r"),
        m.Detach: m.Detach(request_id="r"),
        m.Cancel: m.Cancel(request_id="r", index=1),
        m.DrainExecutor: m.DrainExecutor(query_id=1, executor="x", finish=True),
        m.FleetState: m.FleetState(num_ready=1, fingerprint="ab", max_model_len=9),
        m.Outputs: m.Outputs(
            number=3, deltas=(m.TokenDelta(request_id="r", index=0, token_ids=b"", finish_reason="stop"),)
        ),
        m.RateLimits: m.RateLimits(request_id="r", is_accepted=True, tokens=m.Rate(limit=5, remaining=4, reset_s=12.5)),
        m.Accepted: m.Accepted(request_ids=("r", "s")),
        m.Attached: m.Attached(request_id="r", found=True, prompt=b"abcd", n=2, context=b"x"),
        m.DrainReply: m.DrainReply(query_id=1, epoch=0, refusal="x"),
        m.Metrics: m.Metrics(query_id=1, text=b"x"),
        m.LifeQuery: m.LifeQuery(query_id=1, request_id="r"),
        m.Life: m.Life(query_id=1, at=2.0, sequences=(LIFE,)),
        m.BlockHolders: m.BlockHolders(
            query_id=1, holders=(m.BlockHolder(request="r", index=0, client="", blocks=[1, 2]),)
        ),
        m.SendViews: m.SendViews(interval_s=0.25, is_fresh=True),
        m.View: VIEW,
    }
    for kind in members(direction):
        sample = samples.get(kind)
        if sample is None and kind is not m.Status:
            sample = kind(**dict.fromkeys(kind.__struct_fields__, 1))
        if sample is not None:
            assert codec.decode(codec.encode(sample)) == sample


@given(frames=st.lists(st.binary(max_size=60), max_size=4), direction=st.sampled_from(DIRECTIONS))
@settings(max_examples=examples(300))
def test_random_frames(frames, direction):
    for sent in (frames, [HEADER, *frames]):
        try:
            message = Codec(direction).decode(sent)
        except WireError:
            continue
        assert isinstance(message, members(direction))


@given(data=st.data())
@settings(max_examples=examples(300))
def test_mutated_messages(data):
    """A valid payload with bytes cut, changed or added is decoded into a valid message or refused."""
    payload = bytearray(Codec(m.ExecutorToScheduler).encode(HELLO)[1])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        if not payload:
            break
    try:
        message = Codec(m.ExecutorToScheduler).decode([HEADER, bytes(payload)])
    except WireError:
        return
    assert isinstance(message, members(m.ExecutorToScheduler))


def test_deeply_nested_and_foreign_payloads_are_refused():
    codec = Codec(m.FrontendToCore)
    for payload in (b"\x91" * 100_000, b"", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode(["plan", 1])):
        with pytest.raises(WireError):
            codec.decode([HEADER, payload])


@pytest.mark.parametrize(
    "values",
    [{"epoch": 0}, {"epoch": -1}, {"epoch": 2**60}, {"step": -1}, {"compute_us": 2**31}, {"token_ids": "text"}],
)
def test_values_out_of_range_are_refused(values):
    codec = Codec(m.ExecutorToScheduler)
    valid = {"epoch": 1, "step": 0, "token_ids": b"", "compute_us": 0}
    codec.decode(codec.encode(m.StepResult(**valid)))
    with pytest.raises(WireError, match="malformed"):
        codec.decode(codec.encode(m.StepResult(**(valid | values))))


def test_a_missing_or_an_extra_field_is_refused():
    codec = Codec(m.ExecutorToScheduler)
    fields = msgspec.msgpack.decode(codec.encode(HELLO)[1])
    for changed in (fields[:-1], [*fields, 1]):
        with pytest.raises(WireError):
            codec.decode([HEADER, msgspec.msgpack.encode(changed)])


def test_headers_and_sizes():
    codec = Codec(m.ExecutorToScheduler)
    payload = codec.encode(HELLO)[1]
    with pytest.raises(VersionError, match=f"version 77, this side {m.PROTOCOL_VERSION}"):
        codec.decode([b"baton/77", payload])
    with pytest.raises(WireError, match="not a Baton message"):
        codec.decode([b"http/1.1", payload])
    with pytest.raises(WireError, match="2 frames, not 1"):
        codec.decode([payload])
    with pytest.raises(WireError, match=f"limit is {MAX_MESSAGE_BYTES}"):
        codec.decode([HEADER, bytes(MAX_MESSAGE_BYTES + 1)])


def test_arrays():
    assert int32_array("x", b"\x01\0\0\0\xff\xff\xff\xff").tolist() == [1, -1]
    with pytest.raises(WireError, match="x has 5 bytes, not a multiple of 4"):
        int32_array("x", b"12345")
    with pytest.raises(WireError, match="not a multiple of 8"):
        array_from("seeds", b"1234", "<u8")


def test_accepted_names_a_bounded_number_of_requests():
    codec = Codec(m.CoreToFrontend)
    names = ("r",) * m.MAX_ACCEPTED_A_MESSAGE
    assert codec.decode(codec.encode(m.Accepted(request_ids=names))).request_ids == names
    with pytest.raises(WireError, match="length"):
        codec.decode(codec.encode(m.Accepted(request_ids=(*names, "s"))))
