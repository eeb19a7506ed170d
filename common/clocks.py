"""The machine's clocks. The wall's clock alone does not tell how old something is: it can be set."""

import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

NO_BOOT = bytes(16)


class Clocks(msgspec.Struct, frozen=True, gc=False):
    """Readings of a machine's clocks at one moment.

    Attributes:
        wall_s: seconds since 1970, as the machine believes.
        uptime_s: seconds since the machine was started; they count while it is suspended, too.
        monotonic_s: the caller's time, in which the core counts.
        boot: id of this boot of this machine, 16 bytes; `NO_BOOT` if it has none.
    """

    wall_s: float
    uptime_s: float
    monotonic_s: float
    boot: bytes = NO_BOOT


def read_clocks() -> Clocks:
    """What the clocks show now. Where there is no boot id (Linux has one), the wall's clock tells ages."""
    boot = _boot()
    uptime_s = 0.0 if boot == NO_BOOT else time.clock_gettime(time.CLOCK_BOOTTIME)
    return Clocks(time.time(), uptime_s, time.monotonic(), boot)


@cache
def _boot() -> bytes:
    """The id that Linux draws at each start of the machine; a process lives in one boot."""
    with suppress(OSError, ValueError):
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    return NO_BOOT
