"""Prepared weights that outlive the process: found at a machine's keeper and mapped, or read once and deposited there.

On a GPU weights are read into its memory, as without a keeper. A store there would hand out device memory in place of
`WeightWriter` and `map_tensors`; nothing else here would differ.
"""

import os
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from common.errors import BatonError, CheckpointError
from common.logging import get_logger
from common.messages import WeightsKind
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.prepared import WeightLayout, Weights
from executor_svc.model.rank_group import RankGroup, smallest
from executor_svc.model.source_key import source_key
from executor_svc.model.weight_file import WeightFileError, WeightWriter, map_tensors
from executor_svc.model.weights import new_in_process, read_weights

log = get_logger("executor")


class WeightKeeper(Protocol):
    """The keeper of a machine, as far as weights go. Calls raise BatonError or OSError if it cannot be reached."""

    def find_weights(self, kind: WeightsKind, *, fingerprint: str = "", source: str = "") -> int | None:
        """A file of weights of this kind, by the model's fingerprint or by the key of what it was read from.

        The caller closes it. None if there is none.
        """
        ...

    def deposit_weights(self, kind: WeightsKind, fingerprint: str, memory: int, num_bytes: int, source: str) -> None:
        """Keep a sealed file; one that is kept already gets another key. The caller still has to close the file."""
        ...


@dataclass(frozen=True)
class WeightDeposit:
    """What a keeper keeps for this rank, or another one could.

    Attributes:
        source: key of the files that the weights were read from; empty if they changed meanwhile.
        memory: the sealed file, which stays open.
    """

    kind: WeightsKind
    fingerprint: str
    source: str
    memory: int

    def give(self, keeper: WeightKeeper) -> None:
        """Deposit the weights, or their key if they are there; what goes wrong is logged."""
        num_bytes = os.fstat(self.memory).st_size
        try:
            keeper.deposit_weights(self.kind, self.fingerprint, self.memory, num_bytes, self.source)
        except (BatonError, OSError) as error:
            log.warning("weights not deposited", reason=str(error))


@dataclass(frozen=True)
class LoadedWeights:
    """Weights, and where they came from.

    Attributes:
        fingerprint: of the model.
        kept: whether no checkpoint was read for them.
        mapped: whether they are memory that another process prepared.
        deposit: None if they are in memory that no other process can map.
    """

    weights: Weights
    fingerprint: str
    kept: bool = False
    mapped: bool = False
    deposit: WeightDeposit | None = None


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
    read = store.read(checkpoint, group, source)
    if verify:
        log.info("weights verified", fingerprint=read.fingerprint, kept=read.mapped)
    return read


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
            memory = self._keeper.find_weights(self._kind, fingerprint=fingerprint, source=source)
        except (BatonError, OSError) as error:
            log.warning("kept weights not found", reason=str(error))
            return None
        if memory is None:
            return None
        try:
            tensors, manifest = map_tensors(memory, self._layout.specs, self._kind)
            if fingerprint and manifest.fingerprint != fingerprint:
                raise WeightFileError(f"it holds the model {manifest.fingerprint}, not {fingerprint}")
        except WeightFileError as error:
            os.close(memory)
            log.warning("kept weights not used", reason=str(error))
            return None
        deposit = WeightDeposit(self._kind, manifest.fingerprint, source, memory)
        weights = Weights(self._layout, tensors)
        return LoadedWeights(weights, manifest.fingerprint, kept=True, mapped=True, deposit=deposit)

    def read(self, checkpoint: Checkpoint, group: RankGroup, source: str) -> LoadedWeights:
        """Read a checkpoint, and deposit its weights or find that they are kept."""
        cpu = torch.device("cpu")
        try:
            writer = WeightWriter(self._layout.specs)
        except OSError as error:
            log.warning("weights cannot be shared", reason=str(error))
            return LoadedWeights(*read_weights(checkpoint, self._layout, cpu, group, new_in_process(cpu)))
        with writer:
            weights, fingerprint = read_weights(checkpoint, self._layout, cpu, group, writer.new)
            loaded = self.find(fingerprint=fingerprint) or self._seal(writer, weights, fingerprint)
        if loaded.deposit is None:
            return loaded
        if not _is_unchanged(checkpoint, self._layout, source):
            source = ""
        deposit = replace(loaded.deposit, source=source)
        deposit.give(self._keeper)
        return replace(loaded, kept=False, deposit=deposit)

    def _seal(self, writer: WeightWriter, weights: Weights, fingerprint: str) -> LoadedWeights:
        try:
            memory = writer.seal(self._kind, fingerprint)
        except OSError as error:
            log.warning("weights cannot be shared", reason=str(error))
            return LoadedWeights(weights, fingerprint)
        return LoadedWeights(weights, fingerprint, deposit=WeightDeposit(self._kind, fingerprint, "", memory))


def _is_unchanged(checkpoint: Checkpoint, layout: WeightLayout, source: str) -> bool:
    """Whether the files are after reading what they were before."""
    try:
        return source_key(checkpoint.folder, layout.config) == source
    except CheckpointError:
        return False
