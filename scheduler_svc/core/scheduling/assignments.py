"""Which sequences wait, and which run where. Pure. Every change of that goes through here."""

from scheduler_svc.core.executor.executor_state import Worker
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence, State


class Assignments:
    """The queue, and the workers of all live epochs.

    Attributes:
        workers: by epoch.
        waiting: sequences that hold no lane; for reading.
    """

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.waiting = WaitingQueue()

    def enqueue(self, sequence: Sequence) -> None:
        """It waits, at its place."""
        if self.waiting.add(sequence):
            self._open_workers()

    def dequeue(self, sequence: Sequence) -> None:
        """It leaves the queue: it may have been the one that was refused."""
        self.waiting.remove(sequence)
        self._open_workers()

    def requeue(self, worker: Worker, sequence: Sequence) -> None:
        """Back to its place among the waiting, with its tokens and without blocks. Its blocks are cached there."""
        worker.leave(sequence)
        sequence.state, sequence.placed = State.WAITING, worker.epoch
        self.enqueue(sequence)

    def end(self, sequence: Sequence) -> None:
        """It holds nothing any more, wherever it was (invariant 10)."""
        if sequence.state is State.WAITING:
            self.dequeue(sequence)
        else:
            self.workers[sequence.epoch].leave(sequence)
        sequence.state = State.FINISHED

    def _open_workers(self) -> None:
        for worker in self.workers.values():
            worker.closed = False
