"""Prepared weights that outlive the process: found at a keeper and mapped, or read once and deposited there."""

from dataclasses import dataclass
from typing import Protocol

import torch

from common.errors import BatonError, CheckpointError, KeeperError
from common.logging import get_logger
from common.messages import WeightsKind
from executor_svc.keeper.held import HeldWeights
from executor_svc.model.checkpoint import TensorSource
from executor_svc.model.prepared import WeightLayout, Weights
from executor_svc.model.rank_group import RankGroup
from executor_svc.model.source_key import source_key
from executor_svc.model.weight_file import FORMAT_VERSION, WeightFileError, WeightWriter, read_tensors
from executor_svc.model.weight_memory import NoRoom, WeightMemories
from executor_svc.model.weights import new_in_process, read_weights

OTHER_PARTS_S = 5.0  # from a group's first part at the keeper to its last one

log = get_logger("executor")


class WeightKeeper(Protocol):
    """What is needed of a `KeeperLink`. Its calls raise KeeperError if the keeper refuses or is gone."""

    def find_weights(
        self,
        kind: WeightsKind,
        *,
        fingerprint: str = "",
        source: str = "",
        reads: bool = False,
        wait_s: float = 0.0,
    ) -> HeldWeights | None:
        """See `KeeperLink.find_weights`."""
        ...

    def deposit_weights(
        self, kind: WeightsKind, fingerprint: str, num_bytes: int, memory_fd: int, source: str = ""
    ) -> HeldWeights:
        """See `KeeperLink.deposit_weights`: the file stays the caller's."""
        ...

    def make_room(self, device: str, *, pools: bool = True) -> int:
        """See `KeeperLink.make_room`."""
        ...

    def reads_for_itself(self) -> None:
        """See `KeeperLink.reads_for_itself`."""
        ...


@dataclass(frozen=True)
class WeightStore:
    """Where weights outlive the process.

    Attributes:
        keeper: keeps them.
        memories: what they are in.
    """

    keeper: WeightKeeper
    memories: WeightMemories


@dataclass(frozen=True)
class LoadedWeights:
    """Weights, and where they came from.

    Attributes:
        fingerprint: of the model.
        held: the file that they are in; None if they are in memory of this process alone.
        kept: whether they were kept, and no checkpoint was read for them.
    """

    weights: Weights
    fingerprint: str
    held: HeldWeights | None = None
    kept: bool = False


def obtain_weights(
    checkpoint: TensorSource,
    layout: WeightLayout,
    device: torch.device,
    group: RankGroup,
    store: WeightStore | None,
    *,
    quantization: str = "none",
    verify: bool = False,
) -> LoadedWeights:
    """Map what the keeper has, or read the checkpoint and give the keeper what was prepared.

    All ranks map, or all read: they share out the hashing of what they read. The first rank looks first, and only it
    waits for another executor that reads the same, so that no two groups wait for each other's ranks.

    Args:
        checkpoint: to read from.
        layout: of the rank's weights.
        device: where they are to be.
        group: the ranks.
        store: of the same device; None to have them in memory of this process alone.
        quantization: as `ExecutorOptions` has it.
        verify: read and hash the checkpoint even if it is in the state in which it was read before. While that lasts
            there are two copies.

    Raises:
        CheckpointError: as `read_weights` does.
    """
    kept = None if store is None else _OneKind(store, layout, device, quantization)
    source = "" if kept is None else source_key(checkpoint.folder, layout.config)
    found = None
    if group.rank == 0 and kept is not None and not verify:
        found = kept.find(source=source, reads=True)
    (is_found,), *_ = group.gather([found is not None])
    if group.rank > 0 and kept is not None and is_found:
        found = kept.find(source=source, wait_s=OTHER_PARTS_S)
    if all(row[0] for row in group.gather([found is not None])) and found is not None:
        return found
    if kept is None:
        weights, fingerprint = read_weights(checkpoint, layout, device, group, new_in_process(device))
        return LoadedWeights(weights, fingerprint)
    del found
    return kept.read(checkpoint, group, source, verify=verify)


class _OneKind:
    """The keeper's weights of one kind."""

    def __init__(self, store: WeightStore, layout: WeightLayout, device: torch.device, quantization: str) -> None:
        self._keeper = store.keeper
        self._memories = store.memories
        self._layout = layout
        self._device = device
        self._kind = WeightsKind(
            dtype=str(layout.dtype).removeprefix("torch."),
            quantization=quantization,
            packing=f"{layout.packing.name} file-{FORMAT_VERSION}{'' if layout.has_head else ' headless'}",
            rank=layout.shard.rank,
            num_ranks=layout.shard.size,
            device=store.memories.device,
        )

    def find(
        self, *, fingerprint: str = "", source: str = "", reads: bool = False, wait_s: float = 0.0
    ) -> LoadedWeights | None:
        """What is kept, mapped; None if nothing is, or nothing that can be used.

        Args:
            reads, wait_s: see `KeeperLink.find_weights`.
        """
        try:
            held = self._keeper.find_weights(
                self._kind, fingerprint=fingerprint, source=source, reads=reads, wait_s=wait_s
            )
        except KeeperError as error:
            log.warning("kept weights not found", reason=str(error))
            return None
        if held is None:
            return None
        try:
            content = self._memories.map(held.memory_fd, held.num_bytes)
            tensors, of_model = read_tensors(content, self._layout.specs, self._kind)
            if of_model != held.fingerprint:
                raise WeightFileError(f"it holds the model {of_model}, not {held.fingerprint}")
        except BatonError as error:
            log.warning("kept weights not used", reason=str(error))
            return None
        return LoadedWeights(Weights(self._layout, tensors), of_model, held, kept=True)

    def read(self, checkpoint: TensorSource, group: RankGroup, source: str, *, verify: bool) -> LoadedWeights:
        """Read a checkpoint, and deposit its weights or find that they are kept."""
        try:
            writer = self._writer()
        except BatonError as error:
            self._cannot_share(str(error))
            new = new_in_process(self._device)
            return LoadedWeights(*read_weights(checkpoint, self._layout, self._device, group, new))
        with writer:
            weights, fingerprint = read_weights(checkpoint, self._layout, self._device, group, writer.new)
            if not _is_unchanged(checkpoint, self._layout, source):
                self._cannot_share("the checkpoint's files changed while they were read")
                return LoadedWeights(weights, fingerprint)
            same = self.find(fingerprint=fingerprint)
            if verify:
                log.info("weights verified", fingerprint=fingerprint, kept=same is not None)
            try:
                if same is not None and same.held is not None:
                    memory = (same.held.num_bytes, same.held.memory_fd)
                    weights = same.weights
                else:
                    writer.seal(fingerprint)
                    memory = (writer.num_bytes, writer.descriptor)
                held = self._keeper.deposit_weights(self._kind, fingerprint, *memory, source)
            except BatonError as error:
                log.warning("weights not deposited", reason=str(error))
                held = None
        return LoadedWeights(weights, fingerprint, held)

    def _cannot_share(self, reason: str) -> None:
        """Tell others not to wait for what this process reads."""
        log.warning("weights cannot be shared", reason=reason)
        self._keeper.reads_for_itself()

    def _writer(self) -> WeightWriter:
        """A new file. If there is no room, weights that no executor uses go, and then pools: one may be this one's."""
        for pools in (False, True):
            try:
                return WeightWriter(self._layout.specs, self._kind, self._memories)
            except NoRoom:
                self._keeper.make_room(self._kind.device, pools=pools)
        return WeightWriter(self._layout.specs, self._kind, self._memories)


def _is_unchanged(checkpoint: TensorSource, layout: WeightLayout, source: str) -> bool:
    """Whether the files are after reading what they were before."""
    try:
        return source_key(checkpoint.folder, layout.config) == source
    except CheckpointError:
        return False
