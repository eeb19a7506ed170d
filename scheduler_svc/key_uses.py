"""When API keys were last used: frontends note it, `baton keys list` reads it.

A folder beside the journal has an empty file for each key, named by the first digits of the key's SHA-256, and last
modified when the key was last used. So frontends share the folder without a lock, an end of the service loses nothing
but the last seconds, and no service is needed to read it. A key is noted once in `NOTED_EVERY_S` at most.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from common.errors import BatonError
from common.logging import QuietLog, get_logger
from common.paths import why_not
from common.trust import why_untrusted

USES_FOLDER = "key-uses"
NOTED_EVERY_S = 30.0
LOOK_EVERY_S = 1.0
QUIET_S = 600.0
_DIGITS = 32

log = get_logger(__name__)


class KeyUses:
    """Notes the uses of keys.

    Args:
        folder: of the journal.
        now: tells the time in seconds since 1970.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._folder = folder / USES_FOLDER
        self._last: dict[str, float] = {}  # use of each key that is to be noted, in seconds since 1970
        self._noted: dict[str, float] = {}  # when each key was noted last
        self._quiet = QuietLog(log, "uses of API keys not noted", interval_s=QUIET_S)

    def used(self, sha256: str) -> None:
        """A request came with this key."""
        self._last[sha256] = self._now()

    def due(self, *, is_end: bool = False) -> dict[str, float]:
        """Take what is to be noted now; at the end, all."""
        now = self._now()
        due = {
            sha256: used_at
            for sha256, used_at in self._last.items()
            if is_end or abs(now - self._noted.get(sha256, 0.0)) >= NOTED_EVERY_S
        }
        for sha256 in due:
            del self._last[sha256]
            self._noted[sha256] = now
        return due

    def note(self, due: Mapping[str, float]) -> None:
        """Write uses down. Where that cannot be, the log says so."""
        try:
            for sha256, used_at in due.items():
                self._write(name_of_use(sha256), used_at)
        except (OSError, BatonError) as error:
            self._quiet.happened(reason=why_not(error) if isinstance(error, OSError) else str(error))

    def _write(self, name: str, used_at: float) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if fault := why_untrusted(self._folder):
            raise BatonError(fault)
        file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.utime(file, (used_at, used_at))
        finally:
            os.close(file)


@contextlib.asynccontextmanager
async def noting(uses: KeyUses | None) -> AsyncIterator[None]:
    """Note uses as long as this lasts, and the last ones at its end. Another thread waits for the disk."""
    if uses is None:
        yield
        return

    async def again_and_again() -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if due := uses.due():
                await asyncio.to_thread(uses.note, due)

    task = asyncio.create_task(again_and_again())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(uses.note, uses.due(is_end=True))


def last_uses(folder: Path) -> dict[str, float]:
    """Read when keys were last used, in seconds since 1970, by `name_of_use`. Raises OSError.

    Args:
        folder: of the journal; without notes, nothing is known.
    """
    try:
        with os.scandir(folder / USES_FOLDER) as files:
            return {file.name: file.stat(follow_symlinks=False).st_mtime for file in files}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def name_of_use(sha256: str) -> str:
    """The name of a key's file."""
    return sha256[:_DIGITS]
