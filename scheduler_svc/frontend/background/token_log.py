"""The tokens of one response so far, each once, however often the core begins anew."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.link.delta_queue import DeltaQueue

MAX_PARTS = 256  # deltas that are kept as they came
COLUMNS = ("token_ids", "logprob_ids", "logprobs")


class TokenLog:
    """Keeps the deltas of one request with one sequence, as often as the core begins anew with them, and passes each
    token on once.

    Args:
        name: of the request for its reader.
        reader: gets all tokens as they come.

    Attributes:
        has_ended: whether the sequence has.
        is_broken_off: whether no more comes from here, though it goes on.
    """

    def __init__(self, name: str, reader: DeltaQueue) -> None:
        self._deltas: list[m.TokenDelta] = []
        self._name = name
        self._reader = reader
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

    def between(self, start: int, stop: int) -> list[m.TokenDelta]:
        """The tokens from number `start` to before `stop`, without an end."""
        found: list[m.TokenDelta] = []
        first = 0
        for delta in self.deltas:
            size = len(delta.token_ids) // 4
            if first < stop and first + size > start:
                part = _cut(delta, max(start - first, 0), min(stop - first, size))
                found.append(msgspec.structs.replace(part, finish_reason=None))
            first += size
        return found

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
        self._reader.put(delta)

    def fail(self, failure: RequestRejected) -> None:
        """The sequence has failed."""
        facts: dict[str, Any] = {"finish_reason": "error", "error": str(failure), "code": failure.code}
        self.put(m.TokenDelta(request_id=self._name, index=0, token_ids=b"", **facts))

    def break_off(self) -> None:
        """The sequence has not ended, and no more of it comes from here."""
        if not self.has_ended:
            self.is_broken_off = True
            self._reader.fail(RequestRejected("the stream goes on elsewhere", "unavailable"))

    def _new_part(self, delta: m.TokenDelta) -> m.TokenDelta:
        """The delta without the tokens that are here."""
        num_tokens = len(delta.token_ids) // 4
        num_old = min(self._num_again, num_tokens)
        self._num_again -= num_old
        return _cut(delta, num_old, num_tokens) if num_old else delta


def _cut(delta: m.TokenDelta, start: int, stop: int) -> m.TokenDelta:
    """The delta with some of its tokens, and with their log-probabilities."""
    sizes = {name: len(getattr(delta, name)) * 4 // len(delta.token_ids) for name in COLUMNS}
    columns = {name: getattr(delta, name)[start * size : stop * size] for name, size in sizes.items()}
    return msgspec.structs.replace(delta, **columns)


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
