"""A driver with virtual memory, which the pretended GPU's own does not have."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.rig import build
from tests.support.fake_cuda import FakeCuda


class MappedForTheRig(FakeCuda):
    """Tells the rig of each mapping.

    Args:
        adopt: see `StandIn.adopt`.
    """

    def __init__(self, adopt: Callable[[int, int], None]) -> None:
        super().__init__(
            name=os.environ.get("RIG_MEMORY", "fake_cuda"), devices=int(os.environ.get("RIG_DEVICES", "1"))
        )
        self._adopt = adopt

    def cuMemMap(self, address: int, num_bytes: int, *rest: Any) -> Any:
        self._adopt(address, num_bytes)
        return super().cuMemMap(address, num_bytes, *rest)

    def cuMemUnmap(self, address: int, num_bytes: int) -> Any:
        self._adopt(address, 0)
        return super().cuMemUnmap(address, num_bytes)


def driver() -> MappedForTheRig:
    """That of a process that is no test: hazards go where `RIG_HAZARDS` says."""
    library = ctypes.CDLL(str(build.libraries() / "librig.so"))

    def adopt(address: int, num_bytes: int) -> None:
        library.rig_adopt(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes))

    return MappedForTheRig(adopt)


def write_bindings(folder: Path) -> None:
    """A package `cuda.bindings` whose driver is this one, for processes that have the folder in `PYTHONPATH`."""
    bindings = folder / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    for package in (bindings.parent, bindings):
        (package / "__init__.py").touch()
    (bindings / "driver.py").write_text(
        "from tests.rig.mapped_memory import driver\n"
        "_driver = driver()\n"
        "def __getattr__(name):\n"
        "    return getattr(_driver, name)\n"
    )
