"""One connection of a client to a frontend."""

from typing import Protocol

from common import messages as m
from tests.sim.frontends import FrontendProcess
from tests.sim.story import Heard


class Host(Protocol):
    """Whose connection it is."""

    submit: m.Submit

    def accepted(self) -> None:
        """It was accepted."""

    def is_refusal(self, delta: m.TokenDelta) -> bool:
        """Whether a delta says that the request was not accepted."""

    def refused(self, delta: m.TokenDelta) -> None:
        """It was not accepted."""

    def heard(self, delta: m.TokenDelta, heard: Heard, model: str) -> None:
        """A delta of one of its sequences."""

    def attached(self, visit: "Visit", answer: m.Attached) -> None:
        """The core has answered an Attach."""

    def taken_over(self, visit: "Visit") -> None:
        """Another reader has the request now."""

    def broken(self, visit: "Visit") -> None:
        """The connection is gone."""


class Visit:
    """One connection of a client to a frontend: what it brings. A frontend's `Reader`."""

    def __init__(self, client: Host, frontend: FrontendProcess, *, is_attached: bool) -> None:
        self.frontend = frontend
        self.is_wanted = True
        self._client = client
        self._is_attached = is_attached
        self._is_accepted = False
        n = client.submit.n
        self._heard = [Heard() for _ in range(n)]
        self._models = [""] * n
        self._is_first = [True] * n
        self._has_ended = [False] * n

    def accepted(self) -> None:
        """The core has accepted what was submitted here."""
        if not self.is_wanted:
            return
        submit = self._client.submit
        assert submit.stream, f"{submit.request_id} does not stream and is told that it is accepted"
        assert not self._is_attached, f"{submit.request_id} was accepted before, and is told so here"
        assert not self._is_accepted, f"{submit.request_id} is told twice that it is accepted"
        assert all(self._is_first), f"{submit.request_id} is told late that it is accepted"
        self._is_accepted = True
        self._client.accepted()

    def delta(self, delta: m.TokenDelta) -> None:
        """Something of the request has come."""
        if not self.is_wanted:
            return
        if delta.code == "taken_over":
            self._client.taken_over(self)
            return
        if self._client.is_refusal(delta):
            self._client.refused(delta)
            return
        index = delta.index
        is_told = self._is_accepted or self._is_attached or not self._client.submit.stream
        assert is_told, f"{delta.request_id}: {delta}, and it was not told that it is accepted"
        assert not self._has_ended[index], f"{delta.request_id}[{index}]: {delta} after its end"
        self._has_ended[index] = delta.finish_reason is not None
        # All tokens that were told before an Attach come in one delta, with the model of the last one.
        is_replay = self._is_attached and self._is_first[index]
        self._is_first[index] &= not delta.token_ids
        if delta.model:
            assert delta.model != self._models[index], f"{delta.request_id}: a model is named that it has already"
            self._models[index] = delta.model
        assert self._models[index] or not (delta.token_ids or delta.pooled), f"{delta.request_id}: tokens of no model"
        model = "" if is_replay else self._models[index]
        self._client.heard(delta, self._heard[index], model)

    def attached(self, answer: m.Attached) -> None:
        """The core has answered the Attach."""
        self._client.attached(self, answer)

    def broken(self) -> None:
        """Nothing more will come from here."""
        if self.is_wanted:
            self._client.broken(self)
