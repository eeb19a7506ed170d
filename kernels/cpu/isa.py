"""Which instruction set the C++ kernels are for: the best that this processor has, or a lower one for tests."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ISA_VARIABLE = "BATON_CPU_ISA"
TORCH = "torch"  # no C++ kernels

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni", "avx2", "fma")
_AVX512_FLAGS = (
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mavx512vnni", "-mavx2", "-mfma"),
)
_AMX = ("amx_tile", "amx_bf16", "amx_int8")
_AMX_FLAGS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")


@dataclass(frozen=True)
class Isa:
    """An instruction set.

    Attributes:
        name: as in `BATON_CPU_ISA`.
        needs: flags in /proc/cpuinfo of a processor that can run it.
        compiler_flags: that make the compiler use it.
        only_asked_for: it is for tests, and never chosen.
    """

    name: str
    needs: tuple[str, ...]
    compiler_flags: tuple[str, ...]
    only_asked_for: bool = False


# The best first. The emulation runs the code for AMX on any processor with AVX-512, slowly.
ISAS = (
    Isa("amx", (*_AVX512, *_AMX), (*_AVX512_FLAGS, *_AMX_FLAGS)),
    Isa("avx512", _AVX512, _AVX512_FLAGS),
    Isa("avx2", ("avx2", "fma"), ("-mavx2", "-mfma")),
    Isa("amx-emulated", _AVX512, (*_AVX512_FLAGS, "-DBATON_EMULATE_AMX"), only_asked_for=True),
)


class IsaError(ValueError):
    """`BATON_CPU_ISA` asks for what does not exist, or for what this processor does not have."""


@dataclass(frozen=True)
class IsaChoice:
    """Instruction sets to try, the best first, and why in words. If all fail, the torch path is used."""

    candidates: tuple[Isa, ...]
    reason: str


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The processor's feature flags; empty where /proc/cpuinfo has none (Linux on x86 has)."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def choose_isas(flags: frozenset[str], environment: Mapping[str, str] = os.environ) -> IsaChoice:
    """The instruction sets of a processor with `flags`, or the one that `BATON_CPU_ISA` asks for.

    Raises:
        IsaError: it asks for one that does not exist or that the processor cannot run.
    """
    runnable = [isa for isa in ISAS if flags.issuperset(isa.needs)]
    names = [isa.name for isa in runnable] + [TORCH]
    asked = environment.get(ISA_VARIABLE, "").strip()
    if asked:
        if asked not in names:
            problem = "this processor cannot run it" if asked in {isa.name for isa in ISAS} else "there is no such one"
            raise IsaError(f"{ISA_VARIABLE}={asked}: {problem}; there are {', '.join(names)}")
        chosen = tuple(isa for isa in runnable if isa.name == asked)
        return IsaChoice(chosen, f"{ISA_VARIABLE} asks for it")
    candidates = tuple(isa for isa in runnable if not isa.only_asked_for)
    if not candidates:
        return IsaChoice((), "the processor has neither AVX-512 with bf16 nor AVX2 with FMA")
    return IsaChoice(candidates, "the best this processor has")
