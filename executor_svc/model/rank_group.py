"""The ranks of a tensor-parallel executor, and their collective operations."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from executor_svc.service.step_loop import RankGone


class RankGroup(Protocol):
    """The ranks that hold one model together. All of them make the same calls in the same order.

    A call fails for good when a rank is gone: the ranks that are left do not know which part of it was done.
    """

    @property
    def rank(self) -> int:
        """Number of this process among the ranks, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def all_reduce(self, tensor: Tensor) -> None:
        """Add up the ranks' tensors (dense, of one shape), in place; the sum has the same bits on every rank."""
        ...

    def all_to_all(self, sent: Tensor, sent_rows: list[int], received: Tensor, received_rows: list[int]) -> None:
        """Send every rank some rows of `sent`, in order of rank, and fill `received` with what the ranks send here.

        Both are dense; `sent_rows[r]` rows go to rank r, `received_rows[r]` rows come from it; either may be 0.
        """
        ...

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """What every rank gives, in order of rank: as many whole numbers of 64 bits on each. No GPU takes part."""
        ...

    def close(self) -> None:
        """Leave the group. A rank that ends without leaving may crash while it exits."""
        ...


class _SingleRank:
    """The only rank: its collective operations are free."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum over one rank is the tensor itself."""

    def all_to_all(self, sent: Tensor, sent_rows: list[int], received: Tensor, received_rows: list[int]) -> None:
        """See `RankGroup.all_to_all`."""
        received.copy_(sent)

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """See `RankGroup.gather`."""
        return [list(values)]

    def close(self) -> None:
        """There is nothing to leave."""


SINGLE_RANK: RankGroup = _SingleRank()
"""A rank that has the whole model."""


class ProcessGroup:
    """Ranks that torch.distributed connects: NCCL between GPUs, gloo between CPUs.

    On a GPU a call goes into the current stream and returns at once, and a CUDA graph can be captured over it. If a
    rank dies, gloo's next call raises RuntimeError at once; NCCL's may wait until the timeout, so the process that
    started the ranks has to end all of them (torchrun does).
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._on_host = dist.get_backend() == "gloo"
        self._host_group = None if self._on_host else dist.new_group(backend="gloo")

    def all_reduce(self, tensor: Tensor) -> None:
        """See `RankGroup.all_reduce`."""
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            raise self._failure(error) from error

    def all_to_all(self, sent: Tensor, sent_rows: list[int], received: Tensor, received_rows: list[int]) -> None:
        """See `RankGroup.all_to_all`."""
        try:
            dist.all_to_all_single(received, sent, received_rows, sent_rows)
        except RuntimeError as error:
            raise self._failure(error) from error

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """See `RankGroup.gather`."""
        rows = torch.zeros((self.size, len(values)), dtype=torch.int64)
        rows[self.rank] = torch.tensor(values, dtype=torch.int64)
        try:
            dist.all_reduce(rows, group=self._host_group)
        except RuntimeError as error:
            raise RankGone(str(error)) from error
        return [[int(value) for value in row] for row in rows.tolist()]

    def close(self) -> None:
        """See `RankGroup.close`."""
        dist.destroy_process_group()

    def _failure(self, error: RuntimeError) -> RuntimeError:
        """On a host a call fails when a rank is gone; on a GPU also when an earlier kernel has failed."""
        return RankGone(str(error)) if self._on_host else error


def smallest(group: RankGroup, value: int, device: torch.device) -> int:
    """The least of the ranks' values, the same on all of them, such as the blocks that every rank has room for."""
    if group.size == 1:
        return value
    values = torch.tensor([value if rank == group.rank else 0 for rank in range(group.size)], device=device)
    group.all_reduce(values)
    return int(min(values.tolist()))


def join_group(device: torch.device, timeout_s: float = 600.0) -> RankGroup:
    """Find the other ranks by the environment that torchrun sets; without it this process is the only rank.

    Args:
        device: of this rank; no two ranks have the same GPU.
        timeout_s: how long to wait for the others, here and in every call.

    Raises:
        RuntimeError: the others did not come.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return SINGLE_RANK
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=timeout_s),
        device_id=device if on_gpu else None,
    )
    return ProcessGroup()
