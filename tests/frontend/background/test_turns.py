"""Whose response begins next, and how many are with the core: no owner waits for another one's limit."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.frontend.background.pace import FIRST_LIMIT, RESTS
from scheduler_svc.frontend.background.turns import NO_ROOM, OF_ALL, OF_OWNER, Name, Turns
from tests.support.effort import examples

ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["taken", "ended", *NO_ROOM]), st.integers(0, 50)),
    st.tuples(st.just("wait"), st.floats(0.0, 20.0)),
)


def begin_all(them: Turns, now: float) -> list[Name]:
    begun = []
    while (name := them.next(now)) is not None:
        begun.append(name)
    return begun


def test_owners_take_turns_and_each_ones_responses_keep_their_order():
    them = Turns()
    for number in range(3):
        them.add(("a", str(number)))
    them.add(("b", "0"))
    assert begin_all(them, 0.0) == [("a", "0"), ("b", "0"), ("a", "1"), ("a", "2")]


def test_an_owner_at_its_limit_neither_keeps_others_waiting_nor_asks_all_the_time():
    """A key may have two requests; its responses are asked for again and again, and few at a time."""
    them, num_asked, running = Turns(), 0, []
    for number in range(500):
        them.add(("a", str(number)))
    for tick in range(1200):  # a minute
        now = tick / 20
        for name in begin_all(them, now):
            num_asked += 1
            if len(running) < 2:
                running.append(name)
                them.taken(name)
            else:
                them.refused(name, OF_OWNER, now)
    assert num_asked < FIRST_LIMIT + 20
    them.add(("b", "0"))
    assert ("b", "0") in begin_all(them, now), "at once"
    them.ended(running[0])
    assert begin_all(them, now)[:1] == [("a", "2")], "there is room: the next one has no rest"


def test_a_full_core_gets_one_response_at_a_time_until_it_takes_one():
    them = Turns()
    for number in range(100):
        them.add(("ab"[number % 2], str(number)))
    for name in begin_all(them, 0.0):
        them.refused(name, OF_ALL, 0.0)
    assert not begin_all(them, 0.0)
    [name] = begin_all(them, 1.0)
    them.refused(name, OF_ALL, 1.0)
    assert not begin_all(them, 1.0 + RESTS.first_s / 2)
    [name] = begin_all(them, 20.0)
    them.taken(name)
    begun = [name]
    while fresh := begin_all(them, 20.0):
        begun += fresh
        for name in fresh:
            them.taken(name)
    assert len(begun) == 100, "all are taken without a rest"


def test_what_is_taken_allows_more_up_to_the_limits():
    them, begun = Turns(most=40, most_of_owner=30), Counter()
    for number in range(100):
        them.add(("ab"[number % 2], str(number)))
    while fresh := begin_all(them, 0.0):
        begun.update(owner for owner, _ in fresh)
        for name in fresh:
            them.taken(name)
    assert sum(begun.values()) == 40
    assert max(begun.values()) <= 30


@settings(max_examples=examples(100))
@given(st.lists(ACTIONS, max_size=120))
def test_each_response_is_in_one_place(actions):
    """Whatever the core does: none is lost, none runs twice, and in the end all come to their turn."""
    them, now, waiting, running, added = Turns(), 0.0, set(), [], 0
    for action, value in actions:
        match action:
            case "add":
                name = value, str(added)
                added += 1
                them.add(name)
                waiting.add(name)
            case "wait":
                now += value
            case _ if not running:
                continue
            case "taken":
                them.taken(running[value % len(running)])
            case "ended":
                them.ended(running.pop(value % len(running)))
            case code:
                name = running.pop(value % len(running))
                them.refused(name, code, now)
                waiting.add(name)
        for name in begin_all(them, now):
            assert name in waiting
            waiting.remove(name)
            running.append(name)
    while waiting or running:
        for name in running:
            them.ended(name)
        now += 2 * RESTS.longest_s
        running = begin_all(them, now)
        assert running or not waiting
        waiting -= set(running)
    assert not them.is_waiting
