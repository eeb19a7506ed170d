"""Connections as ZeroMQ has them: in order, at most once, bounded; what is under way when one breaks is lost."""

import math
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.sockets import Dealer, Switch

Frames = list[bytes]


class Network:
    """What connections have in common.

    Attributes:
        latency_s: the shortest and the longest way of a message.
        capacity: messages on their way in one direction of a connection.
    """

    def __init__(self, world: World, latency_s: tuple[float, float], capacity: int) -> None:
        self.world = world
        self.rng: Random = world.stream("network")
        self.latency_s = latency_s
        self.capacity = capacity
        self.num_peers = 0

    def delay_s(self) -> float:
        """How long the next message is on its way."""
        return self.rng.uniform(*self.latency_s)


class Pipe:
    """One direction of a connection.

    Args:
        deliver: takes what arrives.
    """

    def __init__(self, network: Network, deliver: Callable[[Frames], None]) -> None:
        self._network = network
        self._world = network.world
        self._deliver = deliver
        self._queue: deque[Frames | Callable[[], None]] = deque()  # messages, and what to do at the end
        self._last_arrival = 0.0
        self._stalled_until = 0.0
        self._is_open = True

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing more at the moment."""
        return len(self._queue) >= self._network.capacity

    def send(self, frames: Frames) -> bool:
        """Put a message on its way; False if there are too many already. One into a closed pipe is lost."""
        if self._is_open:
            if self.is_full:
                return False
            self._world.digest.update(frames[1])
            self._put(frames)
        return True

    def stall(self, until: float) -> None:
        """Nothing arrives before a time, and then everything does; never for infinity."""
        self._stalled_until = max(self._stalled_until, until)

    def close(self) -> None:
        """Nothing arrives any more."""
        self._is_open = False
        self._queue.clear()

    def end(self, then: Callable[[], None]) -> None:
        """The sender is gone: some of what is under way still arrives, and then the other side learns of it."""
        if not self._is_open:
            return
        self._is_open = False
        for _ in range(self._network.rng.randint(0, len(self._queue))):
            self._queue.pop()
        self._put(then)

    def _put(self, item: Frames | Callable[[], None]) -> None:
        self._queue.append(item)
        self._last_arrival = max(self._world.now + self._network.delay_s(), self._last_arrival)
        self._world.at(self._last_arrival, self._arrive)

    def _arrive(self) -> None:
        if self._world.now < self._stalled_until:
            if not math.isinf(self._stalled_until):
                self._world.at(self._stalled_until, self._arrive)
        elif self._queue:
            item = self._queue.popleft()
            if callable(item):
                item()
            else:
                self._deliver(item)


class Connection:
    """Both directions between a peer and one life of the scheduler."""

    def __init__(self, network: Network, switch: "Switch", dealer: "Dealer") -> None:
        network.num_peers += 1
        self._network = network
        self.peer = network.num_peers.to_bytes(5, "big")
        self.up = Pipe(network, lambda frames: switch.arrived(self.peer, frames))
        self.down = Pipe(network, lambda frames: dealer.arrived(self, frames))
        self._switch = switch
        self._dealer = dealer

    def end_by_peer(self) -> None:
        """The peer has closed it, or died."""
        self.down.close()
        self.up.end(lambda: self._switch.lost(self.peer))

    def end_by_core(self) -> None:
        """The scheduler has died."""
        self.up.close()
        self.down.end(lambda: self._dealer.lost(self))

    def reset(self) -> None:
        """Something between them broke it; both notice, and what the peer had not read is lost."""
        self.up.end(lambda: self._switch.lost(self.peer))
        self.down.close()
        self._network.world.after(self._network.delay_s(), self._dealer.lost, self)

    def expire(self) -> None:
        """Nothing has come through for so long that both kernels give it up."""
        self.up.close()
        self.down.close()
        self._switch.lost(self.peer)
        self._dealer.lost(self)

    def stall(self, until: float, *, up: bool, down: bool) -> None:
        """Let nothing through for a while, in one direction or both."""
        if up:
            self.up.stall(until)
        if down:
            self.down.stall(until)
