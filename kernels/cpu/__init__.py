"""C++ kernels for CPUs: the functions of `kernels.reference`, in bf16 and int8, for AMX, AVX-512 or AVX2."""

import importlib.util
import sys

if importlib.util.find_spec("torch") is None:  # for `python -m kernels.cpu`; an executor has looked before
    sys.stderr.write("The CPU kernels need torch, which is not installed: install Baton with its extra `executor`.\n")
    sys.exit(2)

from kernels.cpu.isa import ISA_VARIABLE, IsaError
from kernels.cpu.kernels import CpuKernels
from kernels.cpu.loading import Loaded, load
from kernels.cpu.packing import PACKING_VERSION, PANEL, PackedWeight

__all__ = ["ISA_VARIABLE", "PACKING_VERSION", "PANEL", "CpuKernels", "IsaError", "Loaded", "PackedWeight", "load"]
