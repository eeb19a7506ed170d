"""A client that names another client's request, or one that never was."""

from common import messages as m
from tests.sim.frontends import FrontendProcess
from tests.sim.world import World


class Intruder:
    """A client without a request of its own; a frontend's `Reader`. To the core its request must not exist."""

    def __init__(self, world: World, frontends: list[FrontendProcess], request_id: str) -> None:
        self.is_wanted = True
        self._frontends = [frontend for frontend in frontends if frontend.is_up]
        self._rng = world.stream(f"intruder {request_id} {world.now}")
        self._request_id = request_id
        self._frontend: FrontendProcess | None = None

    def attach(self) -> None:
        """Ask for a request that never was."""
        if self._frontends:
            self._rng.choice(self._frontends).attach(self._request_id, self)

    def submit(self, submit: m.Submit) -> None:
        """Ask for something with a request id that is in use."""
        if self._frontends:
            self._frontend = self._rng.choice(self._frontends)
            self._frontend.open(submit, self)

    def accepted(self) -> None:
        """The id is not in use any more."""

    def delta(self, delta: m.TokenDelta) -> None:
        """The id was in use, or is not any more."""
        if delta.finish_reason is not None and self._frontend is not None:
            self._frontend.end(self._request_id, self)

    def attached(self, answer: m.Attached) -> None:
        """There is nothing to attach to."""
        assert not answer.found, f"{self._request_id} is known"

    def broken(self) -> None:
        """It does not matter."""
