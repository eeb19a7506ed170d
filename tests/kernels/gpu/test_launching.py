"""Kernels that are launched past Triton's binder: what is launched is what Triton would have chosen."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from kernels.gpu.launching import LaunchableKernel


def jitted(first, second, SIZE):
    pass


jitted.__annotations__["SIZE"] = triton.language.constexpr


TENSORS = st.builds(
    lambda offset, dtype: torch.zeros(32, dtype=dtype)[offset:],
    st.integers(0, 16),
    st.sampled_from([torch.float32, torch.int32, torch.bfloat16]),
)
NUMBERS = st.sampled_from([0, 1, 2, 16, -16, 2**31 - 1, 2**31, 2**31 + 16, -(2**31)]) | st.integers(-99, 99)
ARGUMENTS = (NUMBERS, TENSORS, st.floats(0, 1), st.booleans(), st.none())
ANY = st.one_of(ARGUMENTS)
PAIRS = st.one_of(st.tuples(ANY, ANY), *(st.tuples(each, each) for each in ARGUMENTS))


class Driver:
    """A device without an address, in place of Triton's."""

    device = 0

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 100 + device


class Kernel(JITFunction):
    """Hands out what it compiled as Triton does, and counts."""

    def __init__(self) -> None:
        super().__init__(jitted)
        self.bound: list[tuple[object, ...]] = []
        self.launched: list[tuple[object, ...]] = []

    def run(self, *args: object, grid: Any, warmup: bool, **constants: object) -> Any:
        self.bound.append((grid, *args, *constants.values()))
        return SimpleNamespace(
            function="function", packed_metadata="metadata", run=lambda *given: self.launched.append(given)
        )


@pytest.fixture
def driver() -> Iterator[Driver]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.driver, "_active", driver := Driver())
        yield driver


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PAIRS)
def test_what_is_launched_again_is_what_triton_would_launch(driver: Driver, pair: tuple[object, object]) -> None:
    """A kernel that was not bound anew for the second arguments is the binary that Triton has for both."""
    kernel = Kernel()
    launchable = LaunchableKernel(kernel)
    for first in pair:
        launchable.launch((1,), first, 3, SIZE=4)
    bind = create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32)))
    if len(kernel.bound) == 1:
        one, other = (bind(first, 3, SIZE=4)[1] for first in pair)
        assert one == other


def test_a_kernel_is_bound_once_for_a_kind_of_arguments(driver: Driver) -> None:
    kernel = Kernel()
    launchable = LaunchableKernel(kernel)
    tensor = torch.zeros(64)
    for rows in (5, 6, 7):
        launchable.launch((rows,), tensor, rows, SIZE=4, num_warps=2)
    assert kernel.bound == [((5,), tensor, 5, 4, 2)]
    assert [given[:6] for given in kernel.launched] == [(rows, 1, 1, 100, "function", "metadata") for rows in (6, 7)]
    assert kernel.launched[1][9:] == (tensor, 7, 4)  # options are no parameters
    changes: list[tuple[Any, ...]] = [(tensor[1:], 5, 4), (tensor.int(), 5, 4), (tensor, 16, 4), (tensor, 1, 4)]
    for number, (first, second, size) in enumerate([*changes, (tensor, 5, 8)]):
        launchable.launch((1, 2), first, second, SIZE=size, num_warps=2)
        assert len(kernel.bound) == 2 + number
    driver.device = 1
    launchable.launch((1,), tensor, 5, SIZE=4, num_warps=2)
    assert len(kernel.bound) == 7
    launchable.launch((1, 2), tensor, 5, SIZE=4, num_warps=2)
    assert kernel.launched[-1][:4] == (1, 2, 1, 101)


@pytest.mark.usefixtures("driver")
def test_triton_launches_what_it_compiled_in_the_same_way() -> None:
    """Of the installed Triton: how a compiled kernel is launched may change from one version to the next."""
    kernel, tensor = Kernel(), torch.zeros(64)
    launchable = LaunchableKernel(kernel)
    for _ in range(2):
        launchable.launch((3, 2), tensor, 7, SIZE=4)
    compiled = kernel.run(grid=(), warmup=False)
    compiled._init_handles = compiled.launch_metadata = lambda *_: None
    CompiledKernel.__getitem__(compiled, (3, 2, 1))(tensor, 7, 4, stream=100)
    ours, tritons = kernel.launched
    assert ours == (*tritons[:7], None, None, *tritons[9:])  # without Triton's hooks before and after
