"""The places of clients' requests: order within a client, shares by weight, what accounts forget and what they keep."""

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.scheduling.fair_shares import MAX_ACCOUNTS, SEQUENCES_A_PRIORITY, FairShares
from scheduler_svc.core.sequence import Sequence, new_sequences
from tests.support.submits import submit

CLIENTS = ("a", "b")


class Book:
    """Requests that are accepted and end."""

    def __init__(self, address_key: bytes = b"a secret", max_accounts: int = MAX_ACCOUNTS) -> None:
        self.shares = FairShares(address_key, max_accounts)
        self.arrivals = 0

    def accept(self, prompt: int = 10, answer: int = 90, priority: int = 0, **fields: object) -> list[Sequence]:
        """A request of some client."""
        raw = array("i", [1] * prompt)
        asked = submit(f"r{self.arrivals}", raw, max_tokens=answer, priority=priority, **fields)
        sequences = new_sequences(asked, raw, 1, self.arrivals, None, self.shares.share_for(asked))
        self.arrivals += len(sequences)
        for sequence in sequences:
            self.shares.opened(sequence)
        return sequences

    def end(self, sequence: Sequence, num_output: int | None, num_cached: int = 0) -> None:
        """It ends with so many tokens; None if it never ran."""
        if num_output is not None:
            sequence.num_cached_prompt = num_cached
            sequence.tokens.extend([2] * num_output)
        self.shares.ended(sequence, is_whole=True)


def starts(sequences: list[Sequence]) -> list[float]:
    return [sequence.start for sequence in sequences]


def test_each_sequence_starts_when_those_before_it_have_had_their_cost():
    book = Book()
    assert starts(book.accept(client="a", n=3)) == [0, 100, 200]
    assert starts(book.accept(client="a")) == [300]
    assert starts(book.accept(client="b", weight=2.0, n=3)) == [0, 50, 100], "a weight of 2 has twice as much"
    assert starts(book.accept(address="10.0.0.1")) == [0]


def test_a_newcomer_starts_where_the_one_is_that_has_had_least():
    book = Book()
    book.accept(client="a", n=3)
    book.shares.advance(40.0)
    assert starts(book.accept(client="b")) == [40]
    book.shares.advance(25.0)
    assert starts(book.accept(client="c")) == [40], "the virtual time never falls"


def test_what_an_answer_did_not_take_is_given_back_to_the_client_and_moves_no_place():
    book = Book()
    first, second, third = book.accept(client="a", n=3)
    places = [first.place, second.place, third.place]
    book.end(first, 10)
    book.end(second, None)
    assert starts(book.accept(client="a")) == [200], "not before the third one, which still waits"
    book.end(third, 90, num_cached=4)
    assert [first.place, second.place, third.place] == places
    fifth = book.accept(client="b")
    assert starts(fifth) == [0]


def test_how_long_an_answer_is_expected_to_be_is_learnt_from_the_clients_own():
    book = Book()
    for _ in range(20):
        book.end(book.accept(client="a", answer=4000)[0], 30)
        book.end(book.accept(client="b", answer=4000)[0], 600)
    costs = [book.accept(client=client, answer=4000)[0].share.cost for client in ("a", "b", "new")]
    assert costs[:2] == [pytest.approx(40), pytest.approx(610)]
    assert 40 < costs[2] < 610
    assert book.accept(client="b", answer=100)[0].share.cost == 110, "at most its max_tokens"
    assert book.shares.share_for(submit("e", [1] * 50, max_tokens=1, pooling="hidden", client="b")).cost == 50


def test_a_step_of_priority_is_worth_so_many_mean_sequences_and_no_second_share():
    book = Book()
    book.accept(client="a")
    (urgent,) = book.accept(client="a", priority=-2)
    assert (urgent.start, urgent.place) == (100, 100 - 2 * SEQUENCES_A_PRIORITY * 100)
    spread = [book.accept(client="b", priority=priority)[0].start for priority in (0, -1, 5, -100, 99)]
    assert spread == [0, 100, 200, 300, 400]
    (line,) = book.accept(client="b", priority=100)
    assert (line.start, line.yields) == (0, True), "what yields has only what others leave"


@given(
    st.lists(
        st.tuples(st.sampled_from(CLIENTS), st.integers(1, 300), st.integers(1, 3), st.sampled_from([0, 0, 0, 100])),
        min_size=1,
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_no_client_overtakes_itself_whatever_has_ended(requests, rng):
    book, opened, last = Book(), [], Counter()
    for client, size, n, priority in requests:
        yields = priority == 100
        came = book.accept(size, size, client=client, n=n, priority=priority)
        mine = [s for s in opened if (s.client, s.yields) == (client, yields)]
        assert not mine or came[0].start >= max(starts(mine))
        assert came[0].start >= book.shares.virtual_time >= last["time"]
        last["time"] = book.shares.virtual_time
        opened += came
        for sequence in rng.sample(opened, rng.randint(0, len(opened))):
            opened.remove(sequence)
            book.end(sequence, rng.choice([None, rng.randint(0, size)]), rng.randint(0, size))
        if opened:
            book.shares.advance(min(opened, key=lambda s: s.rank).start)


def test_accounts_are_few_and_those_that_tell_most_stay():
    book = Book(max_accounts=8)
    (heavy,) = book.accept(answer=500, client="heavy")
    book.end(heavy, 500)
    opened = [book.accept(client=f"open {i}")[0] for i in range(4)]
    for i in range(100):
        book.end(book.accept(client=f"passing {i}")[0], 3)
        assert len(book.shares) <= 8
    for sequence in opened:
        book.end(sequence, 10)
    assert starts(book.accept(client="heavy")) == [510]
    assert MAX_ACCOUNTS >= 1024


def test_the_journal_learns_of_keys_alone_and_of_what_has_changed():
    book = Book()
    book.accept(client="a")
    book.accept(client="b", priority=100)
    book.accept(address="192.0.2.7")
    saved = book.shares.saved(is_whole=False)
    assert {(account.client, account.yields) for account in saved} == {("a", False), ("b", True)}
    assert book.shares.saved(is_whole=False) == ()
    assert set(book.shares.saved(is_whole=True)) == set(saved)
    after = Book()
    after.shares.restore(70.0, 100.0, saved)
    assert starts(after.accept(client="a")) == [100]
    assert starts(after.accept(client="b")) == [70]
    assert after.shares.cost.value == pytest.approx(100, rel=0.01)


def test_a_life_without_requests_says_nothing_of_what_they_cost():
    book = Book()
    book.shares.restore(0.0, 0.0, ())
    book.accept(client="a")
    assert book.shares.cost.value == 100


def test_an_address_is_an_account_that_nobody_can_read():
    book = Book()
    book.accept(address="192.0.2.7")
    assert starts(book.accept(address="192.0.2.7")) == [100]
    assert starts(book.accept(address="2001:db8::/64")) == [0]
    sequence = book.accept(address="192.0.2.7")[0]
    assert "192.0.2.7" not in repr(book.shares.saved(is_whole=True)) + repr(sequence) + sequence.client
    assert sequence.client != Book(b"another").accept(address="192.0.2.7")[0].client, "each life has a key of its own"
