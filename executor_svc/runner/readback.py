"""How what was drawn comes back from the device while the next step is already running on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class PendingCopies:
    """Tensors on their way to the host."""

    _host: Sequence[Tensor]
    _arrived: torch.cuda.Event | None

    def wait(self) -> list[npt.NDArray[Any]]:
        """The tensors as arrays, as soon as their step is done. Other threads may run meanwhile.

        Raises:
            RuntimeError: a kernel of the step failed.
        """
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.numpy() for tensor in self._host]


class Readback:
    """Copies out on a stream of its own, so that the stream that computes need not wait for the host.

    Args:
        device: where the tokens are drawn.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, tensors: Sequence[Tensor]) -> PendingCopies:
        """Begin to copy what the current stream will have written to some tensors.

        Later work of the current stream waits for the copies, since it may overwrite the tensors.
        """
        if self._stream is None:
            return PendingCopies([tensor.clone() for tensor in tensors], None)
        computing = torch.cuda.current_stream(tensors[0].device)
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
        computing.wait_event(arrived)
        return PendingCopies(hosts, arrived)
