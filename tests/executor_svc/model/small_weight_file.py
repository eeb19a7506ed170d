"""A small file of prepared weights."""

import os

import torch

from common.messages import WeightsKind
from executor_svc.model.packing import TensorSpec
from executor_svc.model.weight_file import WeightWriter, read_tensors
from tests.executor_svc.obtaining import MEMFDS

KIND = WeightsKind(dtype="bfloat16", quantization="none", packing="plain-1")
SPECS = {
    "embedding": TensorSpec(torch.bfloat16, (7, 3)),
    "layers.0.qkv.panels": TensorSpec(torch.uint8, (1000,)),
    "layers.0.qkv.scales": TensorSpec(torch.float32, (5, 2)),
}


def content(spec: TensorSpec, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (spec.num_bytes,), dtype=torch.uint8, generator=generator)


def write(specs: dict[str, TensorSpec] = SPECS, kind: WeightsKind = KIND) -> tuple[int, dict[str, torch.Tensor]]:
    """A file, and the tensors that its writer has."""
    with WeightWriter(specs, kind, MEMFDS) as writer:
        tensors = {name: writer.new(name, spec) for name, spec in specs.items()}
        for seed, (name, tensor) in enumerate(tensors.items()):
            tensor.view(-1).view(torch.uint8).copy_(content(specs[name], seed))
        writer.seal("f" * 64)
        return os.dup(writer.descriptor), tensors


def read(memory: int, specs: dict[str, TensorSpec] = SPECS) -> dict[str, torch.Tensor]:
    return read_tensors(MEMFDS.map(memory, os.fstat(memory).st_size), specs, KIND)[0]
