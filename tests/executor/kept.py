"""A keeper of weights in this process, and what tests say of one."""

import os
from dataclasses import dataclass, field

from common.errors import BatonError
from common.messages.keeper import WeightsKind


@dataclass
class Held:
    kind: WeightsKind
    fingerprint: str
    memory: int
    sources: set[str]


@dataclass
class Keeper:
    """What `executor_svc.model.kept_weights.WeightKeeper` says, without a process."""

    held: list[Held] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fails: bool = False

    def find_weights(self, kind: WeightsKind, *, fingerprint: str = "", source: str = "") -> int | None:
        self._called(f"find {'source' if source else 'fingerprint'}")
        for held in self.held:
            if held.kind == kind and (source in held.sources if source else fingerprint == held.fingerprint):
                return os.dup(held.memory)
        return None

    def deposit_weights(self, kind: WeightsKind, fingerprint: str, memory: int, num_bytes: int, source: str) -> None:
        self._called("deposit")
        assert num_bytes == os.fstat(memory).st_size
        for held in self.held:
            held.sources.discard(source)
        for held in self.held:
            if (held.kind, held.fingerprint) == (kind, fingerprint):
                held.sources |= {source} - {""}
                return
        self.held.append(Held(kind, fingerprint, os.dup(memory), {source} - {""}))

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.fails:
            raise BatonError("the keeper is gone")
