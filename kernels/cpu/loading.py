"""From what the processor has to kernels that can be called."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernels.cpu.build import BuildError, build, discard
from kernels.cpu.isa import TORCH, Isa, choose_isas, processor_flags
from kernels.cpu.kernels import CpuKernels
from kernels.cpu.library import Library


@dataclass(frozen=True)
class Loaded:
    """What a process computes with.

    Attributes:
        kernels: None where the torch path is used.
        isa: name of the instruction set, or `torch`.
        reason: why this one, in words for the log.
        problem: why a better one could not be used and what is lost, in words for a warning; None if there is none.
    """

    kernels: CpuKernels | None
    isa: str
    reason: str
    problem: str | None


def load(threads: int, say: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> Loaded:
    """The kernels for the best instruction set of this processor, or for that which `BATON_CPU_ISA` names.

    The first call on a machine compiles them, which takes some seconds.

    Args:
        threads: each kernel computes with, at most.
        say: called with a line before a compiler is started.
        environment: that may have `BATON_CPU_ISA`.

    Raises:
        IsaError: `BATON_CPU_ISA` asks for one that does not exist or that the processor cannot run.
    """
    choice = choose_isas(processor_flags(), environment)
    problems: list[str] = []
    for isa in choice.candidates:
        try:
            library = _library(isa, say)
        except (BuildError, OSError, AttributeError) as error:
            problems.append(f"no kernels for {isa.name}: {error}")
            continue
        if library.request_tiles() != 0:
            problems.append(f"no kernels for {isa.name}: the system refuses the tile registers")
            continue
        return Loaded(CpuKernels(library, threads), isa.name, choice.reason, "; ".join(problems) or None)
    if not problems:
        return Loaded(None, TORCH, choice.reason, None)
    problems.append("plain torch runs instead, at a fraction of the speed")
    return Loaded(None, TORCH, "nothing better could be built", "; ".join(problems))


def _library(isa: Isa, say: Callable[[str], None]) -> Library:
    """The library, built anew if the one in the cache is damaged, or lacks a function.

    Raises:
        BuildError, OSError, AttributeError: there is none that can be used.
    """
    path = build(isa, say)
    try:
        return Library(path)
    except (OSError, AttributeError):
        discard(path)
        return Library(build(isa, say))
