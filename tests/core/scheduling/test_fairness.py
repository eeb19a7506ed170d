"""Clients that compete for an executor, seen from outside: what each gets, and how long it waits for another one.

Each scheduler with a planted unfairness fails where ours does not.
"""

import random
from dataclasses import dataclass

import msgspec
import pytest

from benchmarks.scheduler.bench_fairness import AMPLE, FULL_FOR, SCENES, Service
from scheduler_svc.core.scheduling.fair_shares import FairShares
from scheduler_svc.core.sequence import State

LANES = 16


@dataclass(frozen=True)
class Client:
    """How a client asks: sizes of its requests, and what it says beside."""

    prompt: int = 60
    answer: int = 60
    stops_after: int = 0
    weight: float = 1.0
    n: int = 1
    priorities: tuple[int, ...] = (0,)
    waiting: int = 6


class CrowdedService(Service):
    """A service in which every client always has requests that wait."""

    def __init__(self, shares: FairShares, num_blocks: int = AMPLE) -> None:
        super().__init__(num_blocks, lanes=LANES)
        self.scheduler.sequences.shares = shares
        self._rng = random.Random(1)

    def crowd(self, clients: dict[str, Client], plans: int) -> None:
        """Make so many plans."""
        for _ in range(plans):
            waiting = [sequence.client.split()[0] for sequence in self.scheduler.sequences.waiting]
            for name, client in clients.items():
                for _ in range(max(0, client.waiting - waiting.count(name))):
                    asked = {"client": name, "weight": client.weight, "n": client.n}
                    priority = self._rng.choice(client.priorities)
                    self.submit(f"{name}{len(self.arrived)}", client.prompt, client.answer, priority=priority, **asked)
            self.step()
            for sequence in [*self.scheduler]:
                client = clients[sequence.client.split()[0]]
                lane = sequence.lane
                if client.stops_after and lane >= 0:
                    running = self.scheduler.executor(1).running
                    if running.lanes.known[lane] - sequence.num_prompt >= client.stops_after:
                        self.scheduler.cancel([sequence])


CROWDS = {
    "equal ones": {"a": Client(), "b": Client()},
    "weights": {"a": Client(), "b": Client(weight=2.0), "c": Client(weight=4.0)},
    "sizes": {"a": Client(prompt=300, answer=20), "b": Client(prompt=20, answer=150)},
    "many answers": {"a": Client(n=16), "b": Client()},
    "priorities": {"a": Client(priorities=(0, -1), waiting=100), "b": Client(waiting=100)},
    "answers that end early": {"a": Client(answer=400, stops_after=20), "b": Client()},
}


def worst_error(crowd: str, shares: FairShares, num_blocks: int = AMPLE) -> float:
    """How far a client is from its share at most."""
    clients, service = CROWDS[crowd], CrowdedService(shares, num_blocks)
    service.crowd(clients, 500)
    service.tokens.clear()
    service.crowd(clients, 1500)
    due = sum(client.weight for client in clients.values())
    got = {
        name: sum(tokens for client, tokens in service.tokens.items() if client.split()[0] == name) for name in clients
    }
    return max(abs(got[name] / sum(got.values()) * due / client.weight - 1) for name, client in clients.items())


@pytest.mark.parametrize("num_blocks", [AMPLE, 200])
@pytest.mark.parametrize("crowd", CROWDS)
def test_tokens_are_shared_by_weights(crowd, num_blocks):
    assert worst_error(crowd, FairShares(), num_blocks) < 0.05


class InTheOrderOfArrival(FairShares):
    def share_for(self, submit):
        return super().share_for(submit)._replace(start=0.0, place=0)


class WithoutWeights(FairShares):
    def share_for(self, submit):
        return super().share_for(msgspec.structs.replace(submit, weight=1.0))


class WithAnAccountForEachPriority(FairShares):
    def share_for(self, submit):
        return super().share_for(msgspec.structs.replace(submit, client=f"{submit.client} {submit.priority}"))


class Unsettled(FairShares):
    """Never learns what a sequence has taken."""

    def ended(self, sequence, *, is_whole):
        sequence.share = sequence.share._replace(cost=sequence.num_served)
        super().ended(sequence, is_whole=is_whole)


class OfRequests(Unsettled):
    """Counts each request as one sequence."""

    def share_for(self, submit):
        share = super().share_for(submit)
        return share._replace(cost=share.cost / submit.n)


class OfSequences(Unsettled):
    """Counts sequences and not tokens."""

    def share_for(self, submit):
        return super().share_for(submit)._replace(cost=100.0)


class OfLongAnswers(Unsettled):
    """Takes answers for as long as they may be."""

    def share_for(self, submit):
        return super().share_for(submit)._replace(cost=len(submit.prompt) / 4 + submit.params.max_tokens)


@pytest.mark.parametrize(
    ("faulty", "crowd"),
    [
        (InTheOrderOfArrival, "weights"),
        (WithoutWeights, "weights"),
        (WithAnAccountForEachPriority, "priorities"),
        (OfRequests, "many answers"),
        (OfSequences, "sizes"),
        (OfLongAnswers, "answers that end early"),
    ],
)
def test_a_planted_unfairness_is_found(faulty, crowd):
    assert worst_error(crowd, faulty()) > 0.05


@pytest.mark.parametrize("scene", [name for name in SCENES if "visitors" not in name and name not in ("shares",)])
def test_newcomers_begin_at_once(scene):
    """Lanes and memory have been full for 40 plans. The benchmark measures the same."""
    figures = SCENES[scene]()
    assert max(figures.get("plans_to_first_token", [0])) <= 10
    assert figures.get("first_token_of_the_long_one", 0) <= 10
    assert figures.get("recomputed", 0.0) < 0.02


def test_clients_that_come_one_after_the_other_delay_no_request_by_more_than_a_round():
    """They could always take twice the lanes. The k-th request that waits of a client waits for k rounds of them."""
    service, num_others = Service(lanes=LANES), 0
    for i in range(100):
        service.submit(f"x{i}", 50, 20, client="x")
    service.run(FULL_FOR)
    waits = [sequence.request_id for sequence in service.scheduler.sequences.waiting]
    while num_others < 3000 and waits[-1] not in service.began:
        for _ in range(2 * LANES - sum(sequence.client != "x" for sequence in service.scheduler)):
            service.submit(f"y{num_others}", 50, 20, client=f"y{num_others}")
            num_others += 1
        service.step()
    assert waits[-1] in service.began
    assert num_others <= 3 * LANES * len(waits), "a round is what runs, what waits, and what comes meanwhile"


def test_a_long_answer_does_not_hold_the_time_for_those_who_wait_beside_newcomers():
    """Nor does an executor that hangs."""
    service = Service(lanes=LANES)
    service.submit("long", 50, 8000, client="z")
    for i in range(20):
        service.submit(f"x{i}", 50, 20, client="x")
    num_others = 0
    while service.plans < 1500 and "x19" not in service.began:
        for _ in range(2 * LANES - sum(sequence.client.startswith("y") for sequence in service.scheduler)):
            service.submit(f"y{num_others}", 50, 20, client=f"y{num_others}")
            num_others += 1
        service.step()
    assert "x19" in service.began


@pytest.mark.parametrize("lanes", [64, 192])
def test_lines_keep_one_lane_in_64_and_one_that_was_taken_twice_comes_last(lanes):
    service = Service(lanes=lanes)
    for i in range(lanes + 10):
        service.submit(f"line{i}", 50, 3000, client="batch", priority=100)
    service.run(5)
    running = service.scheduler.executor(1).running
    for i in range(2 * lanes):
        service.submit(f"r{i}", 50, 30, client=f"r{i % 7}")
    taken = set()
    for _ in range(20):
        service.step()
        assert running.num_yielding >= lanes // 64
        taken |= {sequence.num_taken for sequence in service.scheduler}
    assert running.num_yielding == lanes // 64
    assert max(taken) == 1
    service.run(200)
    assert running.num_yielding == lanes, "they have what others leave"
    lines = list(running)
    for line in lines[: lanes // 2]:
        line.num_taken = 2
    for i in range(lanes // 2):
        service.submit(f"s{i}", 50, 30, client="s")
    service.run(3)
    assert {line.num_taken for line in lines[: lanes // 2]} == {2}
    assert running.num_yielding == lanes // 2


def test_what_gave_way_keeps_its_place_and_is_not_computed_again():
    service = Service(lanes=LANES)
    for i in range(2 * LANES):
        service.submit(f"x{i}", 200, 100, client="x")
    service.run(FULL_FOR)
    last = service.scheduler.executor(1).running.last
    place = last.place
    service.submit("y", 50, 20, client="y")
    service.run(2)
    assert (last.state, last.place) == (State.WAITING, place)
    assert service.scheduler.sequences.waiting.first(1) is last
    while last.state is not State.FINISHED:
        service.step()
    stats = service.scheduler.stats
    assert (stats.preemptions, stats.resumed) == (1, 0)
    assert stats.recomputed_tokens < 16, "a block that was not full at most"


def test_a_client_takes_nothing_from_itself():
    service = Service(lanes=LANES)
    for i in range(2 * LANES):
        service.submit(f"x{i}", 200, 100, client="x")
    service.run(FULL_FOR)
    service.submit("urgent", 50, 20, client="x", priority=-100)
    service.until_first_tokens(["urgent"])
    assert service.scheduler.stats.preemptions == 0
