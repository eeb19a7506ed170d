"""Writes the journal in a thread of its own, because the core must never wait for a disk. `core/requests` decides what
is in a batch, and what may be told once it is saved.

The thread shares the interpreter with the core, and each time the thread asks for the interpreter can cost the core a
switch. So a batch is one statement, and SQLite releases the interpreter while it carries that out.
"""

import os
import queue
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from common.clocks import Clocks, read_clocks
from common.logging import get_logger
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalBatch, JournalLost, JournalResult
from scheduler_svc.core.requests.recovery import Loaded
from scheduler_svc.server.journal_database import JournalError
from scheduler_svc.server.journal_file import JournalFile
from scheduler_svc.server.journal_lock import lock
from scheduler_svc.server.journal_watch import LOOK_EVERY_S, LostError

__all__ = ["MAX_UNDER_WAY", "BatchFailed", "BatchSaved", "Journal", "JournalError", "JournalLost"]

MAX_UNDER_WAY = 8  # batches written whose result has not been asked for
CLOSE_TIMEOUT_S = 2.0

log = get_logger(__name__)


class Journal:
    """Takes batches without ever waiting, and tells later what became of them.

    A batch that is saved survives the death of the process (kill -9). After a power cut the last ones may be missing
    (those since the last checkpoint: about 4 MiB of log); what is there is whole and has no gap. With `durable` the
    thread waits for the disk at every batch, and none is missing.

    The file is locked while the journal is open. A damaged file is moved aside, to `<name>.corrupt-<time>`, and an
    empty one begun; that can also happen between two batches, of which the first failed. A file that was deleted,
    replaced or cut while the journal was open is noticed within a second, and before anything that went into it counts
    as saved.

    All methods are for one thread, the one that polls `fileno`.

    Args:
        path: of the database; its folder has to exist. Beside it there will be `<name>-wal` and `<name>.lock`.
        durable: whether a saved batch survives a power cut as well.
        clocks: what the machine's clocks show.
        close_timeout_s: how long `close` waits for the disk.

    Attributes:
        path: of the database.

    Raises:
        JournalError: the file cannot be opened, belongs to another program or version, or is in use.
    """

    def __init__(
        self,
        path: Path,
        *,
        durable: bool = False,
        clocks: Callable[[], Clocks] = read_clocks,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.path = path
        self._close_timeout_s = close_timeout_s
        self._lock_fd = lock(path)
        try:
            self._file = JournalFile(path, durable=durable, read_clocks=clocks)
        except JournalError:
            os.close(self._lock_fd)
            raise
        self._batches: queue.SimpleQueue[JournalBatch | None] = queue.SimpleQueue()
        self._num_under_way = 0
        self._writer: _Writer | None = None

    def load(self) -> Loaded:
        """What an earlier life has left. Only before `start`; after damage `set_aside` has to come first."""
        assert self._writer is None, "the file belongs to the writer now"
        return self._file.load()

    def set_aside(self, reason: str, whole: Sequence[tuple[int, bytes]], **facts: object) -> None:
        """Keep a damaged file under another name, log that with these facts, and begin one with the batches that are
        whole: they are needed until the journal is begun anew.

        Raises:
            JournalError: that is not possible.
        """
        assert self._writer is None, "the file belongs to the writer now"
        self._file.set_aside(reason, whole, **facts)

    def start(self) -> None:
        """Start the thread that writes."""
        assert self._writer is None
        self._writer = _Writer(self._file, self._batches)
        self._writer.start()

    def fileno(self) -> int:
        """For a poller: readable when there are `results`."""
        assert self._writer is not None, "the journal has not been started"
        return self._writer.fileno()

    def wait(self, timeout_s: float) -> bool:
        """Wait for results. Returns whether there are any."""
        return bool(select.select([self], [], [], timeout_s)[0])

    @property
    def num_bytes(self) -> int:
        """Size of the database and its log, as of a few batches ago. Does not touch the disk."""
        return self._file.num_bytes

    def write(self, batch: JournalBatch) -> None:
        """Hand a batch to the thread. At most `MAX_UNDER_WAY` may be without a result."""
        assert batch.keep_from <= batch.number
        assert self._num_under_way < MAX_UNDER_WAY, f"{self._num_under_way} batches are under way"
        self._num_under_way += 1
        self._batches.put(batch)

    def results(self) -> list[JournalResult]:
        """What has become of the batches, and of the file, since the last call, in order."""
        assert self._writer is not None, "the journal has not been started"
        found = self._writer.reports()
        self._num_under_way -= sum(not isinstance(result, JournalLost) for result in found)
        return found

    def close(self) -> None:
        """Write what is queued and close the file; `results` cannot be asked for any more.

        Gives up after `close_timeout_s` if the disk hangs. The file stays locked then, because the thread may go on
        writing until the process ends.
        """
        self._batches.put(None)
        if self._writer is None:
            self._file.close()
        elif not self._writer.stop(self._close_timeout_s):
            log.error("journal not written to its end", path=str(self.path), batches_without_result=self._num_under_way)
            return
        os.close(self._lock_fd)


class _Writer(threading.Thread):
    """The thread.

    Args:
        batches: to write; None ends it.
    """

    def __init__(self, file: JournalFile, batches: "queue.SimpleQueue[JournalBatch | None]") -> None:
        super().__init__(name="journal", daemon=True)
        self._file = file
        self._batches = batches
        self._reports: deque[JournalResult] = deque()
        self._bell, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # a byte for each report
        self._bell_lock = threading.Lock()  # `stop` closes it even while the thread hangs in a write

    def run(self) -> None:
        """Write one batch after the other, and look at the files while there is none."""
        while True:
            try:
                batch = self._batches.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                self._look()
                continue
            if batch is None:
                break
            self._write(batch)
        self._file.close()

    def fileno(self) -> int:
        """Readable when there are reports."""
        return self._bell

    def reports(self) -> list[JournalResult]:
        """Take the reports. For the other thread."""
        with suppress(BlockingIOError):
            os.read(self._bell, 1024)
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def _write(self, batch: JournalBatch) -> None:
        try:
            self._file.save(batch)
        except LostError as error:
            self._report(JournalLost(str(error)), BatchFailed(batch.number, str(error)))
        except Exception as error:
            # A full disk, an I/O error, too little memory: the core has to hear of any of them.
            self._report(BatchFailed(batch.number, f"{type(error).__name__}: {error}"))
        else:
            self._report(BatchSaved(batch.number))

    def _look(self) -> None:
        try:
            self._file.check()
        except LostError as error:
            self._report(JournalLost(str(error)))

    def _report(self, *reports: JournalResult) -> None:
        self._reports.extend(reports)
        with self._bell_lock:
            if self._ring >= 0:
                os.write(self._ring, b"!")

    def stop(self, timeout_s: float) -> bool:
        """Wait for the None to be reached, and close the pipe in any case.

        Returns:
            Whether all has been written.
        """
        self.join(timeout_s)
        with self._bell_lock:
            os.close(self._ring)
            os.close(self._bell)
            self._ring = self._bell = -1
        return not self.is_alive()
