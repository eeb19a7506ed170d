"""The pretended GPU as tests see it: `csrc/control.cpp` in this process."""

import ctypes
import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEDULES = {"eager": 0, "lazy": 1, "random": 2}


@dataclass(frozen=True)
class Hazard:
    """A rule that was broken, and where in Python."""

    sentence: str
    stack: str

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.stack}"


@dataclass(frozen=True)
class Launch:
    """A kernel, copy or collective as it was called or captured.

    Attributes:
        kind: 0 kernel, 1 copy, 2 memset, 3 host call, 4 collective.
        name: of the kernel.
        capture: number of the capture, 0 outside of one.
        shape: of its grid and block, and its bytes of shared memory.
        params: size in bytes, value, and whether it points into device memory, of each; none of torch's own kernels.
    """

    kind: int
    name: str
    capture: int
    shape: tuple[Any, ...]
    params: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True)
class Mapping:
    """Memory behind addresses: see `StandIn.mappings`."""

    address: int
    num_bytes: int
    is_writable: bool

    def content(self) -> bytes:
        """All of its bytes; device memory is the host's."""
        return ctypes.string_at(self.address, self.num_bytes)


class StandIn:
    """Asks the pretended GPU of this process, and tells it.

    Raises:
        RuntimeError: this process runs without the stand-ins (`build.environment`).
    """

    def __init__(self, library: Path) -> None:
        mapped = Path("/proc/self/maps").read_text()
        if str(library) not in mapped:
            raise RuntimeError(f"{library} is not in this process: torch runs without the stand-ins")
        self._library = ctypes.CDLL(str(library))
        self._library.rig_count.restype = ctypes.c_uint64
        self._library.rig_live.restype = ctypes.c_int64
        for function in (self._library.rig_counts, self._library.rig_hazards, self._library.rig_mappings):
            function.restype = ctypes.c_size_t
        self.hazards: list[Hazard] = []
        callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
        self._report = callback(self._on_hazard)
        self._library.rig_on_hazard(self._report)

    def _on_hazard(self, sentence: bytes) -> None:
        stack = "".join(traceback.format_stack(limit=12)[:-1])
        self.hazards.append(Hazard(sentence.decode(errors="replace"), stack))

    def take_hazards(self) -> list[str]:
        """Sentences of what was found since the last call."""
        found = [hazard.sentence for hazard in self.hazards]
        self.hazards.clear()
        return found

    def count(self, name: str) -> int:
        """How often something was called since the process began."""
        return int(self._library.rig_count(name.encode()))

    def live(self, name: str) -> int:
        """How many of something there are now: streams, events, graphs, communicators, device_bytes, pinned_bytes."""
        return int(self._library.rig_live(name.encode()))

    def counts(self) -> dict[str, int]:
        """All that is counted."""
        pairs = (line.rsplit(" ", 1) for line in self._text(self._library.rig_counts))
        return {name: int(number) for name, number in pairs}

    def _text(self, function: Any) -> list[str]:
        """Lines that a function of `csrc/control.cpp` writes."""
        size = int(function(None, 0)) + 4096
        buffer = ctypes.create_string_buffer(size)
        function(buffer, ctypes.c_size_t(size))
        return buffer.value.decode().splitlines()

    def set(self, name: str, value: int) -> None:
        """Change a setting of `csrc/control.cpp`."""
        if self._library.rig_set(name.encode(), ctypes.c_int64(value)):
            raise ValueError(f"the rig has no setting {name}")

    def mappings(self) -> list[Mapping]:
        """Memory of CUDA's virtual memory calls that this process has mapped, in the order of the addresses."""
        lines = [list(map(int, line.split())) for line in self._text(self._library.rig_mappings)]
        return [Mapping(address, num_bytes, bool(writable)) for address, num_bytes, writable in lines]

    @contextmanager
    def schedule(self, name: str, seed: int = 1) -> Iterator[None]:
        """Carry out copies as `name` says: eager, lazy or random."""
        self.set("seed", seed)
        self.set("schedule", SCHEDULES[name])
        try:
            yield
        finally:
            self.set("schedule", SCHEDULES["eager"])

    @contextmanager
    def serving(self) -> Iterator[None]:
        """From here on nothing may be allocated on the device, compiled, copied from pageable memory or waited for."""
        self.set("serving", 1)
        try:
            yield
        finally:
            self.set("serving", 0)

    @contextmanager
    def recording(self, file: Path) -> Iterator[None]:
        """Write what is called and captured to `file`; `read_launches` reads it."""
        if self._library.rig_record(str(file).encode()):
            raise OSError(f"cannot write {file}")
        try:
            yield
        finally:
            self._library.rig_record(None)


def read_launches(file: Path) -> list[Launch]:
    """What `StandIn.recording` wrote, in order."""
    launches = []
    for line in file.read_text().splitlines():
        found = json.loads(line)
        shape = (*found["grid"], *found["block"], found["shared"])
        params = tuple((size, value, bool(points)) for size, value, points in found["params"])
        launches.append(Launch(found["kind"], found["name"], found["capture"], shape, params))
    return launches
