"""How tokens come back from the device while the next step is already running on it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.wire import IntArray


@dataclass(frozen=True)
class PendingTokens:
    """Tokens on their way to the host."""

    _host: Tensor
    _arrived: torch.cuda.Event | None

    def wait(self) -> IntArray:
        """The tokens, int32 [samples], as soon as their step is done. Other threads may run meanwhile.

        Raises:
            RuntimeError: a kernel of the step failed.
        """
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.numpy()


class Readback:
    """Copies tokens out on a stream of its own, so that the stream that computes need not wait for the host.

    Args:
        device: where the tokens are drawn.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, tokens: Tensor) -> PendingTokens:
        """Begin to copy what the current stream will have written to `tokens`, int32 [samples].

        Later work of the current stream waits for the copy, since it may overwrite the tokens.
        """
        if self._stream is None:
            return PendingTokens(tokens.clone(), None)
        computing = torch.cuda.current_stream(tokens.device)
        host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)  # of torch's cache of pinned memory
        # The collector sleeps until the event: a thread that spins would take a CPU from the one that launches.
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        # Streams are named wherever torch would look the current one up, which takes it as long as the rest.
        drawn = torch.cuda.Event()  # type: ignore[no-untyped-call]
        drawn.record(computing)
        self._stream.wait_event(drawn)
        with self._stream:
            host.copy_(tokens, non_blocking=True)
        arrived.record(self._stream)
        computing.wait_event(arrived)
        return PendingTokens(host, arrived)
