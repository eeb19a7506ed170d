"""Limits of requests and tokens a minute: what is accepted, what is refused for how long, and what is given back."""

from array import array

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from scheduler_svc.core.requests.accounts import Bucket
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.scheduling.config import SchedulerConfig
from tests.support.effort import examples
from tests.support.service import Service, restart

LIMIT = 60  # a token in each second


def events_of(seconds):
    """What a client does, again and again: it waits, and asks for something that is reserved so many tokens, uses so
    many, and lasts so long."""
    amounts = st.integers(1, LIMIT), st.integers(0, LIMIT)
    return st.lists(st.tuples(seconds(0, 90), *amounts, seconds(0, 200)), max_size=40)


class Taken:
    """A request that a bucket had room for."""

    def __init__(self, name, at, reserved, used, ends_at):
        self.name, self.at, self.reserved, self.used, self.ends_at = name, at, reserved, min(used, reserved), ends_at
        self.is_over = False


def run(events):
    """Whoever comes takes what is free, uses some of it, and is over later. Returns what was taken."""
    bucket, taken, now = Bucket(), [], 0.0
    for number, (pause_s, reserved, used, lasts_s) in enumerate(events):
        now += pause_s
        for each in sorted(
            (each for each in taken if each.ends_at <= now and not each.is_over), key=lambda t: t.ends_at
        ):
            bucket.pass_time(LIMIT, each.ends_at)
            before = bucket.free
            bucket.settle(each.name, each.reserved, each.used)
            assert -1e-6 <= bucket.free - before <= each.reserved - each.used + 1e-6, (
                "more is given back than was taken"
            )
            each.is_over = True
        bucket.pass_time(LIMIT, now)
        assert -1e-6 <= bucket.free <= LIMIT + 1e-6
        if bucket.refilled_in_s(reserved) == 0:
            bucket.reserve(str(number), reserved)
            taken.append(Taken(str(number), now, reserved, used, now + lasts_s))
    return taken


@settings(max_examples=examples(400))
@given(events_of(st.floats))
def test_in_any_time_no_more_is_used_than_the_limit_and_what_the_time_refills(events):
    """Of all that begins in that time, whatever it had been reserved: what was given back never counts twice."""
    taken = run(events)
    for i, first in enumerate(taken):
        used = 0
        for last in taken[i:]:
            used += last.used
            assert used <= LIMIT + LIMIT * (last.at - first.at) / 60 + 1e-6


@settings(max_examples=examples(100))
@given(events_of(st.integers))
def test_who_uses_all_that_it_reserves_is_served_as_by_a_plain_token_bucket(events):
    level, at, now, plain = float(LIMIT), 0.0, 0.0, []
    for pause_s, reserved, _, _ in events:
        now += pause_s
        level, at = min(LIMIT, level + (now - at) * LIMIT / 60), now
        if level >= reserved:
            level -= reserved
            plain.append(now)
    ours = [each.at for each in run([(pause_s, reserved, LIMIT, lasts) for pause_s, reserved, _, lasts in events])]
    assert ours == plain


def test_a_long_answer_does_not_hold_for_its_whole_time_what_it_was_reserved():
    """Else a client with long answers would get a part of its limit only."""
    bucket = Bucket()
    bucket.pass_time(LIMIT, 0.0)
    bucket.reserve("long", 40)
    bucket.reserve("longer", 20)
    bucket.pass_time(LIMIT, 30.0)
    assert bucket.free == 30
    bucket.settle("long", 40, 35)
    assert bucket.free == 35, "30 were paid for, 5 more were used, and 5 come back"
    bucket.settle("longer", 20, 20)
    bucket.settle("nobody", 20, 0)
    assert bucket.free == 35
    bucket.pass_time(LIMIT, 55.0)
    assert bucket.free == 60


def test_what_time_has_paid_for_is_not_given_back():
    """Else whoever holds a reservation for a minute, and uses nothing of it, would have its limit twice."""
    bucket = Bucket()
    bucket.pass_time(LIMIT, 0.0)
    bucket.reserve("idle", LIMIT)
    bucket.pass_time(LIMIT, 60.0)
    bucket.reserve("busy", LIMIT)
    bucket.settle("idle", LIMIT, 0)
    assert bucket.free == 0


def test_a_limit_that_changes_counts_from_then_on():
    bucket = Bucket()
    bucket.pass_time(LIMIT, 0.0)
    bucket.use(50)
    bucket.pass_time(30, 10.0)
    assert (bucket.free, bucket.refilled_in_s(30)) == (-10, 80.0)
    bucket.pass_time(600, 20.0)
    assert bucket.free == 600 - 35
    bucket.pass_time(0, 20.0)
    bucket.pass_time(10, 21.0)
    assert bucket.free == 10, "without a limit nothing counts"


# --- the core ---

KEY = {"client": "1a", "client_name": "alice"}


def ask(service, name, *, requests=0, tokens=0, max_tokens=6, num_prompt=4, whole=0, prompt=0, peer=b"web", **fields):
    """Submit a prompt of a request, which pays for all prompts if it is the first one. Returns what its client is told
    of its limits.

    Args:
        whole: tokens of all prompts, if there are several.
    """
    ids = array("i", range(1, num_prompt + 1)).tobytes()
    params = fields.pop("params", m.SamplingParams(max_tokens=max_tokens))
    submit = m.Submit(request_id=f"1a/{name}-{prompt}", prompt=ids, params=params, **(KEY | fields))
    if not prompt:
        limits = {"requests_per_minute": requests, "tokens_per_minute": tokens}
        submit = msgspec.structs.replace(submit, charge=m.Charge(tokens=whole or submit.most_tokens, **limits))
    heard = len(service.said.get(peer, []))
    service.say(submit, peer)
    told = [said for said in service.said.get(peer, [])[heard:] if isinstance(said, m.RateLimits)]
    assert len(told) < 2
    return told[0] if told else None


def left(limits):
    """What remains of each limit, None where there is none."""
    return tuple(rate and rate.remaining for rate in (limits.requests, limits.tokens))


def ending(service, name, prompt=0, index=0):
    return service.endings.get((b"web", f"1a/{name}-{prompt}", index))


def test_requests_of_a_minute():
    service = Service()
    for number in range(3):
        limits = ask(service, f"r{number}", requests=3)
        assert (limits.is_accepted, left(limits)) == (True, (2 - number, None))
    assert limits.requests == m.Rate(limit=3, remaining=0, reset_s=60.0)
    refused = ask(service, "r3", requests=3)
    assert (refused.is_accepted, left(refused)) == (False, (0, None))
    assert ending(service, "r3") == "rate_limit_exceeded"
    assert service.refusals["1a/r3-0"] == ("'alice' has 0 of 3 requests a minute left; try again in 20 s", 20)
    service.wait(20.0)
    assert ask(service, "r4", requests=3).is_accepted
    assert ask(service, "b", requests=3, client="2b", client_name="bob").is_accepted, "others have their own"


def test_tokens_of_a_minute_and_what_is_given_back_when_an_answer_has_ended():
    service = Service()
    service.join("one")
    assert left(ask(service, "a", tokens=100, max_tokens=26, n=2, num_prompt=8)) == (None, 40)
    refused = ask(service, "b", tokens=100, max_tokens=40, num_prompt=10)
    assert (refused.is_accepted, left(refused)) == (False, (None, 40))
    text, wait_s = service.refusals["1a/b-0"]
    assert text == "'alice' has 40 of 100 tokens a minute left, and this request may take 50; try again in 6 s"
    assert wait_s == 6
    service.turn(3)
    service.say(m.Cancel(request_id="1a/a-0", index=0))
    assert left(ask(service, "c", tokens=100, max_tokens=50)) == (None, 40), "another answer of the request goes on"
    service.say(m.Cancel(request_id="1a/a-0"))
    told = sum(len(service.tokens[b"web", "1a/a-0", index]) for index in (0, 1))
    assert 0 < told < 10
    assert abs(ask(service, "d", tokens=100, max_tokens=96).tokens.remaining - (100 - 8 - told)) <= 1, "time paid, too"


def test_what_fits_no_minute_is_refused_for_ever_and_names_both_numbers():
    service = Service()
    assert not ask(service, "a", tokens=100, max_tokens=97).is_accepted
    text = "the request may take 101 tokens (prompt and 'max_tokens'), and this API key has 100 a minute"
    assert (ending(service, "a"), service.refusals["1a/a-0"]) == ("invalid_value", (text, 0))
    assert left(ask(service, "b", tokens=100, max_tokens=96)) == (None, 0), "nothing was counted"


def test_an_answer_without_max_tokens_is_as_long_as_fits_a_minute():
    service = Service()
    service.join("one")
    ask(service, "a", tokens=30, max_tokens=200, n=2, may_shorten=True)
    service.turn()
    assert [len(service.tokens[b"web", "1a/a-0", index]) for index in (0, 1)] == [13, 13]
    ask(service, "b", tokens=5, max_tokens=200, n=2, may_shorten=True)
    assert service.refusals["1a/b-0"][0].startswith("the request may take 404 tokens (prompt), and this API key has 5")


def test_a_whole_request_pays_with_its_first_prompt():
    """And what of it is not taken, or has ended, is given back, whatever the others do."""
    service = Service()
    service.join("one")
    assert left(ask(service, "a", requests=5, tokens=100, whole=30)) == (4, 70)
    for prompt in (1, 2):
        assert ask(service, "a", prompt=prompt) is None
    service.turn()
    assert [ending(service, "a", prompt) for prompt in range(3)] == ["length"] * 3
    assert left(ask(service, "b", requests=5, tokens=100, whole=69)) == (3, 1)
    ask(service, "b", prompt=1, client_limit=1)
    assert ending(service, "b", 1) == "too_many_requests"
    assert ask(service, "c", requests=5, tokens=100).tokens.remaining == 1, "10 for the prompt that was refused"


def test_what_the_core_refuses_otherwise_costs_nothing():
    service = Service(scheduler=SchedulerConfig(max_waiting=1))
    assert left(ask(service, "a", requests=5, tokens=100)) == (4, 90)
    for name, code in (("b", "queue_full"), ("a", "request_exists")):
        assert left(ask(service, name, requests=5, tokens=100)) == (4, 90)
        assert ending(service, name) == code
    assert left(ask(service, "c", requests=5, tokens=100, num_prompt=0)) == (4, 90)


def test_pooled_results_cost_their_prompts():
    service = Service()
    service.join("one", tasks=("embed",))
    assert left(ask(service, "a", tokens=100, params=m.SamplingParams(max_tokens=1, pooling="hidden"))) == (None, 96)


def test_requests_that_yield_leave_half_to_others():
    """Lines of a batch would else take all that time refills, and requests that somebody waits for would find none."""
    service = Service()
    line = {"tokens": 100, "priority": m.MAX_PRIORITY}
    for number in range(5):
        assert ask(service, f"l{number}", **line).is_accepted
    assert not ask(service, "l5", **line).is_accepted
    assert "of priority 100 leave half of them to others; try again in 6 s" in service.refusals["1a/l5-0"][0]
    assert left(ask(service, "r", tokens=100)) == (None, 40)
    service.wait(60.0)
    assert ask(service, "l6", **line, max_tokens=96).is_accepted, "a long line begins when nothing else is taken"


def test_a_client_that_comes_back_pays_nothing():
    service = Service()
    ask(service, "a", requests=5, is_resumable=True)
    service.say(m.Attach(request_id="1a/a-0"), b"other")
    assert [type(said) for said in service.said[b"other"]] == [m.Attached]
    assert left(ask(service, "b", requests=5)) == (3, None)


def test_a_life_begins_with_full_accounts_and_what_the_journal_brings_back_has_paid():
    first = Service(JournalState.OK)
    ask(first, "a", requests=1, tokens=10, is_resumable=True)
    second, _ = restart(first.write_all())
    assert left(ask(second, "b", requests=1, tokens=10)) == (0, 0)
    second.join("one")
    second.say(m.Attach(request_id="1a/a-0"))
    second.turn()
    second.write_all()
    second.flush()
    assert ending(second, "a") == "length"
    assert not ask(second, "c", requests=9, tokens=10).is_accepted, "it gives nothing back that it has not paid here"


def test_a_client_without_limits_is_told_of_none():
    service = Service()
    assert ask(service, "a") is None
    assert ask(service, "b", prompt=1) is None


def test_requests_and_tokens_of_each_key_are_counted():
    service = Service()
    service.join("one")
    ask(service, "a", requests=2, num_prompt=5)
    ask(service, "a", prompt=1)
    ask(service, "b", requests=2, client="2b", client_name="bob", n=2)
    ask(service, "c", requests=2)
    ask(service, "d", requests=2)
    service.turn()
    counts = {"alice": (2, 13, 18), "bob": (1, 4, 12)}
    for name, expected in counts.items():
        metrics = ("requests", "prompt_tokens", "output_tokens")
        found = tuple(service.metric(f'baton_client_{what}_total{{client="{name}"}}') for what in metrics)
        assert found == expected
    assert service.metric('baton_requests_refused_total{code="rate_limit_exceeded"}') == 1
