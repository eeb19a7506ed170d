"""How what was drawn comes back from the device while the next step is already running on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


class PendingCopies:
    """Tensors on their way to the host.

    Args:
        host: pinned memory that they are copied to.
        arrived: when they are there.
    """

    def __init__(self, host: Sequence[Tensor], arrived: torch.cuda.Event) -> None:
        self._host = host
        self._arrived = arrived
        self._arrays: list[npt.NDArray[Any]] | None = None

    def wait(self) -> list[npt.NDArray[Any]]:
        """The tensors as arrays, as soon as their step is done. Other threads may run meanwhile, and wait, too.

        Raises:
            RuntimeError: a kernel of the step failed.
        """
        host = self._host  # before the arrays: another thread sets these first
        if self._arrays is None:
            self._arrived.synchronize()
            # Grammars keep a lane's last step, for how long nobody knows: the pinned memory goes back now.
            self._arrays = [tensor.numpy().copy() for tensor in host]
            self._host = ()
        return self._arrays


@dataclass(frozen=True)
class CopiedTensors:
    """Tensors of a CPU, which computes a step before its launch returns."""

    _arrays: list[npt.NDArray[Any]]

    def wait(self) -> list[npt.NDArray[Any]]:
        """See `PendingCopies.wait`."""
        return self._arrays


class Readback:
    """Copies out on a stream of its own, so that the stream that computes need not wait for the host.

    A step's copies may still run while the next step computes. Call `before_overwriting` ahead of the first kernel that
    writes any tensor that `start` was ever given: ahead of sampling, and ahead of a forward pass that finds
    log-probabilities of prompts or pooled results.

    Args:
        device: where the tokens are drawn.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pending: torch.cuda.Event | None = None  # after the last copies, if no later work waits for them yet
        self._device = device

    def before_overwriting(self) -> None:
        """Make later work of the current stream wait for all copies that were started."""
        if self._pending is not None:
            torch.cuda.current_stream(self._device).wait_event(self._pending)
            self._pending = None

    def start(self, tensors: Sequence[Tensor]) -> PendingCopies | CopiedTensors:
        """Begin to copy what the current stream will have written to some tensors."""
        if self._stream is None:
            return CopiedTensors([tensor.numpy().copy() for tensor in tensors])
        computing = torch.cuda.current_stream(self._device)
        # Of torch's cache of pinned memory.
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        # The collector sleeps until the event: a thread that spins would take a CPU from the one that launches.
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        # Streams are named wherever torch would look the current one up, which takes it as long as the rest.
        drawn = torch.cuda.Event()  # type: ignore[no-untyped-call]
        drawn.record(computing)
        self._stream.wait_event(drawn)
        with self._stream:
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
        arrived.record(self._stream)
        # The stream copies in order: work that waits for these copies waits for those of all steps before.
        self._pending = arrived
        return PendingCopies(hosts, arrived)
