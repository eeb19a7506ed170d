"""Writes the journal in a thread of its own, because the core must never wait for a disk. `core/requests` decides what
is in a batch, and what may be told once it is saved.

The thread shares the interpreter with the core, and each time the thread asks for the interpreter can cost the core a
switch. So a batch is one statement, and SQLite releases the interpreter while it carries that out.
"""

import os
import queue
import threading
from contextlib import suppress
from pathlib import Path

import zmq

from common.logging import get_logger
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalBatch
from scheduler_svc.server.journal_file import JournalError, JournalFile, lock

__all__ = ["MAX_UNDER_WAY", "BatchFailed", "BatchSaved", "Journal", "JournalError"]

MAX_UNDER_WAY = 8  # batches written whose result has not been asked for
CLOSE_TIMEOUT_S = 2.0

log = get_logger(__name__)


class Journal:
    """Takes batches without ever waiting, and tells later what became of them.

    A batch that is saved survives the death of the process (kill -9). After a power cut the last ones may be missing
    (those since the last checkpoint: about 4 MiB of log); what is there is whole and has no gap. With `durable` the
    thread waits for the disk at every batch, and none is missing.

    The file is locked while the journal is open. A damaged file is moved aside, to `<name>.corrupt-<time>`, and an
    empty one begun; that can also happen between two batches, of which the first failed.

    All methods are for one thread, the one that polls `socket`.

    Args:
        path: of the database; its folder has to exist. Beside it there will be `<name>-wal` and `<name>.lock`.
        durable: whether a saved batch survives a power cut as well.

    Attributes:
        path: of the database.

    Raises:
        JournalError: the file cannot be opened, belongs to another program or version, or is in use.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self.path = path
        self._lock_fd = lock(path)
        try:
            self._file = JournalFile(path, durable=durable)
        except JournalError:
            os.close(self._lock_fd)
            raise
        self._batches: queue.SimpleQueue[JournalBatch | None] = queue.SimpleQueue()
        self._num_under_way = 0
        self._writer: _Writer | None = None

    def load(self) -> list[tuple[int, bytes]]:
        """Number and payload of every batch, in order. Only before `start`.

        Raises:
            JournalError: the disk cannot be read.
        """
        assert self._writer is None, "the file belongs to the writer now"
        return self._file.load()

    def start(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        """Start the thread that writes."""
        assert self._writer is None
        self._writer = _Writer(self._file, self._batches, context)
        self._writer.start()

    @property
    def socket(self) -> "zmq.Socket[bytes]":
        """For a poller: readable when there are `results`."""
        assert self._writer is not None, "the journal has not been started"
        return self._writer.results

    @property
    def age_s(self) -> float:
        """Seconds from the last write of an earlier life to the opening; 0 for a new file."""
        return self._file.age_s

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

    def results(self) -> list[BatchSaved | BatchFailed]:
        """What has become of the batches since the last call, in the order in which they were written."""
        found: list[BatchSaved | BatchFailed] = []
        with suppress(zmq.Again):
            while True:
                report = self.socket.recv(zmq.NOBLOCK)
                number, reason = int.from_bytes(report[:8], "big"), report[8:].decode()
                found.append(BatchFailed(number, reason) if reason else BatchSaved(number))
        self._num_under_way -= len(found)
        return found

    def close(self) -> None:
        """Write what is queued and close the file; `results` cannot be asked for any more.

        Gives up after `CLOSE_TIMEOUT_S` if the disk hangs. The file stays locked then, because the thread may go on
        writing until the process ends.
        """
        self._batches.put(None)
        if self._writer is None:
            self._file.close()
        elif not self._writer.stop(CLOSE_TIMEOUT_S):
            log.error("journal not written to its end", path=str(self.path), batches_without_result=self._num_under_way)
            return
        os.close(self._lock_fd)


class _Writer(threading.Thread):
    """The thread.

    Args:
        batches: to write; None ends it.

    Attributes:
        results: the other thread's end of a pair; a message for each batch, its number in eight bytes and then the
            reason if it failed.
    """

    def __init__(
        self,
        file: JournalFile,
        batches: "queue.SimpleQueue[JournalBatch | None]",
        context: "zmq.Context[zmq.Socket[bytes]]",
    ) -> None:
        super().__init__(name="journal", daemon=True)
        self._file = file
        self._batches = batches
        self.results, self._report = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        endpoint = f"inproc://journal-{id(self)}"
        self.results.bind(endpoint)
        self._report.connect(endpoint)
        self._report_lock = threading.Lock()  # `stop` closes it even while the thread hangs in a write

    def run(self) -> None:
        """Write one batch after the other."""
        while (batch := self._batches.get()) is not None:
            reason = self._write(batch)
            with self._report_lock:
                if not self._report.closed:
                    self._report.send(batch.number.to_bytes(8, "big") + reason.encode(errors="replace"), zmq.NOBLOCK)
        self._file.close()

    def _write(self, batch: JournalBatch) -> str:
        """Why the batch could not be written; empty if it was."""
        try:
            self._file.save(batch.number, batch.payload, batch.keep_from, reset=batch.reset)
        except Exception as error:
            # A full disk, an I/O error, too little memory: the core has to hear of any of them.
            return f"{type(error).__name__}: {error}"
        return ""

    def stop(self, timeout_s: float) -> bool:
        """Wait for the None to be reached, and close both sockets in any case, or their context would never end.

        Returns:
            Whether all has been written.
        """
        self.join(timeout_s)
        with self._report_lock:
            self._report.close(linger=0)
            self.results.close(linger=0)
        return not self.is_alive()
