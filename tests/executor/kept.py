"""A keeper of weights without a process."""

import os
from dataclasses import dataclass, field

from common.errors import KeeperError
from common.messages import WeightsKind
from executor_svc.keeper.held import HeldWeights


@dataclass
class Kept:
    kind: WeightsKind
    fingerprint: str
    num_bytes: int
    memory: int
    sources: set[str]


@dataclass
class Keeper:
    """What `executor_svc.model.kept_weights.WeightKeeper` says."""

    kept: list[Kept] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fails: bool = False

    def find_weights(self, kind: WeightsKind, *, fingerprint: str = "", source: str = "") -> HeldWeights | None:
        self._called(f"find {'source' if source else 'fingerprint'}")
        for kept in self.kept:
            if kept.kind == kind and (source in kept.sources if source else fingerprint == kept.fingerprint):
                return HeldWeights(kind, kept.fingerprint, source, kept.num_bytes, os.dup(kept.memory))
        return None

    def deposit_weights(
        self, kind: WeightsKind, fingerprint: str, num_bytes: int, memory_fd: int, source: str = ""
    ) -> HeldWeights:
        self._called("deposit")
        assert num_bytes == os.fstat(memory_fd).st_size
        held = HeldWeights(kind, fingerprint, source, num_bytes, os.dup(memory_fd))
        for kept in self.kept:
            kept.sources.discard(source)
        for kept in self.kept:
            if (kept.kind, kept.fingerprint) == (kind, fingerprint):
                kept.sources |= {source} - {""}
                return held
        self.kept.append(Kept(kind, fingerprint, num_bytes, held.memory_fd, {source} - {""}))
        return held

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.fails:
            raise KeeperError("the keeper is gone")
