"""C++ kernels for CPUs: the functions of `kernels.reference`, in bf16 and int8, for AMX, AVX-512 or AVX2."""

from kernels.cpu.isa import ISA_VARIABLE, IsaError
from kernels.cpu.kernels import CpuKernels
from kernels.cpu.loading import Loaded, load
from kernels.cpu.packing import PACKING_VERSION, PANEL, PackedWeight

__all__ = ["ISA_VARIABLE", "PACKING_VERSION", "PANEL", "CpuKernels", "IsaError", "Loaded", "PackedWeight", "load"]
