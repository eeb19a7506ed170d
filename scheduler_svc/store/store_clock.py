"""What time it is for what is stored: that of the wall, unless the wall has jumped ahead.

Everything that is stored expires by the wall's clock, which can be set by mistake, and a month ahead everything has
expired. So a jump ahead that the uptime does not confirm is held back for a day, in which an operator can look; then
the wall is believed. What the clocks showed, and what is held back, is in the store: all processes judge alike, and a
restart ends no hold.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from sqlite3 import Connection

import msgspec

from common.clocks import NO_BOOT, Clocks, read_clocks
from common.logging import get_logger
from scheduler_svc.store.database import writing

MAX_JUMP_S = 3600.0  # that is not worth a hold: a clock that is set by little, or for a time zone
MAX_AWAY_S = 86_400.0  # likewise, between two boots: no clock says how long the machine was off
HOLD_S = 86_400.0
KEEP_S = 600.0  # between two writes of what the clocks show

log = get_logger(__name__)


class StoreTime(msgspec.Struct, frozen=True, gc=False):
    """What the clocks showed at one moment, and how much of that was not believed.

    Attributes:
        wall_s, uptime_s, boot: as in `Clocks`.
        held_s: by how many seconds the wall has jumped ahead.
        hold_left_s: seconds for which that is still held back.
        latest_s: the latest time that was believed.
    """

    wall_s: float
    uptime_s: float
    boot: bytes
    held_s: float = 0.0
    hold_left_s: float = 0.0
    latest_s: float = 0.0

    @property
    def now(self) -> float:
        """The time by which records expire, in Unix seconds."""
        return self.wall_s - self.held_s

    def at(self, clocks: Clocks) -> "StoreTime":
        """Judge later readings of the clocks by this one."""
        passed_s, jump_s = self._since(clocks)
        left_s = max(0.0, self.hold_left_s - passed_s)
        held_s = self.held_s if left_s else 0.0
        is_known = clocks.wall_s <= self.latest_s + MAX_AWAY_S  # a clock without a battery is set again after each boot
        if jump_s > MAX_JUMP_S and not is_known:
            held_s, left_s = held_s + jump_s, HOLD_S
        elif jump_s < -MAX_JUMP_S:  # it is set back, perhaps to what it was before it jumped ahead
            held_s = max(0.0, held_s + jump_s)
        if held_s <= MAX_JUMP_S:
            held_s = left_s = 0.0
        latest_s = max(self.latest_s, clocks.wall_s - held_s)
        return StoreTime(clocks.wall_s, clocks.uptime_s, clocks.boot, held_s, left_s, latest_s)

    def _since(self, clocks: Clocks) -> tuple[float, float]:
        """Return the seconds that have passed, and by how many more (or less) the wall has gone ahead."""
        ahead_s = clocks.wall_s - self.wall_s
        if self.boot == clocks.boot != NO_BOOT:
            passed_s = max(0.0, clocks.uptime_s - self.uptime_s)
            return passed_s, ahead_s - passed_s
        return (ahead_s, 0.0) if 0 <= ahead_s <= MAX_AWAY_S else (0.0, ahead_s)


class StoreClock:
    """The clock of a process that uses a store.

    Args:
        clocks: what the machine's clocks show.
    """

    def __init__(self, clocks: Callable[[], Clocks] = read_clocks) -> None:
        self._read_clocks = clocks
        self._lock = threading.Lock()
        self._time: StoreTime | None = None

    def now(self) -> float:
        """Return the time by which records expire, in Unix seconds. For any thread."""
        with self._lock:
            self._time = self._judge(self._time)
            return self._time.now

    def keep(self, connection: Connection) -> None:
        """Take over what the store says of the time, and write there what the clocks show. To be called at the start
        and about once a minute. One process logs that a hold begins or ends."""
        before = _read(connection)
        with self._lock:
            self._time = time = self._judge(before or self._time)
        if before is not None and not _is_news(before, time):
            return
        with writing(connection):
            before = _read(connection)  # another process may have written it meanwhile
            with self._lock:
                self._time = time = self._judge(before or time)
            statement = "INSERT OR REPLACE INTO clock VALUES (1, ?, ?, ?, ?, ?, ?)"
            connection.execute(statement, msgspec.structs.astuple(time))
        if before is not None:
            _log_change(before, time)

    def _judge(self, before: StoreTime | None) -> StoreTime:
        clocks = self._read_clocks()
        if before is not None:
            return before.at(clocks)
        return StoreTime(clocks.wall_s, clocks.uptime_s, clocks.boot, latest_s=clocks.wall_s)


def _read(connection: Connection) -> StoreTime | None:
    row = connection.execute("SELECT wall_s, uptime_s, boot, held_s, hold_left_s, latest_s FROM clock").fetchone()
    return StoreTime(*row) if row else None


def _is_news(before: StoreTime, time: StoreTime) -> bool:
    is_older = abs(time.wall_s - before.wall_s) >= KEEP_S
    return is_older or time.held_s != before.held_s or time.boot != before.boot


def _log_change(before: StoreTime, time: StoreTime) -> None:
    if time.held_s > before.held_s:
        until = datetime.fromtimestamp(time.wall_s + time.hold_left_s, UTC).isoformat(timespec="seconds")
        log.warning(
            "the clock has jumped ahead, or the machine was off: nothing that is stored expires for a day",
            ahead_s=round(time.held_s),
            until=until,
        )
    elif time.held_s < before.held_s:
        log.warning("the clock is believed again", held_s=round(before.held_s), still_held_s=round(time.held_s))
