"""Everything goes wrong that can, in a random order, while 64 clients read streams.

Real processes, real sockets, a real disk. The clients are the `baton` client's own streams, which come back when their
connection breaks. What they read must be what they read when nothing happens: no request lost, none doubled.
"""

import asyncio
import contextlib
import itertools
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest

from common.messages import PROTOCOL_VERSION
from scheduler_svc.client.errors import RequestFailed
from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.http.failures import error_code, error_message
from scheduler_svc.client.http.sse import DONE
from scheduler_svc.client.processes.local_fleet import SCHEDULER, FleetSpec, LocalFleet, executor_name, free_ports
from scheduler_svc.client.service_address import ServiceAddress
from tests.e2e.streams import keep_streaming
from tests.support.cuttable_proxy import CuttableProxy

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get("BATON_CHAOS_SEED", "1"))
SECONDS = int(os.environ.get("BATON_CHAOS_SECONDS", "60"))
SOAK_SECONDS = int(os.environ.get("BATON_SOAK_SECONDS", "0"))
NUM_EXECUTORS = 3
STEP_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Spec(FleetSpec):
    """A scheduler with a journal, and executors that can be told to fail, the last of them behind a proxy.

    Attributes:
        root: for the journal and the files that name faults.
    """

    root: Path = Path()
    proxied_port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fault_file(self, index: int) -> Path:
        return self.root / f"fault-{index}"

    def command(self, name: str, *, is_standby: bool = False) -> list[str]:
        if name == SCHEDULER:
            return super().command(name)
        index = int(name.rsplit("-", 1)[1])
        port = self.proxied_port if index == NUM_EXECUTORS - 1 else self.executor_port
        return [*self.executor(index, port), "--name", name]

    def executor(self, index: int, port: int) -> list[str]:
        program = [sys.executable, "-m", "tests.support.faulty_executor", str(self.fault_file(index))]
        return [*program, "--threads", "1", "--num-blocks", "2048", "--scheduler", f"tcp://127.0.0.1:{port}"]


@contextlib.contextmanager
def running(root: Path) -> Iterator[tuple[LocalFleet, CuttableProxy]]:
    """The fleet, and the network of its last executor; the services' logs are printed if the test fails."""
    http_port, executor_port = free_ports(2)
    with CuttableProxy(executor_port) as proxy:
        spec = Spec(
            port=http_port,
            executor_port=executor_port,
            executors=NUM_EXECUTORS,
            scheduler_options=(
                *("--journal", str(root / "journal.sqlite3"), "--step-timeout", str(STEP_TIMEOUT_S)),
                *("--frontends", "2", "--reconnect-grace", "60"),
            ),
            root=root,
            proxied_port=proxy.port,
        )
        with LocalFleet(spec, root) as fleet:
            try:
                fleet.wait_ready()
                yield fleet, proxy
            except BaseException:
                for log in sorted(root.glob("*.log")):
                    print(f"--- {log.name} ---\n{log.read_text()[-20000:]}")
                raise


class Upheaval:
    """The fleet, and everything that can be done to it."""

    def __init__(self, fleet: LocalFleet, proxy: CuttableProxy, rng: random.Random) -> None:
        assert isinstance(fleet.spec, Spec)
        self.fleet = fleet
        self.spec = fleet.spec
        self.proxy = proxy
        self.rng = rng
        self.counts: dict[str, int] = {}
        self.num_failed = 0

    @property
    def all(self) -> list[Callable[[], object]]:
        return [
            self.kill_an_executor,
            self.freeze_an_executor,
            self.hang_an_executor,
            self.drain_an_executor,
            self.cut_the_network,
            self.break_the_network,
            self.run_out_of_memory,
            self.crash_in_a_step,
            self.start_one_of_another_version,
            self.fill_the_disk,
            self.kill_a_frontend,
            self.kill_the_scheduler,
        ]

    async def run(self, seconds: float) -> None:
        """Everything once, in a random order, again and again until the time is up; at least once."""
        deadline = time.monotonic() + seconds
        for disturb in itertools.chain.from_iterable(
            self.rng.sample(self.all, len(self.all)) for _ in itertools.count()
        ):
            if time.monotonic() > deadline and len(self.counts) == len(self.all):
                return
            print(f"{time.strftime('%X')} {disturb.__name__}", flush=True)
            self.counts[disturb.__name__] = self.counts.get(disturb.__name__, 0) + 1
            await disturb()  # type: ignore[misc]
            self.mend()
            await asyncio.sleep(self.rng.uniform(0.5, 2.0))

    async def soak(self, seconds: float, memory: list[float]) -> None:
        """Kill executors and frontends at random, and nothing else, and note the memory of the core that lives on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            disturb = self.rng.choice([self.kill_an_executor, self.kill_a_frontend, self.break_the_network])
            self.counts[disturb.__name__] = self.counts.get(disturb.__name__, 0) + 1
            await disturb()
            self.mend()
            await asyncio.sleep(self.rng.uniform(1.0, 6.0))
            memory.append(resident_mb(self.fleet.pids[SCHEDULER]))

    def mend(self) -> None:
        """Start whatever has ended, as a supervisor would."""
        for _ in self.fleet.poll():
            pass
        missing = {SCHEDULER, *map(executor_name, range(NUM_EXECUTORS))} - set(self.fleet.pids)
        for name in sorted(missing, reverse=True):
            self.fleet.start_child(name)

    def pick(self) -> int:
        return self.rng.randrange(NUM_EXECUTORS)

    def signal(self, name: str, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.fleet.pids[name], number)

    async def kill_an_executor(self) -> None:
        self.fleet.kill_executor(self.pick())

    async def freeze_an_executor(self) -> None:
        name = executor_name(self.pick())
        self.signal(name, signal.SIGSTOP)
        await asyncio.sleep(4)
        self.signal(name, signal.SIGCONT)

    async def hang_an_executor(self) -> None:
        i = self.pick()
        self.spec.fault_file(i).write_text("hang")
        await asyncio.sleep(STEP_TIMEOUT_S + 2)
        self.spec.fault_file(i).unlink(missing_ok=True)
        self.fleet.kill_executor(i)  # as an operator, or its own limit for a step, would

    async def drain_an_executor(self) -> None:
        i = self.pick()
        await self.joined(executor_name(i))  # one that still loads its weights has nothing to hand over
        self.fleet.terminate_executor(i)
        assert await asyncio.to_thread(self.fleet.wait_executor, i, 30) == 0

    async def cut_the_network(self) -> None:
        self.proxy.cut()
        await asyncio.sleep(4)
        self.proxy.heal()

    async def break_the_network(self) -> None:
        self.proxy.break_all()

    async def run_out_of_memory(self) -> None:
        self.spec.fault_file(self.pick()).write_text("oom")
        await asyncio.sleep(1)

    async def crash_in_a_step(self) -> None:
        self.spec.fault_file(self.pick()).write_text("die")
        await asyncio.sleep(1)

    async def start_one_of_another_version(self) -> None:
        command = self.spec.executor(NUM_EXECUTORS, self.spec.executor_port)
        ended = await asyncio.to_thread(
            subprocess.run, command, env=os.environ | {"BATON_TEST_PROTOCOL": "1"}, capture_output=True, timeout=60
        )
        assert ended.returncode == 75, ended.stderr.decode()
        assert f"peer speaks protocol version {PROTOCOL_VERSION}, this side 1" in ended.stderr.decode()

    async def fill_the_disk(self) -> None:
        """The scheduler may not write beyond the end of any file, for three seconds; then the journal recovers."""
        pid = self.fleet.pids[SCHEDULER]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        await asyncio.sleep(3)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await self.journal_ok()

    async def kill_a_frontend(self) -> None:
        pid = self.fleet.pids[SCHEDULER]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(self.rng.choice(children)), signal.SIGKILL)

    async def kill_the_scheduler(self) -> None:
        await self.journal_ok()  # two things at once that each are survived are not promised to be
        self.num_failed += await self.failed_in_this_life()
        pid = self.fleet.pids[SCHEDULER]
        os.kill(pid, signal.SIGKILL)
        while SCHEDULER not in [end.name for end in self.fleet.poll()]:
            await asyncio.sleep(0.01)

    async def joined(self, name: str) -> None:
        async with httpx.AsyncClient(base_url=self.spec.url, trust_env=False) as http:
            deadline = time.monotonic() + 60
            while name not in [executor["executor"] for executor in (await http.get("/status")).json()["executors"]]:
                assert time.monotonic() < deadline, f"{name} does not join"
                await asyncio.sleep(0.2)

    async def failed_in_this_life(self) -> int:
        """Requests that the present scheduler has ended with an error."""
        async with httpx.AsyncClient(base_url=self.spec.url, trust_env=False) as http:
            return (await http.get("/status")).json()["requests_failed"]

    async def journal_ok(self) -> None:
        async with httpx.AsyncClient(base_url=self.spec.url, trust_env=False) as http:
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    status = (await http.get("/status")).json()
                    if status.get("journal") == "ok":
                        return
                assert time.monotonic() < deadline, "the journal does not recover"
                await asyncio.sleep(0.2)


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def text_of(streams: EventStreams, request) -> str:
    texts: list[str] = []

    def take(data: bytes) -> None:
        if data == DONE:
            return
        event = msgspec.json.decode(data)
        if "error" in event:
            raise RequestFailed(error_message(event), code=error_code(event))
        texts.extend(choice["text"] for choice in event["choices"])

    await streams.post("/v1/completions", request, take)
    return "".join(texts)


async def read_on(url: str, disturb) -> int:
    streams = EventStreams(ServiceAddress(url, api_key=None, timeout_s=120, reconnect_timeout_s=120))
    return await keep_streaming(lambda request: text_of(streams, {**request, "stream": True}), disturb)


def test_64_streams_while_everything_goes_wrong(tmp_path):
    print(f"BATON_CHAOS_SEED={SEED}")
    with running(tmp_path) as (fleet, proxy):
        upheaval = Upheaval(fleet, proxy, random.Random(SEED))
        num_finished = asyncio.run(read_on(upheaval.spec.url, lambda: upheaval.run(SECONDS)))
        print(f"{num_finished} streams ended as if nothing had happened, through {upheaval.counts}")
        assert upheaval.num_failed + asyncio.run(upheaval.failed_in_this_life()) == 0


@pytest.mark.skipif(not SOAK_SECONDS, reason="BATON_SOAK_SECONDS says for how long (900 for a release)")
@pytest.mark.timeout(2 * SOAK_SECONDS + 300)
def test_soak(tmp_path):
    """Kills at random for a long time: no stream is lost or different, and the core's memory is flat."""
    print(f"BATON_CHAOS_SEED={SEED}")
    with running(tmp_path) as (fleet, proxy):
        upheaval, memory = Upheaval(fleet, proxy, random.Random(SEED)), []
        num_finished = asyncio.run(read_on(upheaval.spec.url, lambda: upheaval.soak(SOAK_SECONDS, memory)))
        third = len(memory) // 3
        begin, end = statistics.median(memory[third : 2 * third]), statistics.median(memory[2 * third :])
        print(f"{num_finished} streams ended as if nothing had happened, through {upheaval.counts}")
        print(f"the core's memory: {memory[0]:.1f} MB at first, then a median of {begin:.1f} and at last {end:.1f} MB")
        assert asyncio.run(upheaval.failed_in_this_life()) == 0
        assert end < 1.05 * begin
