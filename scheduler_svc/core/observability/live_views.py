"""Tells frontends what changes in the service while pages look at it. Pure: the time is the caller's.

A frontend with pages says so again and again (`SendViews`); without one, nothing here does any work. What it is told
goes out now or never: Views are numbered, and a frontend that has missed one asks for all of it anew.
"""

from collections.abc import Callable
from itertools import islice

import msgspec

from common import messages as m
from scheduler_svc.core.actions import Peer, SendToFrontend
from scheduler_svc.core.observability.block_watch import BLOCKS_AT_ONCE, BlockWatch
from scheduler_svc.core.observability.service_counters import ServiceCounters
from scheduler_svc.core.requests.request_table import RequestTable
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.scheduling.wait_reasons import wait_reasons


class LiveViews:
    """Makes Views for the frontends that watch.

    Args:
        counters: have the events, the history and the lives.
        status: the report at a time.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        table: RequestTable,
        counters: ServiceCounters,
        status: Callable[[float], m.StatusReport],
    ) -> None:
        self._scheduler = scheduler
        self._table = table
        self._counters = counters
        self._status = status
        self._watchers: dict[Peer, tuple[float, float]] = {}  # until when, and the least interval
        self._blocks: dict[int, BlockWatch] = {}
        self._is_fresh_asked = False
        self._next_at = self._next_fresh_at = float("-inf")
        self._number = 0
        self._told = m.View(number=0, is_fresh=True, at=0.0)  # what frontends know; its report without the time
        self._told_event = -1
        self._told_sample = float("-inf")

    def watch(self, peer: Peer, watch: m.SendViews, now: float) -> None:
        """A frontend has pages that look."""
        self._watchers[peer] = (now + m.WATCH_S, max(watch.interval_s, m.MIN_VIEW_INTERVAL_S))
        self._is_fresh_asked |= watch.is_fresh

    def gone(self, peer: Peer) -> None:
        """The connection to a frontend is gone."""
        self._watchers.pop(peer, None)

    def tick(self, now: float) -> list[SendToFrontend]:
        """What to tell now; to be called ten times a second."""
        self._watchers = {peer: watch for peer, watch in self._watchers.items() if watch[0] > now}
        if not self._watchers:
            self._stop()
            return []
        if now < (self._next_fresh_at if self._is_fresh_asked else self._next_at):
            return []
        self._next_fresh_at = now + m.MIN_VIEW_INTERVAL_S
        self._next_at = now + min(interval for _, interval in self._watchers.values())
        view = self._view(now)
        return [] if view is None else [SendToFrontend(peer, view) for peer in self._watchers]

    # --- inside ---

    def _view(self, now: float) -> m.View | None:
        """What has changed since the last one; None for nothing."""
        is_fresh, self._is_fresh_asked = self._is_fresh_asked, False
        if is_fresh:
            self._told = m.View(number=0, is_fresh=True, at=now)
            self._told_event, self._told_sample = -1, float("-inf")
            for watch in self._blocks.values():
                watch.begin_anew()
        told, report = self._told, self._status(now)
        known = msgspec.structs.replace(
            told, report=_timeless(report), waiting=tuple(self._waiting()), running=tuple(self._running())
        )
        view = m.View(
            number=self._number,
            is_fresh=is_fresh,
            at=now,
            report=report if known.report != told.report else None,
            waiting=known.waiting if known.waiting != told.waiting else None,
            running=known.running if known.running != told.running else None,
            events=tuple(self._counters.timeline.after(self._told_event)),
            history=self._counters.history.after(self._told_sample),
            blocks=self._changed_blocks(),
        )
        self._told = known
        self._told_event = self._counters.timeline.last_number
        if view.history:
            self._told_sample = view.history[-1].at
        parts = (view.report, view.waiting, view.running)
        if not is_fresh and parts == (None, None, None) and not (view.events or view.history or view.blocks):
            return None
        self._number += 1
        return view

    def _waiting(self) -> list[m.WaitingSequence]:
        """The head of the queue."""
        sequences = self._scheduler.sequences
        return [
            m.WaitingSequence(
                request=sequence.request_id,
                index=sequence.index,
                client=self._client(sequence.request_id),
                tokens=len(sequence.tokens),
                output=sequence.num_output,
                priority=self._priority(sequence.request_id),
                since=self._counters.lives.since(sequence),
                reason=reason,
            )
            for sequence, reason in islice(wait_reasons(sequences), m.MAX_SHOWN)
        ]

    def _running(self) -> list[m.RunningSequence]:
        """Those that executors have: of each the newest, as many as there is room for."""
        executors = self._scheduler.executors
        left = m.MAX_SHOWN
        told: list[m.RunningSequence] = []
        for place, executor in enumerate(executors):
            share = left // (len(executors) - place)
            newest = executor.sequences()[-share:] if share else []
            left -= len(newest)
            told += [
                m.RunningSequence(
                    request=sequence.request_id,
                    index=sequence.index,
                    client=self._client(sequence.request_id),
                    epoch=executor.epoch,
                    since=self._counters.lives.since(sequence),
                )
                for sequence in newest
            ]
        return told

    def _changed_blocks(self) -> tuple[m.BlockChanges, ...]:
        live = {executor.epoch: executor for executor in self._scheduler.executors}
        for epoch in [epoch for epoch in self._blocks if epoch not in live]:
            self._blocks.pop(epoch).stop()  # its pool may go on, and be watched, in another epoch
        for epoch, executor in live.items():
            if epoch not in self._blocks:
                self._blocks[epoch] = BlockWatch(epoch, executor.blocks)
        told: list[m.BlockChanges] = []
        left = BLOCKS_AT_ONCE
        for epoch, watch in list(self._blocks.items()):
            if left and (changes := watch.changes(left)) is not None:
                left -= (len(changes.changed) + len(changes.found)) // 4
                told.append(changes)
                self._blocks[epoch] = self._blocks.pop(epoch)  # the others have their turn first next time
        return tuple(told)

    def _stop(self) -> None:
        if not self._blocks:
            return
        self._number += 1  # a frontend that asks again has missed something
        for watch in self._blocks.values():
            watch.stop()
        self._blocks = {}

    def _client(self, request_id: str) -> str:
        request = self._table.find(request_id)
        return "" if request is None else request.submit.client_name

    def _priority(self, request_id: str) -> int:
        request = self._table.find(request_id)
        return 0 if request is None else request.submit.priority


def _timeless(report: m.StatusReport) -> m.StatusReport:
    """The report without what changes though nothing happens."""
    executors = [msgspec.structs.replace(executor, uptime_s=0.0) for executor in report.executors]
    return msgspec.structs.replace(report, uptime_s=0.0, executors=executors)
