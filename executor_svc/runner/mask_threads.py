"""The threads that fill masks: quick ones never wait for slow ones, and a step waits for neither without a bound.

One thread waits for the tokens that a step draws, and fills the masks that are expected to be quick. Another one fills
the rest: those of grammars that are to be compiled first, of long texts that are read anew, and of grammars whose last
mask was slow. A mask that keeps the quick thread for too long keeps it for good: another thread takes its place, and
the old one ends with that mask. The library cannot be interrupted, and lets other threads run while it fills a mask.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import messages as m
from common.wire import IntArray
from executor_svc.runner.grammar_texts import SLOW_S, Grammars, GrammarText, TokenReader


@dataclass(eq=False)
class MaskJob:
    """A mask to fill.

    Attributes:
        text: whose; it has no other job before this one is done.
        mask: int32 [ceil(vocab / 32)], all zeros until the thread writes it.
        get_tokens: waits for what follows the text, and returns it; None once the text has it.
        new: what the text got by that.
        is_slow: whether it is, or is expected to be.
        is_done: whether mask and outcome are there.
        outcome: see `GrammarText.fill`.
        error: what the thread raised.
        is_dropped: whether it need not begin any more.
    """

    text: GrammarText
    mask: IntArray
    get_tokens: Callable[[], Sequence[int]] | None = None
    new: Sequence[int] = ()
    is_slow: bool = False
    is_done: bool = False
    outcome: int = m.NO_TOKEN
    error: Exception | None = None
    is_dropped: bool = False


class MaskThreads:
    """The threads, on the CPUs that the calling thread may use when they are made.

    Args:
        grammars: of the texts.
    """

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # there is some, or the threads are to end
        self._done = threading.Condition(self._lock)  # a slow mask, or all quick ones; or all tokens are known
        self._unread: deque[MaskJob] = deque()  # whose tokens are not known
        self._queues: dict[bool, list[MaskJob]] = {False: [], True: []}  # quick ones, and slow ones
        self._quick: MaskJob | None = None  # that the quick thread does
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        with self._lock:
            self._start(self._do_quick)
            self._start(self._do_slow)

    def put(self, jobs: Sequence[MaskJob]) -> None:
        """Have them done."""
        with self._lock:
            for job in jobs:
                if job.get_tokens is None:
                    self._queue(job)
                else:
                    self._unread.append(job)
            self._work.notify_all()

    def wait(self, jobs: Sequence[MaskJob], may_take_s: float | None) -> None:
        """Wait until their tokens are known, and then until they are done or it takes too long.

        Args:
            may_take_s: how long one quick mask may take, and all slow ones together; None for as long as they take.
        """
        with self._lock:
            self._wait_for_tokens(jobs, may_take_s)
            now = time.monotonic()
            slow_until = quick_until = now + (may_take_s or 0)
            num_quick = len(jobs) + 1
            while left := [job for job in jobs if not job.is_done]:
                now, before = time.monotonic(), num_quick
                num_quick = sum(not job.is_slow for job in left)
                if num_quick < before:
                    quick_until = now + (may_take_s or 0)
                until = quick_until if num_quick else slow_until
                if may_take_s is None:
                    self._done.wait()
                elif now < until:
                    self._done.wait(until - now)
                elif not num_quick or not self._relieve():
                    return

    def close(self) -> None:
        """End the threads, as soon as each has done what it does."""
        with self._lock:
            self._is_closed = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    def _wait_for_tokens(self, jobs: Sequence[MaskJob], may_take_s: float | None) -> None:
        """Wait as long as the step takes that draws them. A mask that keeps the quick thread meanwhile has the time
        that any quick mask has."""
        until = time.monotonic() + (may_take_s or 0)
        while any(job.get_tokens is not None for job in jobs):
            if may_take_s is None or self._quick is None:
                self._done.wait()
            elif (left_s := until - time.monotonic()) > 0:
                self._done.wait(left_s)
            else:
                self._relieve()

    def _relieve(self) -> bool:
        """Let another thread do the quick jobs, if this one is kept by one of them; it is slow, as are others of its
        grammar."""
        if (job := self._quick) is None:
            return False
        job.is_slow, self._quick = True, None
        self._move(job.text.grammar.text)
        self._start(self._do_quick)
        return True

    def _move(self, grammar: str) -> None:
        """Quick jobs of a grammar are slow ones from now on."""
        for job in [job for job in self._queues[False] if job.text.grammar.text == grammar]:
            self._queues[False].remove(job)
            self._queues[True].append(job)
            job.is_slow = True
        self._work.notify_all()

    def _queue(self, job: MaskJob) -> None:
        """Put a job whose tokens are known where its thread finds it."""
        job.is_slow = job.text.grammar.is_busy or job.text.is_slow
        self._queues[job.is_slow].append(job)

    def _start(self, work: Callable[[TokenReader], None]) -> None:
        def run() -> None:
            if self._cpus is not None:  # a thread begins with the CPUs of the one that starts it, which is bound by now
                os.sched_setaffinity(0, self._cpus)
            work(TokenReader(self._grammars))

        thread = threading.Thread(target=run, name="grammars", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()

    # --- in the threads ---

    def _do_quick(self, reader: TokenReader) -> None:
        while True:
            with self._lock:
                if (job := self._take(is_slow=False)) is None:
                    return
                self._quick = None if job.get_tokens is not None else job
            if job.get_tokens is not None:
                self._read(job, job.get_tokens)
                continue
            self._do(job, reader)
            with self._lock:
                if self._quick is not job:
                    return  # another thread has taken this one's place
                self._quick = None
                if job.text.grammar.last_s > SLOW_S:
                    self._move(job.text.grammar.text)

    def _do_slow(self, reader: TokenReader) -> None:
        while True:
            with self._lock:
                job = self._take(is_slow=True)
            if job is None:
                return
            self._do(job, reader)

    def _take(self, *, is_slow: bool) -> MaskJob | None:
        """Wait for a job of a grammar that no other thread works on, and take the one that is expected to be the
        shortest. The quick thread first takes those whose tokens are not known. None at the end."""
        queue = self._queues[is_slow]
        while not self._is_closed:
            if not is_slow and self._unread:
                return self._unread.popleft()
            queue[:] = [job for job in queue if not job.is_dropped]
            if free := [job for job in queue if not job.text.grammar.is_busy]:
                job = min(free, key=lambda job: job.text.grammar.last_s) if is_slow else free[0]
                queue.remove(job)
                job.text.grammar.is_busy = True
                return job
            self._work.wait()
        return None

    def _read(self, job: MaskJob, get_tokens: Callable[[], Sequence[int]]) -> None:
        """Wait for a job's tokens, and have it done then."""
        tokens: Sequence[int] = ()
        try:
            tokens = get_tokens()
        except Exception as error:  # the step failed
            job.error = error
        with self._lock:
            job.get_tokens, job.new, job.is_done = None, job.text.append(tokens), job.error is not None
            if not job.is_done:
                self._queue(job)
            if job.is_slow:
                self._work.notify_all()
            if not self._unread:
                self._done.notify_all()

    def _do(self, job: MaskJob, reader: TokenReader) -> None:
        try:
            job.outcome = job.text.fill(job.new, job.mask, self._grammars, reader)
        except Exception as error:
            job.error = error
        with self._lock:
            job.text.grammar.is_busy, job.is_done = False, True
            if job.is_slow or not self._queues[False]:
                self._done.notify_all()
            if job.is_slow or self._queues[True]:  # of the same grammar, perhaps
                self._work.notify_all()
