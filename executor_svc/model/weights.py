"""From a checkpoint to prepared weights. Parameters are made one after the other, so there are never two copies of a
model: tensors stream from the files into their places in a fused matrix, which is packed into its place. A rank reads
what it keeps; the ranks share out the hashing."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec
import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from executor_svc.model.checkpoint import HEAD, TensorSource, check_tensors
from executor_svc.model.checkpoint_layout import Parameter, Role
from executor_svc.model.config import DecoderConfig, identity
from executor_svc.model.packing import AS_IS, Matrix, Packing, TensorSpec
from executor_svc.model.prepared import WeightLayout, Weights
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.sharding import Shard

NewTensor = Callable[[str, TensorSpec], Tensor]
"""Makes the memory of a prepared tensor, by its name."""


def load_weights(
    checkpoint: TensorSource,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    group: RankGroup = SINGLE_RANK,
    packing: Packing = AS_IS,
) -> tuple[Weights, str]:
    """`read_weights` into memory of this process alone."""
    layout = WeightLayout(config, Shard.of(config, group.rank, group.size), dtype, packing)
    return read_weights(checkpoint, layout, device, group, new_in_process(device))


def new_in_process(device: torch.device) -> NewTensor:
    """Makes tensors in memory of this process alone."""
    return lambda _, spec: torch.empty(spec.shape, dtype=spec.dtype, device=device)


def read_weights(
    checkpoint: TensorSource, layout: WeightLayout, device: torch.device, group: RankGroup, new: NewTensor
) -> tuple[Weights, str]:
    """Read and prepare this rank's part of the weights, and hash all of them with the other ranks.

    Args:
        device: that `new` makes tensors on.
        new: called once for each tensor that the layout names.

    Returns:
        The weights, and the model's fingerprint: BLAKE3 (64 hex digits) over the configuration and over the name, the
        stored dtype and the BLAKE3 of the stored bytes of every tensor that is used. Neither the files they are in nor
        the layout's dtype nor the packing nor the number of ranks changes it, and it is the same on every rank. It says
        whose weights a keeper gives to whom, so nobody may be able to make other weights of the same one.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape than the configuration says, or stored in
            a dtype that is not supported (the message names them), or the ranks cannot share the model out.
    """
    # A tied checkpoint may still hold a head, as a copy (`has_other_head`).
    names = [name for name in checkpoint.names if not (layout.config.tied and name == HEAD)]
    check_tensors(checkpoint, names, layout.parameters)
    reading = _Reading(checkpoint, layout, device, group, new, names)
    for parameter in layout.parameters:
        reading.add(parameter)
    weights = Weights(layout, reading.tensors)
    digests = _shared(reading.digests, len(names), device, group)
    stored = [(name, checkpoint.header(name)[1], digest) for name, digest in zip(names, digests, strict=True)]
    return weights, blake3(msgspec.msgpack.encode((identity(layout.config), stored))).hexdigest()


class _Reading:
    """The weights that were prepared so far.

    Attributes:
        digests: of the stored tensors that this rank hashes, by their place among all names.
    """

    def __init__(
        self,
        checkpoint: TensorSource,
        layout: WeightLayout,
        device: torch.device,
        group: RankGroup,
        new: NewTensor,
        names: Sequence[str],
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.digests: dict[int, Future[bytes]] = {}
        self._checkpoint = checkpoint
        self._layout = layout
        self._device = device
        self._new = new
        self._hashed = {name: index for index, name in enumerate(names) if index % group.size == group.rank}
        self._unpacked = torch.empty(0, dtype=layout.dtype, device=device)

    def add(self, parameter: Parameter) -> None:
        """Read a parameter and prepare it."""
        if self._layout.is_alias(parameter):
            return
        if not parameter.kept:
            self._fill(parameter, None)
            return
        if parameter.role is Role.TENSOR or self._layout.packing.as_is:
            name = parameter.name if parameter.role is Role.TENSOR else f"{parameter.name}.weight"
            self._fill(parameter, self._make(name))
            return
        weight = self._unpacked_weight(parameter)
        parts = self._layout.packing.parts(parameter.matrix_shape, self._layout.dtype)
        made = {part: self._make(f"{parameter.name}.{part}") for part in parts}
        self._layout.packing.pack(weight, Matrix(parameter.matrix_shape, made))

    def _make(self, name: str) -> Tensor:
        self.tensors[name] = self._new(name, self._layout.specs[name])
        return self.tensors[name]

    def _unpacked_weight(self, parameter: Parameter) -> Tensor:
        """A matrix as it is, valid until the next one: all of them take turns in memory for the largest."""
        if parameter.same_as is not None:
            return self.tensors[parameter.same_as]
        if parameter.num_elements > len(self._unpacked):
            self._unpacked = self._unpacked.new_empty(parameter.num_elements)
        weight = self._unpacked[: parameter.num_elements].view(parameter.shape)
        self._fill(parameter, weight)
        return weight

    def _fill(self, parameter: Parameter, target: Tensor | None) -> None:
        if target is not None and parameter.padding is not None:
            target[parameter.padding :] = 0
        for stored in parameter.stored:
            if target is not None:
                self._checkpoint.copy(stored.name, stored.part, target[stored.target])
            # After the copy: what is not in memory is read once, and in order. A fused tensor is stored for several.
            if (place := self._hashed.pop(stored.name, None)) is not None:
                self.digests[place] = self._checkpoint.digest(stored.name)


def _shared(own: dict[int, Future[bytes]], num_names: int, device: torch.device, group: RankGroup) -> list[bytes]:
    """Add up the digests of all ranks: each rank has zeros for the tensors that other ranks hashed."""
    digests = np.zeros((num_names, blake3.digest_size), dtype=np.uint8)
    for place, digest in own.items():
        digests[place] = np.frombuffer(digest.result(), dtype=np.uint8)
    total = torch.from_numpy(digests.view(np.int32)).to(device)
    group.all_reduce(total)
    return [row.tobytes() for row in total.cpu().numpy()]
