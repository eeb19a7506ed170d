"""How long one client waits for another: plans of the real scheduler until a newcomer's first token. One JSON line a
scene.

    python benchmarks/bench_fairness.py
    python benchmarks/bench_fairness.py --scene flood

One client fills all lanes, or all memory, for 40 plans before another one comes. Executors answer at once, so a plan is
the only unit of time, and the figures are the same on any machine. `shares` has clients of weights 1, 2 and 4 that
always have requests waiting, and prints what each got of all tokens, over its weight's part.
"""

import json
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import click
import numpy as np

from common.messages import Plan, SamplingParams, StepResult, Submit
from common.plan import ExecutorLimits
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.scheduler import Scheduler

VOCAB_SIZE, TOKEN, STOP = 1000, 5, 7
LANES = 64
WAITING = 20  # requests of each client, at least
FULL_FOR = 40  # plans before the newcomers come
PLANS_A_SECOND = 50
AMPLE, SCARCE = 16384, 1024  # blocks of 16


class Service:
    """A scheduler whose executors answer each plan at once, with a token that is no stop token.

    Args:
        num_blocks, lanes: of each executor.

    Attributes:
        plans: that the first executor has answered.
        arrived, began: by request: plans before it came, and before its first token.
        tokens: computed for each client.
    """

    def __init__(self, num_blocks: int = AMPLE, executors: int = 1, lanes: int = LANES) -> None:
        limits = ExecutorLimits(num_blocks, 16, lanes, 2048, 16384, VOCAB_SIZE, hidden_size=8)
        self.scheduler = Scheduler(SchedulerConfig(max_waiting=100_000))
        self.epochs = range(1, executors + 1)
        for epoch in self.epochs:
            self.scheduler.add_executor(Membership(epoch, f"executor-{epoch}", "model", limits))
        self._flight: dict[int, deque[Plan]] = {epoch: deque() for epoch in self.epochs}
        self.plans = 0
        self.arrived: dict[str, int] = {}
        self.began: dict[str, int] = {}
        self.tokens: Counter[str] = Counter()

    def submit(self, name: str, prompt: int, answer: int, **fields: Any) -> None:
        """A request comes whose prompt no other one has."""
        tokens = array("i", [len(self.arrived) % 900 + 10, len(self.arrived) // 900, *[1] * (prompt - 2)])
        stops = (STOP,) if fields.pop("may_stop", True) else ()
        params = SamplingParams(max_tokens=answer, stop_token_ids=stops)
        self.arrived[name] = self.plans
        submit = Submit(request_id=name, prompt=tokens.tobytes(), params=params, **fields)
        self.scheduler.add(submit, now=self.plans / PLANS_A_SECOND)

    def step(self) -> None:
        """Fill every window, and answer one plan of each executor."""
        now = self.plans / PLANS_A_SECOND
        self.scheduler.tick(now)
        assert not list(self.scheduler.expire(now))
        for epoch in self.epochs:
            while (plan := self.scheduler.plan(epoch)) is not None:
                self._flight[epoch].append(plan)
        for epoch in self.epochs:
            if self._flight[epoch]:
                plan = self._flight[epoch].popleft()
                token_ids = np.full(len(plan.sample_rows) // 4, TOKEN, np.int32).tobytes()
                result = StepResult(epoch=epoch, step=plan.step, token_ids=token_ids, compute_us=1)
                output = self.scheduler.commit(result)
                for sequence in output.firsts:
                    self.began.setdefault(sequence.request_id, self.plans)
                    self.tokens[sequence.client] += sequence.num_prompt
                self.tokens.update(sequence.client for sequence in output.sequences)
        self.plans += 1

    def until_first_tokens(self, names: Iterable[str], most: int = 20_000) -> list[int]:
        """Plans from each request's arrival to its first token."""
        wanted = list(names)
        while any(name not in self.began for name in wanted) and self.plans < most:
            self.step()
        return [self.began.get(name, most) - self.arrived[name] + 1 for name in wanted]

    def hold_waiting(
        self, sizes: dict[str, tuple[int, int]], weights: dict[str, float], plans: int, *, may_stop: bool = True
    ) -> None:
        """Make so many plans while each client has some requests that wait."""
        for _ in range(plans):
            waiting = Counter(sequence.client for sequence in self.scheduler.sequences.waiting)
            for client, (prompt, answer) in sizes.items():
                for _ in range(WAITING - waiting[client]):
                    name = f"{client}{len(self.arrived)}"
                    self.submit(name, prompt, answer, client=client, weight=weights[client], may_stop=may_stop)
            self.step()

    def run(self, plans: int) -> None:
        """Make so many plans."""
        for _ in range(plans):
            self.step()


Figures = dict[str, object]


def flood(num_blocks: int) -> Figures:
    """400 requests of one client, then one of another."""
    service = Service(num_blocks)
    for i in range(400):
        service.submit(f"x{i}", 200, 200, client="x")
    service.run(FULL_FOR)
    service.submit("y", 50, 20, client="y")
    return first_tokens(service, ["y"])


def many_answers() -> Figures:
    """One request for 128 answers, then one for a single answer."""
    service = Service()
    service.submit("x", 50, 256, n=128, client="x")
    service.run(FULL_FOR)
    service.submit("y", 50, 20, client="y")
    return first_tokens(service, ["y"])


def batch(num_blocks: int, answer: int) -> Figures:
    """80 lines of a batch, then 24 requests that do not yield, all at once."""
    service = Service(num_blocks)
    for i in range(80):
        service.submit(f"x{i}", 50, answer, client="x", priority=100)
    service.run(FULL_FOR if num_blocks == AMPLE else 150)
    names = [f"y{i}" for i in range(24)]
    for name in names:
        service.submit(name, 50, 20, client="y")
    return first_tokens(service, names)


def long_prompt() -> Figures:
    """A prompt of 16,000 tokens, and one plan later eight of 100 by another client."""
    service = Service()
    service.submit("x", 16_000, 50, client="x")
    service.run(1)
    names = [f"y{i}" for i in range(8)]
    for name in names:
        service.submit(name, 100, 50, client="y")
    return first_tokens(service, names) | {"first_token_of_the_long_one": service.until_first_tokens(["x"])[0]}


def placement() -> Figures:
    """A prompt of 16,000 tokens on one of two executors, and short ones that come every second plan."""
    service = Service(executors=2)
    service.submit("x", 16_000, 50, client="x")
    names = [f"y{i}" for i in range(10)]
    for name in names:
        service.run(2)
        service.submit(name, 50, 60, client="y")
    return first_tokens(service, names)


def newcomers() -> Figures:
    """One client has 400 requests; a thousand others come with one each, one a plan. When is its last one served?"""
    figures: Figures = {}
    for num_others in (0, 1000):
        service = Service()
        for i in range(400):
            service.submit(f"x{i}", 200, 200, client="x")
        service.run(FULL_FOR)
        for i in range(num_others):
            service.submit(f"y{i}", 50, 20, client=f"y{i}")
            service.step()
        service.until_first_tokens([f"x{i}" for i in range(400)])
        figures[f"last_one_beside_{num_others}"] = max(service.began[f"x{i}"] for i in range(400))
    return figures


def shares() -> Figures:
    """Clients of weights 1, 2 and 4 with requests of different sizes, of which some always wait."""
    service, weights = Service(), {"a": 1.0, "b": 2.0, "c": 4.0}
    sizes = {"a": (300, 100), "b": (50, 400), "c": (150, 200)}
    service.hold_waiting(sizes, weights, 60 * PLANS_A_SECOND)
    worst = 0.0
    for _ in range(3):
        service.tokens.clear()
        service.hold_waiting(sizes, weights, 60 * PLANS_A_SECOND)
        parts = {client: service.tokens[client] / service.tokens.total() for client in weights}
        due = {client: weight / sum(weights.values()) for client, weight in weights.items()}
        worst = max(worst, *(abs(parts[client] / due[client] - 1) for client in weights))
    stats = service.scheduler.stats
    return {
        "worst_error_of_a_minute": round(worst, 4),
        "preemptions": stats.preemptions,
        "recomputed": round(stats.recomputed_tokens / (stats.prefill_tokens + stats.decode_tokens), 4),
    }


def visitors(num_blocks: int, every: int, *, may_stop: bool = True) -> Figures:
    """One client always has requests that wait; every few plans another one comes with one request, for a minute.

    Args:
        every: plans from one to the next; 0 for none.
        may_stop: whether answers could end before `max_tokens`, though they do not.
    """
    service, names = Service(num_blocks), []
    for plan in range(60 * PLANS_A_SECOND):
        if every and plan % every == 0 and plan >= FULL_FOR:
            names.append(f"y{plan}")
            service.submit(names[-1], 50, 20, client=names[-1], may_stop=may_stop)
        service.hold_waiting({"x": (200, 200)}, {"x": 1.0}, 1, may_stop=may_stop)
    return first_tokens(service, names)


def first_tokens(service: Service, names: list[str]) -> Figures:
    """Plans to the first tokens of these requests, and what was computed twice."""
    waits = service.until_first_tokens(names)
    stats = service.scheduler.stats
    computed = stats.prefill_tokens + stats.decode_tokens
    began = {"plans_to_first_token": [min(waits), max(waits)]} if waits else {}
    return {
        **began,
        "preemptions": stats.preemptions,
        "recomputed": round(stats.recomputed_tokens / computed, 4),
    }


SCENES: dict[str, Callable[[], Figures]] = {
    "flood": lambda: flood(AMPLE),
    "flood, memory full": lambda: flood(SCARCE),
    "128 answers": many_answers,
    "batch": lambda: batch(AMPLE, 500),
    "batch, memory full": lambda: batch(SCARCE, 1500),
    "long prompt": long_prompt,
    "long prompt on one of two": placement,
    "a thousand newcomers": newcomers,
    "shares": shares,
    "visitors": lambda: visitors(AMPLE, 5),
    "visitors, memory full": lambda: visitors(SCARCE, 5),
    "no visitors, memory full": lambda: visitors(SCARCE, 0),
    "visitors, memory full, certain lengths": lambda: visitors(SCARCE, 5, may_stop=False),
    "many visitors, memory full, certain lengths": lambda: visitors(SCARCE, 1, may_stop=False),
}


@click.command()
@click.option("--scene", type=click.Choice(list(SCENES)), help="Only this one.")
def main(scene: str | None) -> None:
    """Measure how long clients wait for each other."""
    for name, measure in SCENES.items():
        if scene in (None, name):
            print(json.dumps({"scene": name, **measure()}), flush=True)


if __name__ == "__main__":
    main()
