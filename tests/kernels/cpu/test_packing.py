"""Executors compute with what others packed: a layout that changes takes another `PACKING_VERSION`."""

import pytest
import torch
import xxhash

from kernels.cpu import PACKING_VERSION, CpuKernels

LAYOUTS = {  # of `PACKING_VERSION`, gated or not, int8 or not: xxh3_64 of panels and scales
    (1, False, False): "c5314f56d88d7a11",
    (1, False, True): "3012e95da7bbc234",
    (1, True, False): "cf5d93f1710f3ef5",
    (1, True, True): "2c11d50411cdb960",
}


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_a_version_is_a_layout(kernels: CpuKernels, gated: bool, int8: bool) -> None:
    weight = torch.arange(-40 * 70, 40 * 70).remainder(251).sub(125).view(80, 70).to(torch.bfloat16)
    packed = (kernels.pack_gate_up if gated else kernels.pack)(weight, int8=int8)
    hashed = xxhash.xxh3_64(packed.panels.view(torch.uint8).numpy().tobytes())
    if packed.scales is not None:
        hashed.update(packed.scales.numpy().tobytes())
    assert hashed.hexdigest() == LAYOUTS[PACKING_VERSION, gated, int8]


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_packing_leaves_nothing_of_the_memory_as_it_was(kernels: CpuKernels, gated: bool, int8: bool) -> None:
    """Padding included: what others map must not depend on what was there."""
    weight = torch.ones(38, 70, dtype=torch.bfloat16)
    found = []
    for before in (0, 255):
        packed = kernels.empty_packed(70, 38, gated=gated, int8=int8)
        parts = [packed.panels] + ([packed.scales] if packed.scales is not None else [])
        for part in parts:
            part.view(torch.uint8).fill_(before)
        kernels.pack_into(weight, packed)
        found.append([part.view(torch.uint8).tolist() for part in parts])
    assert found[0] == found[1]
