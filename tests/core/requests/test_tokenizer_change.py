"""A request is bound to the tokenizer of its token ids: with another one its answer would be another text."""

from array import array

import pytest

from common import messages as m
from common.vocabulary import Vocabulary
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.journal_records import Ending, Progress, RequestRecord, SamplingRecord, SubmitRecord
from scheduler_svc.core.requests.recovery import of_this_tokenizer
from tests import ROOT
from tests.support.hello import LIMITS
from tests.support.service import Service, restart, undisturbed


def vocabulary(tokenizer, former=""):
    return Vocabulary(LIMITS.vocab_size, tokenizer, former)


def life(tokenizer):
    """A service whose requests are in its journal: one that goes on, with a token, and one that has ended."""
    service = Service(JournalState.OK, vocabulary=vocabulary(tokenizer))
    service.join("one", tokenizer=tokenizer)
    service.submit("going", max_tokens=20, is_resumable=True)
    service.submit("ended", max_tokens=1)
    service.turn(num_answers=1)
    return service.write()


def attach(service, request_id):
    assert service.say(m.Attach(request_id=request_id)).found
    service.flush()
    key = (b"web", request_id, 0)
    return service.tokens.get(key, []), service.endings.get(key)


def test_requests_of_another_tokenizer_end_with_an_error_that_says_so():
    again, batch = restart([life("old")], vocabulary=vocabulary("new"))
    for request_id in ("going", "ended"):
        assert attach(again, request_id) == ([], "tokenizer_changed"), "no text is made of tokens of another meaning"
    (line,) = again.events("requests ended: their tokenizer is gone")
    assert (line.level, line.facts) == ("warning", {"requests": "going,ended"})
    assert not list(again.core.scheduler)
    once_more, _ = restart([batch.payload], vocabulary=vocabulary("new"))
    assert attach(once_more, "going") == ([], "tokenizer_changed")
    assert not once_more.events("requests ended: their tokenizer is gone"), "that was said before"


def test_a_prompt_of_another_tokenizer_loses_its_log_probabilities_although_there_is_no_token():
    params = SamplingRecord(max_tokens=9, prompt_logprobs=1)
    told = Progress(ending=Ending("cancelled"), prompt_logprob_ids=bytes(8), prompt_logprobs=bytes(8))
    record = RequestRecord(0, 0.0, SubmitRecord("a", bytes(12), params), (told,), tokenizer="old")
    (kept,), ended = of_this_tokenizer([record], {"generate": vocabulary("new")})
    assert ended == ["a"]
    assert (kept.progress[0].num_bytes, kept.progress[0].ending.code) == (0, "tokenizer_changed")


@pytest.mark.parametrize(("before", "after"), [("same", "same"), ("", "new"), ("old", "")])
def test_other_weights_with_this_tokenizer_or_an_unknown_one_go_on(before, after):
    again, _ = restart([life(before)], vocabulary=vocabulary(after))
    again.join("other", fingerprint="other weights", tokenizer=after)
    tokens, _ = attach(again, "going")
    assert tokens == undisturbed(20)[: len(tokens)]
    again.turn()
    again.write()
    again.flush()
    assert again.endings[b"web", "going", 0] == "length"


def test_a_request_stays_bound_to_its_tokenizer_life_after_life():
    _, batch = restart([life("old")], vocabulary=vocabulary("old"))
    third, _ = restart([batch.payload], vocabulary=vocabulary("new"))
    assert attach(third, "going") == ([], "tokenizer_changed")


def test_a_request_of_an_earlier_release_goes_on_although_its_hash_is_another_one():
    """That release said `former` of the tokenizer that is `now`."""
    again, batch = restart([life("former")], vocabulary=vocabulary("now", "former"))
    assert attach(again, "going")[1] is None
    assert not again.events("requests ended: their tokenizer is gone")
    third, _ = restart([batch.payload], vocabulary=vocabulary("now"))
    assert attach(third, "going")[1] is None, "from now on it is bound to the present hash"
    other, _ = restart([batch.payload], vocabulary=vocabulary("new", "former"))
    assert attach(other, "going")[1] == "tokenizer_changed", "who forges the former hash gains nothing any more"


def test_an_unknown_tokenizer_is_no_reason_to_end_a_request():
    service = Service(JournalState.OK)
    service.submit("a", is_resumable=True)
    again, _ = restart([service.write()], vocabulary=vocabulary("new"))
    assert [sequence.request_id for sequence in again.core.scheduler] == ["a"]
    assert array("i", next(iter(again.core.scheduler)).tokens).tolist() == [5, 6, 7]


def test_the_code_is_documented():
    assert "`tokenizer_changed`" in (ROOT / "docs" / "protocol.md").read_text()
