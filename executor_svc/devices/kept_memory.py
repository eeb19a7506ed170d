"""Memory of a KV pool that a keeper keeps, as a tensor, in huge pages as far as it is used."""

import time

from torch import Tensor

from common.logging import get_logger
from executor_svc.devices.tensor_memory import TensorMemory
from executor_svc.keeper.kept_pool import KeptPool
from executor_svc.keeper.memory import HUGE_PAGE_BYTES
from executor_svc.keeper.pool_memory import Span
from executor_svc.model.attention import KVGeometry

SLOW_S = 2.0  # for what one step needs; a machine that gives its memory for the first time takes half of that

log = get_logger("executor")


class KeptMemory:
    """The memory of a cache [layers, 2, blocks, ...].

    Files of memory on a host have small pages on most systems. They cost a step a twentieth, and the end of a process a
    tenth of a second for each GiB. So huge pages are asked for where a plan writes for the first time
    (`Mapping.collapse`; the kernel makes one of nothing in 0.1 ms): the scheduler hands out blocks that no sequence had
    in ascending order.

    Args:
        kept: the pool.
        memory: its memory, which has to outlive the tensor.
        geometry, num_blocks: of the cache; it has one block more, for padding rows.
        slow_s: no more huge pages are asked for when those of a step have taken longer.

    Attributes:
        pool: likewise.
    """

    def __init__(
        self, kept: KeptPool, memory: TensorMemory, geometry: KVGeometry, num_blocks: int, slow_s: float = SLOW_S
    ) -> None:
        self.pool = kept
        self._memory = memory
        self._num_blocks = num_blocks
        self._slow_s = slow_s
        self._num_parts = 2 * geometry.num_layers
        self._block_bytes = geometry.block_bytes // self._num_parts  # in one layer's keys, or values

    def __call__(self, num_bytes: int) -> Tensor:
        """The first bytes, uint8."""
        return self._memory.tensor()[:num_bytes]

    def map_scratch(self) -> None:
        """Memory for a standby's trial steps, which touch the padding block of each layer's keys and values alone."""
        num_bytes = self._block_bytes
        ends = [(part + 1) * (self._num_blocks + 1) * num_bytes for part in range(self._num_parts)]
        self._memory.map_scratch([Span(end - num_bytes, num_bytes) for end in ends])

    def reach(self, block: int) -> None:
        """A plan is about to use blocks up to this one."""
        tag = self.pool.tag
        if tag is None or not (reached := tag.num_asked_blocks) <= block < self._num_blocks:
            return
        per_page = -(-HUGE_PAGE_BYTES // self._block_bytes)
        end = min(self._num_blocks, (block // per_page + 1) * per_page)
        started_at, is_huge = time.monotonic(), True
        for part in range(self._num_parts):
            first = part * (self._num_blocks + 1)
            is_huge &= self._collapse((first + reached) * self._block_bytes, (first + end) * self._block_bytes, reached)
        tag.num_asked_blocks = end
        if not is_huge or (took_s := time.monotonic() - started_at) > self._slow_s:
            reason = "the kernel makes none" if not is_huge else f"they took {took_s:.1f} s"
            log.info("no more huge pages for the pool", reason=reason, blocks=end)
            tag.num_asked_blocks = self._num_blocks

    def _collapse(self, start: int, end: int, reached: int) -> bool:
        """Huge pages for these bytes, without the first page if the blocks before have it already."""
        round_up = HUGE_PAGE_BYTES - 1
        first = (start + round_up if reached else start) // HUGE_PAGE_BYTES
        last = min((end + round_up) // HUGE_PAGE_BYTES, self._memory.num_bytes // HUGE_PAGE_BYTES)
        if last <= first:
            return True
        return self._memory.collapse(first * HUGE_PAGE_BYTES, (last - first) * HUGE_PAGE_BYTES)
