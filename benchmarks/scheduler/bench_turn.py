"""What one turn of the core costs while requests wait that cannot move. Prints a JSON line for each number of them.

    python benchmarks/bench_turn.py
    python benchmarks/bench_turn.py --why pool --waiting 0 --waiting 4000

The real event loop, core and journal records, on ports and a journal in memory: in each turn an executor's answer for
64 sequences comes in, and a plan, a batch for the journal and the tokens for a frontend go out. Cores with different
numbers of waiting requests take blocks of turns in turn, because a machine's slow moments are longer than a turn.
"""

import gc
import json
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import click
import numpy as np

from common import messages as m
from scheduler_svc.core.actions import Peer, Sent, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.event_loop import EventLoop
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalBatch, JournalState
from scheduler_svc.core.scheduling.config import SchedulerConfig

RUNNING = 64
BLOCK_SIZE = 16
PROMPT = np.arange(100, dtype=np.int32)
TURN_S = 0.01  # of the cores' clocks
BLOCK_OF_TURNS = 100
WARM_UP = 50
VOCAB_SIZE = 1000


class Why(NamedTuple):
    """Why requests wait.

    Attributes:
        lanes: that the executor has.
        spare_blocks: of its pool, beyond what the running sequences will need.
        max_tokens: that waiting requests ask for; 0 for as many as those that run.
    """

    lanes: int
    spare_blocks: int
    max_tokens: int


WHYS = {
    "lanes": Why(RUNNING, 100_000, 100),  # all lanes are held
    "memory": Why(2 * RUNNING, 0, 0),  # there is no room for the first of them
    "pool": Why(2 * RUNNING, 200, 100_000),  # they need an executor with a larger pool, which left a moment ago
}


class MemoryPort:
    """A port whose messages stay in this process."""

    def __init__(self) -> None:
        self.incoming: deque[tuple[Peer, object]] = deque()
        self.lost: list[Peer] = []
        self.sent: list[m.Message] = []

    def receive(self) -> Iterator[tuple[Peer, object]]:
        """See `event_loop.Port`."""
        while self.incoming:
            yield self.incoming.popleft()

    def send(self, peer: Peer, message: m.Message) -> Sent:
        """See `event_loop.Port`."""
        self.sent.append(message)
        return Sent.OK

    def admit(self, peer: Peer) -> None:
        """See `event_loop.Port`."""

    def dismiss(self, peer: Peer) -> None:
        """See `event_loop.Port`."""

    def disconnect(self, peer: Peer) -> None:
        """See `event_loop.Port`."""

    def lost_connections(self) -> list[Peer]:
        """See `event_loop.Port`."""
        lost, self.lost = self.lost, []
        return lost


class MemoryJournal:
    """Saves each batch at once."""

    def __init__(self) -> None:
        self._results: list[BatchSaved | BatchFailed] = []

    def write(self, batch: JournalBatch) -> None:
        """See `event_loop.JournalWriter`."""
        self._results.append(BatchSaved(batch.number))

    def results(self) -> list[BatchSaved | BatchFailed]:
        """See `event_loop.JournalWriter`."""
        results, self._results = self._results, []
        return results


class BusyCore:
    """A core with `RUNNING` sequences, and others that wait.

    Attributes:
        seconds: what each turn took.
    """

    def __init__(self, why: Why, num_waiting: int, num_turns: int) -> None:
        self.seconds: list[float] = []
        self._plans: deque[m.Plan] = deque()
        self._now = 0.0
        self._executors, self._frontends, self._journal = MemoryPort(), MemoryPort(), MemoryJournal()
        scheduler = SchedulerConfig(max_waiting=num_waiting + RUNNING)
        self.core = Core(CoreConfig(scheduler=scheduler, journal=JournalState.OK), self._now)
        ports = (self._executors, self._frontends)
        clocks = lambda: self._now, time.thread_time
        self._loop = EventLoop(self.core, *ports, self._journal, *clocks, _ignore)  # type: ignore[arg-type]
        length = len(PROMPT) + num_turns + 200
        num_blocks = RUNNING * (length // BLOCK_SIZE + 1) + why.spare_blocks
        self._join(b"large", (len(PROMPT) + why.max_tokens) // BLOCK_SIZE + 1, why.lanes)
        self._turn()
        self.core.executor_gone(b"large", self._now)
        self._join(b"executor", num_blocks, why.lanes)
        self._frontends.incoming.append((b"frontend", m.FrontendHello(pid=1)))
        self._submit(RUNNING, num_turns + 200)
        while self.core.scheduler.num_running < RUNNING:
            self._answered_turn()
        self._submit(num_waiting, why.max_tokens or num_turns + 200)
        for _ in range(WARM_UP):
            self._answered_turn()
        assert (self.core.scheduler.num_running, self.core.scheduler.num_waiting) == (RUNNING, num_waiting)

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return sum(self.core.requests.table.num_open_by_name.values())

    def take(self, num_turns: int) -> None:
        """Take turns and time them."""
        gc.collect()
        for _ in range(num_turns):
            self.seconds.append(self._answered_turn())

    def _join(self, name: bytes, num_blocks: int, lanes: int) -> None:
        hello = m.Hello(
            executor=name.decode(),
            build="bench",
            fingerprint="f",
            dtype="float32",
            device="cpu",
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=lanes,
            max_batch_tokens=16384,
            max_model_len=num_blocks * BLOCK_SIZE,
            vocab_size=VOCAB_SIZE,
            pid=1,
            tokenizer="",
            grammars="",
            start_s=1.0,
            node="",
            tasks=("generate",),
            hidden_size=64,
            pool=None,
        )
        self._executors.incoming.append((name, hello))

    def _submit(self, count: int, max_tokens: int) -> None:
        first = len(list(self.core.scheduler))
        self._frontends.incoming += [
            (
                b"frontend",
                m.Submit(
                    request_id=f"{first + i}-0",
                    prompt=(PROMPT + (first + i) % 800).tobytes(),
                    params=m.SamplingParams(max_tokens=max_tokens),
                    is_resumable=True,
                ),
            )
            for i in range(count)
        ]
        while self._frontends.incoming:  # a turn takes what it has time for; the clock stands, as no answer comes
            self._loop.turn()
            self._frontends.sent.clear()

    def _answered_turn(self) -> float:
        """A turn in which the answer to the oldest plan is there. Returns its seconds."""
        self._plans += [message for message in self._executors.sent if isinstance(message, m.Plan)]
        self._executors.sent.clear()
        if self._plans:
            plan = self._plans.popleft()
            tokens = np.full(len(plan.sample_rows) // 4, 7, np.int32).tobytes()
            result = m.StepResult(epoch=plan.epoch, step=plan.step, token_ids=tokens, compute_us=1)
            self._executors.incoming.append((b"executor", result))
        return self._turn()

    def _turn(self) -> float:
        self._now += TURN_S
        start = time.perf_counter()
        self._loop.turn()
        seconds = time.perf_counter() - start
        self._frontends.sent.clear()
        return seconds


def _ignore(line: WriteLog) -> None:
    pass


@click.command(context_settings={"show_default": True})
@click.option("--why", type=click.Choice(list(WHYS)), multiple=True, default=list(WHYS), help="Why requests wait.")
@click.option("--waiting", type=click.IntRange(0), multiple=True, default=[0, 1000, 10_000], help="How many.")
@click.option("--turns", type=click.IntRange(BLOCK_OF_TURNS), default=1000, help="Of each core.")
def main(why: tuple[str, ...], waiting: tuple[int, ...], turns: int) -> None:
    """Time turns, and print the figures."""
    for reason in why:
        cores = {count: BusyCore(WHYS[reason], count, turns + 2 * WARM_UP) for count in waiting}
        for _ in range(turns // BLOCK_OF_TURNS):
            for core in cores.values():
                core.take(BLOCK_OF_TURNS)
        for count, core in cores.items():
            us = [1e6 * seconds for seconds in core.seconds]
            figures = {"us_turn_p50": round(statistics.median(us), 1), "us_turn_p99": round(np.percentile(us, 99), 1)}
            what = {"why": reason, "running": RUNNING, "waiting": count, "open": core.num_open}
            print(json.dumps({**what, "turns": len(us), **figures}), flush=True)


if __name__ == "__main__":
    main()
