"""When a row of the journal was written, and what time it is for what it says, whatever became of the clocks. Pure.

A clock of the wall can be set, and a file can be copied. So a row carries several clocks. In one boot of one machine
the uptime tells how old the row is; elsewhere the wall does, for lack of a better one. The times in the journal's
records are seconds on a timeline of its own, which begins with the time of the wall. A life goes on with it where the
last row stood, so a clock that was set moves no deadline.
"""

import struct

import msgspec
import xxhash

from common.clocks import NO_BOOT, Clocks

_STAMP = struct.Struct("<qddd16s")


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """When a row was written.

    Attributes:
        time_s: on the journal's timeline.
        wall_s, uptime_s, boot: what the clocks showed (`Clocks`).
    """

    time_s: float
    wall_s: float
    uptime_s: float
    boot: bytes

    @classmethod
    def at(cls, clocks: Clocks, wall_offset_s: float) -> "Stamp":
        """The stamp of a row that is written now.

        Args:
            wall_offset_s: what to add to `monotonic_s` to get the time on the journal's timeline.
        """
        return cls(clocks.monotonic_s + wall_offset_s, clocks.wall_s, clocks.uptime_s, clocks.boot)

    def age_s(self, clocks: Clocks) -> float:
        """Seconds since the row was written; 0 if the clocks say that it is yet to be written."""
        same_boot = self.boot == clocks.boot != NO_BOOT
        age_s = clocks.uptime_s - self.uptime_s if same_boot else clocks.wall_s - self.wall_s
        return max(0.0, age_s)

    def wall_offset_s(self, clocks: Clocks) -> float:
        """What to add to `monotonic_s` to go on with the timeline of this row, which is the last one."""
        return self.time_s + self.age_s(clocks) - clocks.monotonic_s

    def pack(self, number: int) -> bytes:
        """The stamp of the row with this number, with a checksum."""
        packed = _STAMP.pack(number, self.time_s, self.wall_s, self.uptime_s, self.boot)
        return packed + xxhash.xxh3_64_digest(packed)

    @classmethod
    def unpack(cls, packed: bytes, number: int) -> "Stamp | None":
        """What `pack` packed for this row; None if it is damaged."""
        facts, checksum = packed[: _STAMP.size], packed[_STAMP.size :]
        if len(facts) < _STAMP.size or xxhash.xxh3_64_digest(facts) != checksum:
            return None
        stamped, *clocks = _STAMP.unpack(facts)
        return cls(*clocks) if stamped == number else None
