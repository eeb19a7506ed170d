"""Pools of several ranks, threads here: all go on with what their predecessors wrote together, or none does."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.errors import KeeperError
from common.exit_codes import EXIT_CRASHED, EXIT_OK
from common.plan import PlanColumns
from executor_svc.devices.cpu import CpuPlatform
from executor_svc.devices.kept_cache import KeptCache
from executor_svc.devices.memfd_pool import MemfdPool
from executor_svc.keeper.held import HeldPool
from executor_svc.keeper.kept_pool import NOT_KEPT, NOT_USED, PATIENCE, KeptPool, Patience
from executor_svc.keeper.memory import create_memory
from executor_svc.keeper.tag import PoolTag
from executor_svc.model.rank_group import RankGroup
from executor_svc.runner.group_runner import follow, run_in_group
from executor_svc.runner.trial_plans import trial_plan
from executor_svc.service.step_loop import RankGone
from tests import ROOT
from tests.executor_svc.fake_keeper import FakeKeeper, FakeLink
from tests.executor_svc.pools import GEOMETRY, KIND, NUM_BLOCKS
from tests.executor_svc.ranks import in_threads
from tests.support.logged import Log

RANKS = 2
NUM_BYTES = 2**16
IMPATIENT = Patience(find_interval_s=0.01, others_s=0.2)


@dataclass
class Machine:
    """What is kept for each rank, and the links and memory of an executor's ranks.

    Attributes:
        tells: changes what a rank hears of the ranks in turn, as a machine would on which they are not alike.
    """

    keepers: list[FakeKeeper] = field(default_factory=lambda: [FakeKeeper() for _ in range(RANKS)])
    tells: Callable[[list[list[int]]], list[list[int]]] = lambda rows: rows
    links: list[FakeLink] = field(default_factory=list)
    pools: list[KeptPool] = field(default_factory=list)
    memories: list[MemfdPool] = field(default_factory=list)
    patience: Patience = PATIENCE

    def start(self) -> None:
        """The ranks of another executor, which have no pools yet."""
        self.links = [FakeLink(keeper) for keeper in self.keepers]
        self.memories = [MemfdPool(NUM_BYTES) for _ in range(RANKS)]
        self.pools = []

    def all_do(self, do: Callable[[KeptPool, int], bool]) -> list[bool]:
        """What each rank's pool says."""
        pools: dict[int, KeptPool] = {}

        def of_rank(group: RankGroup) -> bool:
            rank = group.rank
            kind = msgspec.structs.replace(KIND, rank=rank, num_ranks=RANKS)
            link: Any = self.links[rank]
            ranks = SimpleNamespace(rank=rank, size=RANKS, gather=lambda values: self.tells(group.gather(values)))
            pools[rank] = KeptPool(link, kind, NUM_BLOCKS, self.memories[rank], ranks, self.patience)
            return do(pools[rank], rank)

        done = in_threads(RANKS, of_rank)
        self.pools = [pools[rank] for rank in range(RANKS)]
        return done

    def take(self) -> list[bool]:
        return self.all_do(lambda pool, _: pool.take())

    @property
    def content(self) -> list[int]:
        """A byte of each rank's memory."""
        return [memory.mapping.buffer()[NUM_BYTES - 1] for memory in self.memories]

    @property
    def epochs(self) -> list[int]:
        return [pool.named.epoch for pool in self.pools]


@pytest.fixture
def machine() -> Machine:
    """A group has written its pools under epoch 7, and is gone."""
    machine = Machine()
    machine.start()
    assert machine.take() == [True, True]
    assert [pool.is_new for pool in machine.pools] == [True, True]
    assert machine.pools[0].tag is not None
    machine.pools[0].tag.epoch = 7
    assert machine.epochs == [7, 7], "rank 0 speaks for all"
    for rank, memory in enumerate(machine.memories):
        memory.mapping.buffer()[NUM_BYTES - 1] = 10 + rank
    machine.start()
    return machine


def reasons(log: Log) -> list[str]:
    return [facts["reason"] for event, facts in log.lines if event == NOT_USED]


def assert_all_are_new(machine: Machine) -> None:
    assert [pool.is_new for pool in machine.pools] == [True, True]
    assert machine.content == [0, 0]
    assert machine.epochs == [0, 0]
    tags = [pool.tag for pool in machine.pools]
    assert tags[0] is not None
    assert tags[1] is not None
    assert tags[0].set_id == tags[1].set_id
    tags[0].epoch = 9
    assert machine.epochs == [9, 9]


def test_a_group_goes_on_with_what_the_last_one_wrote(machine: Machine) -> None:
    assert machine.take() == [True, True]
    assert machine.content == [10, 11]
    assert machine.epochs == [7, 7]
    assert not any(pool.is_new for pool in machine.pools)


@pytest.mark.parametrize("rank", range(RANKS))
def test_where_one_ranks_pool_was_dropped_all_are_new(machine: Machine, rank: int, log: Log) -> None:
    machine.keepers[rank].pools.clear()
    assert machine.take() == [True, True]
    assert_all_are_new(machine)
    assert reasons(log) == [f"there is none for rank {rank}"] * RANKS


def test_pools_that_were_not_written_together_are_not_used(machine: Machine, log: Log) -> None:
    other = Machine()
    other.start()
    other.take()
    machine.keepers[1].pools = other.keepers[1].pools
    assert machine.take() == [True, True]
    assert_all_are_new(machine)
    assert reasons(log) == ["the pools of the ranks do not belong together"] * RANKS


@pytest.mark.parametrize("rank", range(RANKS))
def test_where_one_ranks_pool_cannot_be_used_all_are_new(machine: Machine, rank: int, log: Log) -> None:
    last = machine.keepers[rank].pools[-1]
    machine.keepers[rank].pools.append(HeldPool(**{**vars(last), "memory_fd": os.memfd_create("no_pool")}))
    assert machine.take() == [True, True]
    assert_all_are_new(machine)
    found = "memory of 0 bytes came from the keeper, it has to have 65536"
    assert sorted(reasons(log)) == [f"it failed on rank {rank}", found]


@pytest.mark.parametrize("rank", range(RANKS))
def test_what_one_rank_spoils_is_spoiled_for_all(machine: Machine, rank: int) -> None:
    machine.take()
    machine.pools[rank].spoil()
    assert machine.epochs == [0, 0]
    assert machine.pools[0].tag is not None
    machine.pools[0].tag.epoch = 8
    assert machine.epochs == [0, 0], "whatever is set later: a rank ends after a failed step"
    machine.start()
    assert machine.take() == [True, True]
    assert machine.epochs == [0, 0]
    assert machine.pools[0].tag is not None
    machine.pools[0].tag.epoch = 9
    assert machine.epochs == [9, 9], "what the next group writes counts again"


def test_a_rank_waits_for_the_end_of_the_one_whose_pool_it_gets(machine: Machine) -> None:
    machine.links[1].tries, machine.patience = 3, Patience(find_interval_s=0.01)
    assert machine.take() == [True, True]
    assert machine.content == [10, 11]


def test_it_does_not_wait_for_ever(machine: Machine, log: Log) -> None:
    machine.links[1].tries, machine.patience = 10**9, IMPATIENT
    assert machine.take() == [True, True]
    assert_all_are_new(machine)
    assert reasons(log) == ["there is none for rank 1"] * RANKS


@pytest.mark.parametrize("rank", range(RANKS))
def test_where_the_keeper_refuses_one_rank_none_has_a_pool(rank: int, log: Log) -> None:
    machine = Machine()
    machine.keepers[rank].refuses = True
    machine.start()
    assert machine.take() == [False, False]
    assert {event for event, _ in log.lines} == {NOT_KEPT}
    assert [memory.descriptor for memory in machine.memories] == [None, None]
    assert [keeper.pools for keeper in machine.keepers] == [[], []], "what the other one has deposited is given up"


def with_tag_of_rank_0(fd: int) -> Callable[[list[list[int]]], list[list[int]]]:
    """The ranks hear of another descriptor than that of the tag page that rank 0 has made."""
    return lambda rows: [[*row[:-1], fd] if os.getpid() in row else row for row in rows]


@pytest.mark.parametrize(
    ("fd", "reason"),
    [
        (10**6, "a file of rank 0 .* cannot be opened: No such file or directory"),
        # In another PID namespace the number may be that of another process.
        (PoolTag.create(), "the pools of the ranks do not belong together"),
    ],
    ids=["which is not there", "of another page"],
)
def test_ranks_that_do_not_see_the_same_file_have_no_pools(fd: int, reason: str, log: Log) -> None:
    machine = Machine(tells=with_tag_of_rank_0(fd))
    machine.start()
    assert machine.take() == [False, False]
    assert any(re.fullmatch(reason, facts["reason"]) for _, facts in log.lines)


def test_huge_pages_are_counted_by_rank() -> None:
    fd = PoolTag.create()
    tags = [PoolTag(fd, rank) for rank in range(RANKS)]
    tags[0].num_asked_blocks = 5
    assert [tag.num_asked_blocks for tag in tags] == [5, 0]


# --- standbys ---


def test_a_standby_group_has_its_pools_when_the_last_rank_has_one(machine: Machine, never: int) -> None:
    machine.patience = Patience(turn_s=0.001)
    machine.links[0].tries, machine.links[1].tries = 2, 9
    assert machine.all_do(lambda pool, _: pool.wait(never)) == [True, True]
    assert machine.content == [10, 11]
    assert machine.epochs == [7, 7]
    assert not any(link.has_stopped for link in machine.links)


def test_a_standby_group_that_lacks_a_pool_makes_new_ones(machine: Machine, never: int) -> None:
    machine.links[1].tries, machine.patience = 10**9, IMPATIENT
    assert machine.all_do(lambda pool, _: pool.wait(never)) == [True, True]
    assert_all_are_new(machine)
    assert machine.links[1].has_stopped


def test_a_standby_group_ends_when_one_rank_is_told_to(machine: Machine) -> None:
    for link in machine.links:
        link.tries = 10**9
    reading, writing = os.pipe()
    never, _ = os.pipe()
    os.write(writing, b"x")
    assert machine.all_do(lambda pool, rank: pool.wait((never, reading)[rank])) == [False, False]
    assert all(link.has_stopped for link in machine.links)


def test_a_standby_group_without_pools_is_an_error_on_all_ranks(machine: Machine, never: int) -> None:
    last = machine.keepers[1].pools[-1]
    machine.keepers[1].pools.append(HeldPool(**{**vars(last), "tag_fd": create_memory("no_tag", 4096)}))
    machine.keepers[0].refuses = True

    def wait(pool: KeptPool, _: int) -> bool:
        with pytest.raises(KeeperError, match="no pool can be had"):
            pool.wait(never)
        return True

    assert machine.all_do(wait) == [True, True]


# --- at the start ---


def cache_of(group: RankGroup, links: list[Any]) -> KeptCache | None:
    return KeptCache.on(CpuPlatform(1), links[group.rank], KIND, GEOMETRY, group, standby="never")


def test_a_rank_without_a_keeper_is_enough_for_none_to_be_kept() -> None:
    links = [FakeLink(FakeKeeper()), None]
    assert in_threads(RANKS, lambda group: cache_of(group, links)) == [None, None]


@pytest.mark.parametrize(("found", "agreed"), [((9, 9), 9), ((9, 8), 0), ((9, 0), 0)])
def test_the_ranks_agree_about_the_pools_size(found: tuple[int, int], agreed: int) -> None:
    links = [FakeLink(FakeKeeper(), found=each) for each in found]

    def find(group: RankGroup) -> int:
        cache = cache_of(group, links)
        assert cache is not None
        assert (cache.kind.rank, cache.kind.num_ranks) == (group.rank, RANKS)
        return cache.find(0)

    assert in_threads(RANKS, find) == [agreed] * RANKS


# --- a step ---


class Runner:
    """Each step raises this."""

    limits = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    def launch(self, columns: PlanColumns) -> None:
        raise self._error


class Channel:
    """One plan, then the end, or an error."""

    def __init__(self, *plans: PlanColumns | Exception | None) -> None:
        self._plans = list(plans)

    def receive(self) -> PlanColumns | None:
        plan = self._plans.pop(0)
        if isinstance(plan, Exception):
            raise plan
        return plan


@pytest.mark.parametrize(("error", "epochs"), [(RankGone("reset"), [7, 7]), (MemoryError("no memory"), [0, 0])])
def test_a_step_that_failed_here_spoils_the_pools_and_one_that_lacked_a_rank_does_not(
    machine: Machine, error: Exception, epochs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.take()
    exits: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(os, "_exit", lambda code: exits.append((code, machine.epochs)))
    channel: Any = Channel(trial_plan([1], 16), None)
    runner: Any = Runner(error)
    follow(runner, channel, machine.pools[1])
    assert exits == [(EXIT_CRASHED, epochs)]


def test_a_rank_that_hears_no_more_of_rank_0_leaves_its_pool_as_it_is(machine: Machine) -> None:
    machine.take()
    channel: Any = Channel(RankGone("connection reset"))
    runner: Any = Runner(AssertionError())
    assert follow(runner, channel, machine.pools[1]) == EXIT_CRASHED
    assert machine.epochs == [7, 7]
    channel = Channel(None)
    assert follow(runner, channel, machine.pools[1]) == EXIT_OK


@pytest.fixture
def group_of(machine: Machine) -> Iterator[Callable[[int], Any]]:
    """A rank's group, on one machine; handlers of signals are put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    order = [keeper.calls for keeper in machine.keepers]
    yield lambda rank: SimpleNamespace(
        rank=rank, gather=lambda row: [row, row], close=lambda: order[rank].append("group is left")
    )
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_leaves_in_order_has_told_the_others_when_it_releases_its_lease(
    machine: Machine, rank: int, group_of: Callable[[int], Any]
) -> None:
    """So all ranks do so at the same time; what only ends the process comes after that."""
    machine.take()
    pool, order = machine.pools[rank], machine.keepers[rank].calls
    channel: Any = Channel(None)
    channel.send = lambda columns: order.append(f"rank 0 sends {columns}")
    runner: Any = SimpleNamespace(limits=None, launch=None, close=lambda: order.append("graphs are destroyed"))
    assert run_in_group(runner, group_of(rank), lambda leader: EXIT_OK, pool, channel) == EXIT_OK
    assert not [thread for thread in threading.enumerate() if thread.name == "follower"], "the link is free"
    first = [] if rank else ["rank 0 sends None"]
    assert order == [*first, "release the lease", "graphs are destroyed", "group is left"]


def test_a_group_that_is_broken_releases_no_lease(
    machine: Machine, group_of: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.take()
    exits: list[int] = []

    def end(code: int) -> None:
        exits.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", end)
    runner: Any = Runner(AssertionError())
    channel: Any = Channel(RankGone("connection reset"))
    with pytest.raises(SystemExit):
        run_in_group(runner, group_of(1), lambda leader: EXIT_OK, machine.pools[1], channel)
    assert (exits, machine.keepers[1].released) == ([EXIT_CRASHED], [])


def test_a_group_goes_on_when_each_rank_has_released_its_lease(machine: Machine) -> None:
    machine.take()
    for pool in machine.pools:
        pool.release()
    machine.start()
    assert machine.take() == [True, True]
    assert (machine.content, machine.epochs) == ([10, 11], [7, 7])


FOLLOWER = """
import sys, threading, time
from executor_svc.keeper import follower
class Link:
    def receive(self): pass
    def tick(self, now, state): print(state, flush=True)
    def fileno(self): return -1
    def next_tick(self): return time.monotonic() + 0.05
follower.LEAVE_S = 0.2
thread = follower.FollowerThread(Link(), int(sys.argv[1]))
thread.start()
if sys.argv[2] == "leaves":
    thread.leave()
    assert not thread.is_alive(), "the link is free for the release"
    sys.stdin.read()
else:
    threading.Event().wait(60)
"""


@pytest.mark.parametrize(("how", "returncode"), [("stays", -signal.SIGKILL), ("leaves", 0)])
def test_a_rank_does_not_outlive_rank_0(how: str, returncode: int) -> None:
    leader = subprocess.Popen(["sleep", "60"])
    command = [sys.executable, "-c", FOLLOWER, str(leader.pid), how]
    other = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "serving\n"
    leader.kill()
    leader.wait()
    other.communicate(timeout=30)
    assert other.returncode == returncode
