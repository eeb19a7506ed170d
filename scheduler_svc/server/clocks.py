"""The machine's clocks, of which the journal needs more than one."""

import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

from scheduler_svc.core.requests.journal_time import NO_BOOT, Clocks


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
