"""The kernels of every instruction set that this machine can run, compiled once."""

import pytest

from kernels.cpu import ISA_VARIABLE, CpuKernels, IsaError, load

THREADS = 2


@pytest.fixture(scope="session", params=["avx512", "avx2", "amx-emulated", "amx"])
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    try:
        loaded = load(THREADS, print, {ISA_VARIABLE: request.param})
    except IsaError as error:
        pytest.skip(str(error))
    assert loaded.kernels is not None, loaded.problem  # the tests' machine has a compiler
    assert loaded.isa == request.param
    return loaded.kernels
