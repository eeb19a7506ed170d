"""The tokens of one response, for all its readers."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.link.delta_queue import DeltaQueue

MAX_PARTS = 256  # deltas that are kept as they came
COLUMNS = ("token_ids", "logprob_ids", "logprobs")


class Broadcast:
    """Takes the deltas of one request with one sequence, as often as the core begins anew with them, and gives each
    token to each reader once.

    Args:
        name: of the request for its readers.

    Attributes:
        has_ended: whether the sequence has.
        is_broken_off: whether its readers have been told that no more comes from here, though it goes on.
    """

    def __init__(self, name: str) -> None:
        self._deltas: list[m.TokenDelta] = []
        self._name = name
        self._readers: list[DeltaQueue] = []
        self._num_tokens = 0
        self._num_again = 0  # of those, how many the core is still to say again
        self.has_ended = False
        self.is_broken_off = False

    @property
    def num_tokens(self) -> int:
        """So far."""
        return self._num_tokens

    @property
    def deltas(self) -> list[m.TokenDelta]:
        """With all tokens so far; neighbours of one model are joined."""
        self._deltas = _joined(self._deltas)
        return self._deltas

    def begin_anew(self) -> None:
        """The core begins with the first token again."""
        self._num_again = self._num_tokens

    def read_by(self, queue: DeltaQueue) -> None:
        """One more reader: it gets all tokens."""
        self._readers.append(queue)
        for delta in self.deltas:
            queue.put(delta)
        if self.is_broken_off:
            queue.fail(_broken_off())

    def leave(self, queue: DeltaQueue) -> None:
        """A reader is gone."""
        if queue in self._readers:
            self._readers.remove(queue)

    def put(self, delta: m.TokenDelta) -> None:
        """What the core says."""
        if self.has_ended:
            return
        delta = self._new_part(msgspec.structs.replace(delta, request_id=self._name, index=0))
        if not delta.token_ids and delta.finish_reason is None:
            return
        self._num_tokens += len(delta.token_ids) // 4
        self.has_ended = delta.finish_reason is not None
        self._deltas.append(delta)
        if len(self._deltas) > MAX_PARTS:
            self._deltas = _joined(self._deltas)
        for reader in list(self._readers):
            reader.put(delta)

    def fail(self, failure: RequestRejected) -> None:
        """The sequence has failed; readers that come later hear of it, too."""
        facts: dict[str, Any] = {"finish_reason": "error", "error": str(failure), "code": failure.code}
        self.put(m.TokenDelta(request_id=self._name, index=0, token_ids=b"", **facts))

    def break_off(self) -> None:
        """Readers are to ask again: the sequence has not ended, and no more of it comes from here."""
        if not self.has_ended:
            self.is_broken_off = True
            for reader in list(self._readers):
                reader.fail(_broken_off())

    def _new_part(self, delta: m.TokenDelta) -> m.TokenDelta:
        """The delta without the tokens that readers have."""
        num_tokens = len(delta.token_ids) // 4
        num_old = min(self._num_again, num_tokens)
        self._num_again -= num_old
        if not num_old:
            return delta
        part = num_old / num_tokens
        columns = {name: getattr(delta, name)[round(part * len(getattr(delta, name))) :] for name in COLUMNS}
        return msgspec.structs.replace(delta, **columns)


def _broken_off() -> RequestRejected:
    return RequestRejected("the stream goes on elsewhere", "unavailable")


def _joined(deltas: Sequence[m.TokenDelta]) -> list[m.TokenDelta]:
    """The same with one delta for each run of one model."""
    joined: list[m.TokenDelta] = []
    for _, run in itertools.groupby(deltas, key=_RunsOfOneModel()):
        first, *rest = run
        if not rest:
            joined.append(first)
            continue
        last = rest[-1]
        columns = {name: b"".join([getattr(first, name), *(getattr(d, name) for d in rest)]) for name in COLUMNS}
        facts = {"finish_reason": last.finish_reason, "error": last.error, "code": last.code}
        joined.append(msgspec.structs.replace(first, **columns, **facts))
    return joined


class _RunsOfOneModel:
    """Numbers deltas by the model that computed them; a delta without one goes on with the one before."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, delta: m.TokenDelta) -> int:
        self._number += bool(delta.model)
        return self._number
