"""What a case of bench_kernels.py is: a kernel at one shape, the bytes it has to move, and what it is compared with.

Bytes are counted as if each went to or from memory once: inputs that are read, outputs that are written, and the part
of caches and tables that the step touches. Operations are counted for attention and products; memory bounds all others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.rig.gpu_timing import Call
from kernels.arguments import Adjustments, AttentionRows, KVCache, RopeStoreLayer
from kernels.reference import SamplingInputs

ITEM_BYTES = 2  # of bfloat16
INDEX_BYTES = 4  # of int32
VOCAB_SIZE = 151_936

Tensors = dict[str, Tensor]
Contestant = Callable[[Tensors], Call]
"""Does what a kernel does once (planning, workspace), and returns the call that is timed."""


@dataclass(frozen=True)
class ModelShape:
    """A model's shape."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int = 8
    head_dim: int = 128
    vocab_size: int = VOCAB_SIZE


MODELS = (
    ModelShape("Qwen3-0.6B", 1024, 3072, 16),
    ModelShape("Qwen3-4B", 2560, 9728, 32),
    ModelShape("Qwen3-8B", 4096, 12288, 32),
)


@dataclass(frozen=True)
class KernelCase:
    """One kernel at one shape.

    Attributes:
        kernel: name of its twin in `kernels.reference`.
        model: name of the model.
        step: what the step is like, by name.
        bytes_moved: bytes that have to be read and written.
        tensors: makes the tensors that the kernel and its twin take, by name, in memory of their own.
        ours: our kernel.
        eager: the same work in plain torch, a function of the tensors.
        others: further contestants, by name.
        scalars: the kernel's arguments that are not tensors.
        operations: floating-point operations that count.
    """

    kernel: str
    model: str
    step: Mapping[str, int | str]
    bytes_moved: int
    tensors: Callable[[torch.device], Tensors]
    ours: Contestant
    eager: Callable[..., object] | None = None
    others: Mapping[str, Contestant] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    operations: int = 0

    def contestants(self, compiled: bool) -> dict[str, Contestant]:
        """All contestants by name; with `compiled`, torch.compile of the eager function, too."""
        found = {"ours": self.ours, **self.others}
        if self.eager is not None:
            found["torch"] = contestant(self.eager)
        if self.eager is not None and compiled:
            found["compiled"] = contestant(torch.compile(self.eager, dynamic=False))
        return found

    def bytes_taken(self) -> int:
        """Memory of one set of tensors."""
        return sum(tensor.nbytes for tensor in self.tensors(torch.device("meta")).values())


def contestant(function: Callable[..., object], **scalars: float) -> Contestant:
    """A contestant that is a function of the tensors and needs no preparation."""
    return lambda tensors: partial(function, **tensors, **scalars)


def grouped(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel's tensors and scalars as it takes them: some of them travel together."""
    given = dict(arguments)
    if "q_weight" in given:
        given["norms"] = (given.pop("q_weight"), given.pop("k_weight"))
    structs = {"cache": KVCache, "rows": AttentionRows, "layer": RopeStoreLayer}
    structs |= {"inputs": SamplingInputs, "adjustments": Adjustments}
    for name, struct in structs.items():
        members = {"keys": "key_cache", "values": "value_cache"}
        wanted = {field.name: members.get(field.name, field.name) for field in fields(struct)}
        if given.keys() >= set(wanted.values()):
            given[name] = struct(**{field: given.pop(argument) for field, argument in wanted.items()})
    return given


def normal(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers: products of zeros would take less power, and so less time."""
    return torch.randn(shape, dtype=dtype, device=device)


def indices(values: Any, device: torch.device) -> Tensor:
    """An int32 tensor."""
    return torch.as_tensor(values, dtype=torch.int32).to(device)
