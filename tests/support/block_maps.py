"""Maps of executors' blocks, drawn from what the core tells of changes, and held against the blocks themselves."""

from collections.abc import Iterable

import numpy as np

from common.messages import BLOCK_FACTOR
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.observability.block_watch import BlockWatch


class BlockMaps:
    """A map for each live epoch."""

    def __init__(self) -> None:
        self._watches: dict[int, BlockWatch] = {}
        self._maps: dict[int, np.ndarray] = {}

    def check(self, executors: Iterable[ExecutorState]) -> None:
        """Take in what has changed, and assert that the maps are true."""
        live = {executor.epoch: executor for executor in executors}
        for epoch in self._watches.keys() - live.keys():
            self._watches.pop(epoch).stop()
        for epoch, executor in live.items():
            if epoch not in self._watches:
                self._watches[epoch] = BlockWatch(epoch, executor.blocks)
                self._maps[epoch] = np.zeros(executor.blocks.num_blocks, np.uint8)
            while (changes := self._watches[epoch].changes()) is not None:
                for told in (changes.found, changes.changed):
                    values = np.frombuffer(told, np.int32)
                    self._maps[epoch][values // BLOCK_FACTOR] = values % BLOCK_FACTOR
            assert self._maps[epoch].tolist() == states(executor)


def states(executor: ExecutorState) -> list[int]:
    """What each block is, from the tables that it stands in and what it is named by."""
    blocks, running = executor.blocks, executor.running
    held = [0] * blocks.num_blocks
    for sequence in running:
        for block in running.table_of(sequence).ids:
            held[block] += 1
    known = len(blocks.keys)
    cached = [i < known and (blocks.keys[i] is not None or blocks.uids[i] > 0) for i in range(blocks.num_blocks)]
    return [min(count, 2) + 1 if count else int(cached[i]) for i, count in enumerate(held)]
