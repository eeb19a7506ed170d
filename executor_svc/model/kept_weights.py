"""Prepared weights that outlive the process: found at a machine's keeper and mapped, or read once and deposited there.

On a GPU weights are read into its memory, as without a keeper. A store there would hand out device memory in place of
`WeightWriter` and `map_tensors`; nothing else here would differ.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from common.errors import CheckpointError, KeeperError
from common.logging import get_logger
from common.messages import WeightsKind
from executor_svc.keeper.held import HeldWeights
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.prepared import WeightLayout, Weights
from executor_svc.model.rank_group import RankGroup, smallest
from executor_svc.model.source_key import source_key
from executor_svc.model.weight_file import WeightFileError, WeightWriter, map_tensors
from executor_svc.model.weights import new_in_process, read_weights

log = get_logger("executor")


class WeightKeeper(Protocol):
    """What is needed of a `KeeperLink`. Its calls raise KeeperError if the keeper refuses or is gone."""

    def find_weights(self, kind: WeightsKind, *, fingerprint: str = "", source: str = "") -> HeldWeights | None:
        """See `KeeperLink.find_weights`."""
        ...

    def deposit_weights(
        self, kind: WeightsKind, fingerprint: str, num_bytes: int, memory_fd: int, source: str = ""
    ) -> HeldWeights:
        """See `KeeperLink.deposit_weights`: the file stays the caller's."""
        ...


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
    checkpoint: Checkpoint,
    layout: WeightLayout,
    device: torch.device,
    group: RankGroup,
    keeper: WeightKeeper | None,
    *,
    quantization: str = "none",
    verify: bool = False,
) -> LoadedWeights:
    """Map what the keeper has, or read the checkpoint and give the keeper what was prepared.

    All ranks map, or all read: they share out the hashing of what they read.

    Args:
        checkpoint: to read from.
        layout: of the rank's weights.
        device: where they are to be.
        group: the ranks.
        keeper: None to have them in memory of this process alone.
        quantization: as `ExecutorOptions` has it.
        verify: read and hash the checkpoint even if it is in the state in which it was read before.

    Raises:
        CheckpointError: as `read_weights` does.
    """
    store = None if keeper is None or device.type != "cpu" else _Store(keeper, layout, quantization)
    source = "" if store is None else source_key(checkpoint.folder, layout.config)
    found = None if store is None or verify else store.find(source=source)
    if smallest(group, int(found is not None), device) and found is not None:
        return found
    if store is None:
        weights, fingerprint = read_weights(checkpoint, layout, device, group, new_in_process(device))
        return LoadedWeights(weights, fingerprint)
    del found
    return store.read(checkpoint, group, source, verify=verify)


class _Store:
    """The keeper's weights of one kind."""

    def __init__(self, keeper: WeightKeeper, layout: WeightLayout, quantization: str) -> None:
        self._keeper = keeper
        self._layout = layout
        self._kind = WeightsKind(
            dtype=str(layout.dtype).removeprefix("torch."),
            quantization=quantization,
            packing=layout.packing.name,
            rank=layout.shard.rank,
            num_ranks=layout.shard.size,
        )

    def find(self, *, fingerprint: str = "", source: str = "") -> LoadedWeights | None:
        """What is kept, mapped; None if nothing is, or nothing that can be used."""
        try:
            held = self._keeper.find_weights(self._kind, fingerprint=fingerprint, source=source)
        except KeeperError as error:
            log.warning("kept weights not found", reason=str(error))
            return None
        if held is None:
            return None
        try:
            tensors, of_model = map_tensors(held.memory_fd, held.num_bytes, self._layout.specs, self._kind)
            if of_model != held.fingerprint:
                raise WeightFileError(f"it holds the model {of_model}, not {held.fingerprint}")
        except WeightFileError as error:
            log.warning("kept weights not used", reason=str(error))
            return None
        return LoadedWeights(Weights(self._layout, tensors), of_model, held, kept=True)

    def read(self, checkpoint: Checkpoint, group: RankGroup, source: str, *, verify: bool) -> LoadedWeights:
        """Read a checkpoint, and deposit its weights or find that they are kept."""
        cpu = torch.device("cpu")
        try:
            writer = WeightWriter(self._layout.specs, self._kind)
        except KeeperError as error:
            log.warning("weights cannot be shared", reason=str(error))
            return LoadedWeights(*read_weights(checkpoint, self._layout, cpu, group, new_in_process(cpu)))
        with writer:
            weights, fingerprint = read_weights(checkpoint, self._layout, cpu, group, writer.new)
            if not _is_unchanged(checkpoint, self._layout, source):
                source = ""  # the files are not those that were read
            same = self.find(fingerprint=fingerprint)
            if verify:
                log.info("weights verified", fingerprint=fingerprint, kept=same is not None)
            try:
                if same is not None and same.held is not None:
                    memory = (same.held.num_bytes, same.held.memory_fd)
                    weights = same.weights
                else:
                    writer.seal(fingerprint)
                    memory = (writer.num_bytes, writer.memory)
                held = self._keeper.deposit_weights(self._kind, fingerprint, *memory, source)
            except KeeperError as error:
                log.warning("weights not deposited", reason=str(error))
                held = None
        return LoadedWeights(weights, fingerprint, held)


def _is_unchanged(checkpoint: Checkpoint, layout: WeightLayout, source: str) -> bool:
    """Whether the files are after reading what they were before."""
    try:
        return source_key(checkpoint.folder, layout.config) == source
    except CheckpointError:
        return False
