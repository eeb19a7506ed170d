"""Compiles kernels as their launchers would launch them, on a machine without a GPU, and reads what they take.

A driver that knows an architecture but no device stands in for Triton's. Launchers run on meta tensors and pick what
they would pick in production; Triton specializes and compiles, and launches nothing. What a kernel takes stands in its
cubin: registers, stack (spilled registers and local arrays) and static shared memory. Dynamic shared memory and
Blackwell's tensor memory stand in Triton's metadata.
"""

import contextlib
import io
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from tests.kernels.gpu.wgmma_registers import misused_registers

SHARED_BYTES_LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Shared memory that a block may have, by architecture (CUDA C++ Programming Guide, compute capabilities)."""
TENSOR_COLUMNS_LIMIT = 512
"""Columns of tensor memory that a block may have (PTX ISA, tcgen05.alloc)."""
WIDE_LOAD = re.compile(r"ld\.global\S*\.(v4\.[bfu]32|v2\.[bfu]64|v8\.[bfu]32|v4\.[bfu]64)|cp\.async\.cg\.[^;]*, 0x10,")
"""PTX that reads 128 bits of global memory or more at once, into registers or into shared memory."""

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


@dataclass(frozen=True)
class Launch:
    """A call of a launcher.

    Attributes:
        name: what is launched, in words.
        call: does it.
    """

    name: str
    call: Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """One thing to compile.

    Attributes:
        kernel: name of the kernel's function.
        config: its constexprs and compile options, each as `name=value`.
        arguments: the others, each as `name:type`; `%16` where a pointer or a number is known to be a multiple of 16.
    """

    kernel: str
    config: tuple[str, ...]
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kernel}[{' '.join(self.config)}]"


@dataclass(frozen=True)
class Compiled:
    """What a variant takes on an architecture.

    Attributes:
        launch: the name of the first launch that asked for it.
        registers: of a thread.
        stack_bytes: of a thread, for spilled registers and local arrays.
        shared_bytes: of a block.
        tensor_columns: of a block.
        wgmma: whether it multiplies matrices by Hopper's warp-group instructions.
        wide_loads: whether it reads global memory by 128 bits or more.
        misused: see `misused_registers`.
        error: why it does not compile, and then the figures are 0.
    """

    arch: int
    variant: Variant
    launch: str
    registers: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    tensor_columns: int = 0
    wgmma: bool = False
    wide_loads: bool = False
    misused: tuple[str, ...] = ()
    error: str = ""

    def faults(self) -> list[str]:
        """What is wrong with it, a sentence each."""
        found = []
        if self.error:
            found.append(f"does not compile: {self.error[:60]} ... {self.error[-400:]}")
        if self.stack_bytes:
            found.append(f"spills or has local memory, {self.stack_bytes} bytes a thread")
        if self.shared_bytes > SHARED_BYTES_LIMITS[self.arch]:
            found.append(f"takes {self.shared_bytes} bytes of shared memory of {SHARED_BYTES_LIMITS[self.arch]}")
        if self.tensor_columns > TENSOR_COLUMNS_LIMIT:
            found.append(f"takes {self.tensor_columns} columns of tensor memory of {TENSOR_COLUMNS_LIMIT}")
        if self.misused:
            found.append(f"uses registers of a product again, {len(self.misused)} times: {self.misused[0]}")
        return [f"{self} {each}" for each in found]

    def __str__(self) -> str:
        return f"sm_{self.arch} {self.variant} for {self.launch}"


class CompileOnlyDriver:
    """Stands in for Triton's driver: an architecture, and no device to run on."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.arch  # Triton files what it compiled under the device

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


def list_variants(launches: Iterable[Launch], arch: int) -> dict[Variant, Launch]:
    """What the launches would compile for `arch`, and the first of them that asks for it. Compiles nothing."""
    found: dict[Variant, Launch] = {}

    def on_miss(fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002  (Triton's name)
        found.setdefault(_variant(fn.jit_function, compile), launch)
        return True  # do not compile

    with _compile_only(arch, on_miss, _launch_nothing):
        for launch in launches:
            launch.call()
    return found


def compile_variants(wanted: Mapping[Variant, Launch], arch: int) -> list[Compiled]:
    """Compile the variants on `arch`, once in a process, and read what each takes."""
    found: list[Compiled] = []
    left = set(wanted)
    missed: list[Variant] = []

    def on_miss(fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002  (Triton's name)
        missed[:] = {_variant(fn.jit_function, compile)} & left
        left.difference_update(missed)
        return not missed  # do not compile what is not asked for, nor again what failed

    def run(*args: object, **kwargs: object) -> None:
        missed.clear()
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # Triton prints all the PTX that ptxas refuses
                kernel = _launch_nothing(*args, **kwargs)
        except Exception as error:
            if not missed:
                raise
            found.append(Compiled(arch, missed[0], launch.name, error=f"{type(error).__name__}: {error}"))
        else:
            found.extend(_read(kernel, arch, variant, launch.name) for variant in missed)

    with _compile_only(arch, on_miss, run):
        for launch in dict.fromkeys(wanted.values()):
            launch.call()
    return found


_run = JITFunction.run


def _launch_nothing(fn: Any, *args: object, grid: object, warmup: bool, **kwargs: object) -> Any:
    return _run(fn, *args, grid=grid, warmup=True, **kwargs)


@contextlib.contextmanager
def _compile_only(arch: int, on_miss: Callable[..., bool], run: Callable[..., object]) -> Iterator[None]:
    """Kernels are launched by `run`; `on_miss` hears of what is not compiled yet, and says whether to leave it so."""
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set, so there is nothing to compile")
    triton.runtime.driver.set_active(CompileOnlyDriver(arch))
    JITFunction.run = run
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = on_miss
        try:
            yield
        finally:
            JITFunction.run = _run


def _variant(fn: Any, compiling: dict[str, Any]) -> Variant:
    """Name what Triton is about to compile."""
    constants = {path[0]: value for path, value in compiling["constants"].items()}
    config = [f"{fn.arg_names[at]}={constants[at]}" for at in fn.constexprs]
    options = json.loads(compiling["specialization_data"])["options"]
    config += [f"{name}={options[name]}" for name in OPTIONS if options[name] is not None]
    multiples = {path[0] for path, attributes in compiling["configs"][0].items() if attributes}
    arguments = []
    for at, (name, kind) in enumerate(compiling["signature"].items()):
        if at not in fn.constexprs:
            value = f"={constants[at]}" if at in constants else ""
            arguments.append(f"{name}:{kind}{value}{'%16' if at in multiples else ''}")
    return Variant(fn.fn.__qualname__, tuple(config), tuple(arguments))


def _read(kernel: Any, arch: int, variant: Variant, launch: str) -> Compiled:
    """What a compiled kernel takes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        printed = _dump("-res-usage", cubin.name)
        wgmma = "wgmma.mma_async" in kernel.asm["ptx"]
        misused = misused_registers(_dump("-sass", cubin.name)) if wgmma else []
    usage = dict(re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", printed))
    # Hopper and later keep 1 KiB of a block's static shared memory for themselves, which the limit leaves out.
    reserved = 1024 if arch >= 90 else 0
    return Compiled(
        arch=arch,
        variant=variant,
        launch=launch,
        registers=int(usage["REG"]),
        stack_bytes=int(usage["STACK"]) + int(usage["LOCAL"]),
        shared_bytes=max(0, int(usage["SHARED"]) - reserved) + kernel.metadata.shared,
        tensor_columns=getattr(kernel.metadata, "tmem_size", None) or 0,
        wgmma=wgmma,
        wide_loads=WIDE_LOAD.search(kernel.asm["ptx"]) is not None,
        misused=tuple(misused),
    )


def _dump(what: str, cubin: str) -> str:
    """What cuobjdump prints, which Triton brings with it."""
    command = [triton.knobs.nvidia.cuobjdump.path, what, cubin]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
