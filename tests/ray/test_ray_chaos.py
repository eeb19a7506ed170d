"""32 streams over three nodes of a real Ray cluster, while actors, nodes, the scheduler and the manager go.

Run it with `-s` to see what was done when, and the longest pause of each stream after that.
"""

import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.service import status
from tests.ray.cluster import ClusterError, RayCluster
from tests.ray.streams import Readers
from tests.support.eventually import eventually

pytestmark = pytest.mark.chaos

NUM_STREAMS = 32
NUM_EXECUTORS = 3
DRAIN_S = 25.0
ROW = 16  # streams in a line of the log


class Upheaval:
    """Everything that can be done to the fleet, and the log of it."""

    def __init__(self, cluster: RayCluster, readers: Readers) -> None:
        self.cluster = cluster
        self.readers = readers
        self.log: list[str] = []

    async def run(self) -> None:
        for disturb in (
            self.kill_an_executors_actor,
            self.drain_a_node,
            self.kill_a_raylet,
            self.kill_the_schedulers_actor,
            self.kill_the_manager,
            self.roll_out_by_standby,
            self.roll_out_one_by_one,
        ):
            await self.readers.progress()
            began = time.monotonic()
            self.note(disturb.__name__.replace("_", " "))
            await disturb()
            await self.readers.progress()
            await asyncio.to_thread(self.cluster.wait_until_complete)
            self.check_gpus()
            pauses = self.readers.pauses_since(began)
            milliseconds = [f"{pause * 1000:5.0f}" for pause in pauses]
            self.note(f"longest pause of each stream, in ms; the median is {statistics.median(pauses) * 1000:.0f}")
            for first in range(0, len(milliseconds), ROW):
                self.note("".join(milliseconds[first : first + ROW]))

    def check_gpus(self) -> None:
        """Each GPU of a node is one executor's."""
        taken = [(report["node"], gpu) for report in self.cluster.executor_reports() for gpu in report["gpus"]]
        assert len(set(taken)) == len(taken) == NUM_EXECUTORS, taken

    def note(self, line: str) -> None:
        self.log.append(f"{time.strftime('%X')} {line}")
        print(self.log[-1], flush=True)

    async def ask(self, *command: object) -> object:
        return await asyncio.to_thread(self.cluster.ask, *command)

    async def kill(self, strike: Callable[[], object]) -> None:
        """Return when the manager has begun to mend it."""
        before = self.cluster.ask("view")["events"]
        await asyncio.to_thread(strike)
        while self.cluster.ask("view")["events"] == before:
            await asyncio.sleep(0.1)

    def worker_with_executors(self) -> int:
        """Number of a node that executors are on, and that is not the head."""
        taken = {report["node"] for report in self.cluster.executor_reports()}
        return max(number for number, node in enumerate(self.cluster.ask("node_ids")) if number and node in taken)

    async def kill_an_executors_actor(self) -> None:
        await self.kill(lambda: self.cluster.ask("kill_actor", self.cluster.executors()[0]))

    async def drain_a_node(self) -> None:
        """Its executors have left before the node goes."""
        number = self.worker_with_executors()
        await self.ask("drain_node", number, DRAIN_S)
        gone_at = time.monotonic() + DRAIN_S
        node = self.cluster.ask("node_ids")[number]
        while any(report["node"] == node for report in await asyncio.to_thread(self.cluster.executor_reports)):
            assert time.monotonic() < gone_at, self.cluster.story()
            await asyncio.sleep(0.2)
        self.note(f"its executors have left {gone_at - time.monotonic():.0f} s before the node goes")
        await self.ask("kill_node", number)
        await self.ask("add_node", 2)

    async def kill_a_raylet(self) -> None:
        await self.kill(lambda: self.cluster.ask("kill_node", self.worker_with_executors()))
        await self.ask("add_node", 2)

    async def kill_the_schedulers_actor(self) -> None:
        (name,) = (name for name in await self.ask("actors") if name.startswith("scheduler-"))
        await self.kill(lambda: self.cluster.ask("kill_actor", name))

    async def kill_the_manager(self) -> None:
        await self.ask("kill_actor", self.cluster.manager())

    async def roll_out_by_standby(self) -> None:
        await asyncio.to_thread(self.cluster.baton, "rollout", "--standby")

    async def roll_out_one_by_one(self) -> None:
        await asyncio.to_thread(self.cluster.baton, "rollout")


def test_two_executors_of_one_node_and_their_standbys(tmp_path: Path):
    """Each standby goes on with the memory of its own executor; and what was told to end does, whatever dies."""
    cluster = RayCluster(tmp_path, 2)
    try:
        cluster.baton("up", *cluster.up_options(2), "--standby")
        readers = Readers(cluster.ask("view")["url"], NUM_STREAMS // 4)

        async def kill_each() -> None:
            for slot in (0, 1):
                serving = {executor["executor"]: executor["pid"] for executor in status(readers.url)["executors"]}
                (pid,) = (pid for name, pid in serving.items() if name.startswith(f"executor-{slot}-"))
                os.kill(pid, signal.SIGKILL)
                await readers.progress()
            await asyncio.to_thread(cluster.wait_until_complete)

        asyncio.run(readers.while_(kill_each))
        report = status(readers.url)
        assert (len(report["executors"]), report["pools_adopted"], report["recomputed_tokens"]) == (2, 2, 0)
        down = cluster.start_baton("down")
        eventually(lambda: cluster.manager() != "manager-r1")
        with contextlib.suppress(ClusterError):  # it was faster
            cluster.ask("kill_actor", "manager-r2")
        assert down.wait(timeout=120) == 0, cluster.story()
        assert cluster.ask("actors") == []
    finally:
        cluster.close()


def test_as_many_executors_as_are_wanted(tmp_path: Path):
    """More under load, by the scheduler's own word."""
    cluster = RayCluster(tmp_path, 1, 2)
    try:
        limits = ("--min-executors", 1, "--max-executors", 3, "--target-ttft", 0.5, "--max-num-seqs", 4)
        cluster.baton("up", *cluster.up_options(1), *limits)
        readers = Readers(cluster.ask("view")["url"], NUM_STREAMS)

        async def until_there_are_more() -> None:
            while len(cluster.executors()) < NUM_EXECUTORS:
                await asyncio.sleep(0.2)
            await asyncio.to_thread(cluster.wait_until_complete)

        asyncio.run(readers.while_(until_there_are_more))
        assert cluster.ask("view")["wanted"] == NUM_EXECUTORS
        cluster.baton("down")
    finally:
        cluster.close()


def test_32_streams_over_three_nodes(tmp_path: Path):
    cluster = RayCluster(tmp_path, 1, 1, 2)
    try:
        gpus = ("--gpus-per-executor", 1, "--device", "cpu", "--threads", 1)
        cluster.baton("up", *cluster.up_options(NUM_EXECUTORS), *gpus)
        url = cluster.ask("view")["url"]
        readers = Readers(url, NUM_STREAMS)
        upheaval = Upheaval(cluster, readers)
        asyncio.run(readers.while_(upheaval.run))
        report = status(url)
        upheaval.note(
            f"{readers.finished} answers as if nothing had happened; since the scheduler's last start: "
            f"{report['executors_lost']} executors lost, {report['sequences_resumed']} sequences resumed, "
            f"{report['recomputed_tokens']} tokens computed again"
        )
        assert report["requests_failed"] == 0
        if path := os.environ.get("BATON_RAY_LOG"):
            Path(path).write_text("\n".join(upheaval.log) + "\n")
        cluster.baton("down")
    finally:
        cluster.close()
