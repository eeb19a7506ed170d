"""An executor that computes nothing: it holds a pool, or waits for one, as it is told on its standard input."""

import os
import select
import signal
import sys
import time
from pathlib import Path

import msgspec

from common.logging import setup_logging
from executor_svc.keeper.held import HeldPool
from executor_svc.keeper.link import KeeperLink
from executor_svc.keeper.memory import Mapping, check_memory, create_memory
from executor_svc.keeper.tag import PoolTag
from tests.keeper_svc.world import NUM_BLOCKS, POOL

POOL_BYTES = 4 * 2**20
PLACE = 3 * 2**20 + 5  # of the byte that is written
STANDBYS = "standbys"


class Puppet:
    def __init__(self, link: KeeperLink) -> None:
        self.link = link
        self.mapping = Mapping(POOL_BYTES)
        self.mapping.map_scratch()
        self.bytes = self.mapping.buffer()  # what is bound to the addresses stays valid

    def obey(self, order: str) -> None:
        match order.split():
            case ["deposit"]:
                self._deposit("cpu")
            case ["deposit", "on", device]:
                self._deposit(device)
            case ["wait"]:
                self._say("waiting")
                leased = self.link.wait_for_pool(POOL, NUM_BLOCKS, sys.stdin.fileno())
                if leased is None:
                    self.link.stop_waiting()
                    self._say("interrupted")
                else:
                    self._hold(leased)
            case ["write", value, epoch]:
                PoolTag(self.link.pool.tag_fd).epoch = int(epoch)
                self.bytes[PLACE] = int(value)
                self._say("written")
            case ["release"]:
                self.mapping.map_scratch()
                self.link.release_lease()
                self._say("released")
            case ["stop"]:
                os.kill(os.getpid(), signal.SIGSTOP)

    def serve(self) -> None:
        while True:
            readable, _, _ = select.select([sys.stdin, *([self.link] if self.link.fileno() >= 0 else [])], [], [], 0.05)
            if sys.stdin in readable:
                line = sys.stdin.readline()
                if not line:
                    return
                self.obey(line)
            for event in self.link.receive():
                self._say(f"{STANDBYS} {event.count}")
            self.link.tick(time.monotonic(), "serving")

    def _deposit(self, device: str) -> None:
        kind = msgspec.structs.replace(POOL, device=device)
        memory, tag = create_memory("pool", POOL_BYTES), PoolTag.create()
        self._hold(self.link.deposit_pool(kind, NUM_BLOCKS, POOL_BYTES, memory, tag))

    def _hold(self, held: HeldPool) -> None:
        check_memory(held.memory_fd, POOL_BYTES, read_only=False)
        self.mapping.map(held.memory_fd)
        self._say(f"holds {held.lease} {self.bytes[PLACE]} {PoolTag(held.tag_fd).epoch}")

    @staticmethod
    def _say(line: str) -> None:
        print(line, flush=True)


if __name__ == "__main__":
    setup_logging("executor")
    Puppet(KeeperLink(Path(sys.argv[1]), sys.argv[2])).serve()
