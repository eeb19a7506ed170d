"""Rules of stored responses, one by one."""

import msgspec
import pytest

from scheduler_svc.store import responses
from scheduler_svc.store.errors import ChainTooLong, Conflict, NotFound, QuotaExceeded
from scheduler_svc.store.quotas import used_bytes
from scheduler_svc.store.records import RECORD_BYTES
from scheduler_svc.store.responses import Cut
from tests.store.rows import get_response, response

END = {"status": "completed", "output_items": b"[2]", "tail": b"{}", "tokens": b"\x01"}


def test_what_was_added_is_found_by_its_owner_alone(store):
    responses.add(store, response("r", "ann"))
    responses.add(store, response("r", "", head=b"other"))
    assert get_response(store, "ann", "r", 2.0) == response("r", "ann")
    assert get_response(store, "", "r", 2.0).head == b"other"
    for function in (get_response, responses.delete, responses.cancel):
        with pytest.raises(NotFound, match="no response 'r'"):
            function(store, "bob", "r", 2.0)
    assert responses.get_status(store, "bob", "r", 2.0) is None
    assert not responses.begin(store, "bob", "r", 2.0)
    assert not responses.finish(store, "bob", "r", 2.0, **END)


def test_an_id_is_taken_until_its_response_has_expired(store):
    responses.add(store, response("r"))
    with pytest.raises(Conflict, match="'r' already"):
        responses.add(store, response("r", created_at=100.9, expires_at=200.0))
    responses.add(store, response("r", created_at=101.0, expires_at=200.0, head=b"new"))
    assert get_response(store, "ann", "r", 102.0).head == b"new"


def test_from_the_moment_of_its_expiry_it_is_absent(store):
    responses.add(store, response("r"))
    responses.add(store, response("for ever", expires_at=None))
    assert responses.get_status(store, "ann", "r", 100.9) == "queued"
    for function in (get_response, responses.delete, responses.cancel):
        with pytest.raises(NotFound):
            function(store, "ann", "r", 101.0)
    assert not responses.begin(store, "ann", "r", 101.0)
    assert not responses.finish(store, "ann", "r", 101.0, **END)
    assert [found.response_id for found in responses.open_background(store, 101.0)] == ["for ever"]
    assert responses.get_status(store, "ann", "for ever", 1e12) == "queued"


def test_the_life_of_one_in_the_background(store):
    responses.add(store, response("r", work=bytes(1000)))
    assert responses.begin(store, "ann", "r", 2.0)
    assert responses.begin(store, "ann", "r", 2.0), "a worker that comes back goes on with it"
    assert responses.finish(store, "ann", "r", 3.0, **END)
    whole = msgspec.structs.replace(response("r", work=b""), **END)
    assert get_response(store, "ann", "r", 4.0) == whole
    size = sum(map(len, (whole.head, whole.input_items, whole.output_items, whole.tail, whole.tokens)))
    assert used_bytes(store, "ann") == RECORD_BYTES + size, "its work counts no more"


@pytest.mark.parametrize("end", ["completed", "cancelled", "deleted"])
def test_what_has_ended_stays_as_it_is(store, end):
    responses.add(store, response("r"))
    if end == "completed":
        responses.finish(store, "ann", "r", 2.0, **END)
        assert not responses.cancel(store, "ann", "r", 3.0)
    elif end == "cancelled":
        assert responses.cancel(store, "ann", "r", 2.0)
        assert not responses.cancel(store, "ann", "r", 3.0)
    else:
        responses.delete(store, "ann", "r", 2.0)
    assert not responses.begin(store, "ann", "r", 3.0)
    assert not responses.finish(store, "ann", "r", 3.0, **(END | {"status": "failed", "tail": b"late"}))
    assert responses.get_status(store, "ann", "r", 3.0) == (None if end == "deleted" else end)
    assert responses.open_background(store, 3.0) == []


def test_an_owner_s_quota_is_its_own_and_is_never_passed(store):
    size = RECORD_BYTES + len(b'{"model": "m"}') + len(b"[1]") + len(b"work")
    responses.add(store, response("r"), limit_bytes=2 * size)
    responses.add(store, response("s"), limit_bytes=2 * size)
    with pytest.raises(QuotaExceeded) as caught:
        responses.add(store, response("t", head=b"", input_items=b"", work=b""), limit_bytes=2 * size)
    error = caught.value
    assert (error.what, error.used, error.limit) == ("stored bytes", 2 * size, 2 * size)
    responses.add(store, response("t", "bob"), limit_bytes=size)
    responses.add(store, response("t"))  # no limit
    responses.delete(store, "ann", "t", 2.0)
    assert used_bytes(store, "ann") == 2 * size


def test_background_ones_come_oldest_first_page_by_page_also_when_one_goes_meanwhile(store):
    for name, created_at in (("c", 1.0), ("a", 2.0), ("b", 1.0), ("d", 3.0)):
        responses.add(store, response(name, "bob" if name == "c" else "ann", created_at=created_at))
    responses.add(store, response("foreground", is_background=False))
    responses.add(store, response("ended", status="completed"))
    page = responses.open_background(store, 4.0, limit=2)
    assert [(one.owner, one.response_id) for one in page] == [("ann", "b"), ("bob", "c")]
    responses.delete(store, "bob", "c", 4.0)
    page = responses.open_background(store, 4.0, after=page[-1], limit=2)
    assert [one.response_id for one in page] == ["a", "d"]
    assert responses.count_open(store, "ann", 4.0) == 3
    assert responses.count_open(store, "bob", 4.0) == 0


def conversation(store, length, owner="ann"):
    for turn in range(length):
        facts = {"previous_id": f"r{turn - 1}" if turn else None, "head": b"h%d" % turn, "output_items": b"o%d" % turn}
        responses.add(store, response(f"r{turn}", owner, **facts))


def test_a_chain_is_the_conversation_from_its_beginning(store):
    conversation(store, 20)
    conversation(store, 3, owner="bob")
    links = responses.chain(store, "ann", "r19", 2.0, max_responses=20, max_bytes=1000)
    assert [link.response_id for link in links] == [f"r{turn}" for turn in range(20)]
    assert (links[7].input_items, links[7].output_items) == (b"[1]", b"o7")
    assert len(responses.chain(store, "ann", "r5", 2.0, max_responses=20, max_bytes=1000)) == 6


def test_limits_of_a_chain_are_exact(store):
    conversation(store, 5)  # of 3 + 2 bytes each, without their heads
    limits = {"max_responses": 5, "max_bytes": 25}
    assert len(responses.chain(store, "ann", "r4", 2.0, **limits)) == 5
    with pytest.raises(ChainTooLong, match="more than 4 responses"):
        responses.chain(store, "ann", "r4", 2.0, **(limits | {"max_responses": 4}))
    with pytest.raises(ChainTooLong, match="more than 24 bytes"):
        responses.chain(store, "ann", "r4", 2.0, **(limits | {"max_bytes": 24}))


def test_parts_of_a_response_are_read_by_themselves(store):
    whole = response("r", "ann", output_items=b"[2]", tail=b"{}", tokens=b"long")
    responses.add(store, whole)
    cuts = [Cut("head", 2, 9), Cut("output_items", 0, 3), Cut("tail", 1, 1), Cut("tokens", 1, 4), Cut("tokens", 0, 0)]
    assert responses.read(store, "ann", "r", 2.0, cuts) == [whole.head[2:9], b"[2]", b"", b"ong", b""]
    num_bytes = responses.measure(store, "ann", "r", 2.0).input_items
    assert responses.read(store, "ann", "r", 2.0, [Cut("input_items", 0, num_bytes)]) == [whole.input_items]
    for function, *more in ((responses.measure,), (responses.read, cuts)):
        with pytest.raises(NotFound, match="no response 'r'"):
            function(store, "bob", "r", 2.0, *more)
    assert not store.in_transaction


def test_items_of_several_responses_are_bounded_together(store):
    conversation(store, 3)  # of 3 + 2 bytes each
    links = responses.get_items(store, "ann", ["r2", "r0"], 2.0, max_bytes=10)
    assert [(link.response_id, link.output_items) for link in links] == [("r2", b"o2"), ("r0", b"o0")]
    with pytest.raises(ChainTooLong, match="more than 9 bytes"):
        responses.get_items(store, "ann", ["r2", "r0"], 2.0, max_bytes=9)
    with pytest.raises(NotFound, match="no response 'r7'"):
        responses.get_items(store, "ann", ["r2", "r7"], 2.0, max_bytes=10)
    with pytest.raises(NotFound, match="no response 'r0'"):
        responses.get_items(store, "bob", ["r0"], 2.0, max_bytes=10)


@pytest.mark.parametrize("how", ["deleted", "expired", "another owner's"])
def test_the_missing_one_of_a_chain_is_named(store, how):
    conversation(store, 4)
    responses.delete(store, "ann", "r1", 2.0)
    if how == "expired":
        responses.add(store, response("r1", expires_at=1.5))
    elif how == "another owner's":
        responses.add(store, response("r1", "bob"))
    with pytest.raises(NotFound, match="no response 'r1'"):
        responses.chain(store, "ann", "r3", 2.0, max_responses=10, max_bytes=1000)
    with pytest.raises(NotFound, match="no response 'other'"):
        responses.chain(store, "ann", "other", 2.0, max_responses=10, max_bytes=1000)


def test_a_chain_that_bites_its_tail_ends_at_the_limit(store):
    conversation(store, 2)
    responses.delete(store, "ann", "r0", 2.0)
    responses.add(store, response("r0", previous_id="r1"))
    with pytest.raises(ChainTooLong):
        responses.chain(store, "ann", "r1", 2.0, max_responses=10, max_bytes=1000)


def test_a_long_chain_costs_no_more_than_its_limit(store):
    """A walk of a thousand answers is cut at the limit, and not first walked to its end."""
    conversation(store, 1000)
    steps = []
    store.set_progress_handler(lambda: steps.append(1), 100)
    for name in ("r30", "r999"):
        with pytest.raises(ChainTooLong):
            responses.chain(store, "ann", name, 2.0, max_responses=20, max_bytes=10_000)
        steps.append(0)
    store.set_progress_handler(None, 0)
    short = steps.index(0)
    assert len(steps) - short < 2 * short + 5


@pytest.mark.parametrize("text", ["", "\0", "ünïcode ✓", "x" * 100_000, "'; DROP TABLE responses; --"])
def test_ids_and_owners_may_be_any_text(store, text):
    responses.add(store, response(text, text))
    assert get_response(store, text, text, 2.0).response_id == text
    assert len(responses.chain(store, text, text, 2.0, max_responses=1, max_bytes=100)) == 1


def test_text_that_is_no_unicode_adds_nothing(store):
    with pytest.raises(UnicodeEncodeError):
        responses.add(store, response("r", "\ud800"))
    assert store.execute("SELECT count(*) FROM responses").fetchone() == (0,)
