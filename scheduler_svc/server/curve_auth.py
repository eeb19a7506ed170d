"""Which executors may connect: the keys in a folder, read again when they change."""

import threading
from collections.abc import Callable, Mapping

from common.curve import KeyFileError, ServerCurve, allowed_files, load_public, require_own_folder
from common.logging import get_logger
from common.paths import why_not

RELOAD_INTERVAL_S = 1.0

log = get_logger(__name__)


class AllowList:
    """The executors that may connect. Read by any thread; `reload` belongs to one.

    Args:
        curve: names the folder. Raises KeyFileError if it cannot be read, or others could have changed it.

    Attributes:
        version: another number after each change.
        failure: why the folder, or a key in it, could not be read the last time; empty if all could be.
    """

    def __init__(self, curve: ServerCurve) -> None:
        self.version = 0
        self.failure = ""
        self._folder = curve.folder
        self._seen: object = None
        self._names: Mapping[str, str] = {}
        try:
            self._seen = self._look()
            self._names = self._read()
        except OSError as error:
            raise KeyFileError(f"{self._folder} cannot be read: {error.strerror}") from error
        log.info("executors' keys read", folder=str(self._folder), executors=len(self._names))

    def __contains__(self, key: object) -> bool:
        """Whether the executor with this public key, in Z85, may connect."""
        return key in self._names

    def reload(self) -> None:
        """Read the folder again if anything in it has changed; keep the old list if it cannot be read, or trusted."""
        try:
            seen = self._look()
            if seen == self._seen:
                return
            names = self._read()
        except (OSError, KeyFileError) as error:
            self.failure = why_not(error)
            if self._seen is not None:
                log.error("executors' keys cannot be read, keeping those of before", reason=self.failure)
            self._seen = None
            return
        self._seen = seen
        added, removed = names.items() - self._names.items(), self._names.items() - names.items()
        self._names = names
        self.version += 1
        log.info("executors' keys changed", added=_words(added), removed=_words(removed), executors=len(names))

    def _look(self) -> object:
        """A value that changes when any file does: an editor may keep a file's size, and a mounted Secret its time."""
        require_own_folder(self._folder)
        status = {name: path.stat() for name, path in allowed_files(self._folder).items()}
        return {name: (stat.st_ino, stat.st_ctime_ns, stat.st_size) for name, stat in status.items()}

    def _read(self) -> dict[str, str]:
        """Names by key. A file that is no key, or that others could have changed, is left out."""
        names, self.failure = {}, ""
        for name, path in allowed_files(self._folder).items():
            try:
                names[load_public(path).decode()] = name
            except KeyFileError as error:
                self.failure = self.failure or str(error)
                log.error("executor's key left out", executor=name, reason=str(error))
        return names


class KeyReader:
    """Reads keys again, in a thread: they may lie on a disk that hangs.

    Args:
        reload: called again and again.
        name: of the thread.
        every_s: how often.
    """

    def __init__(
        self, reload: Callable[[], None], name: str = "allow list", every_s: float = RELOAD_INTERVAL_S
    ) -> None:
        self._every_s = every_s
        self._reload = reload
        self._name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more. Does not wait for a read that hangs."""
        self._stopping.set()
        self._thread.join(timeout=self._every_s)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._reload()
            except Exception:  # without this thread no key could be revoked any more
                log.exception("keys cannot be read, keeping those of before", keys=self._name)


def _words(entries: set[tuple[str, str]]) -> str:
    return ",".join(sorted(name for _, name in entries)) or "none"
