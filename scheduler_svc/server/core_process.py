"""The core's process: gives the event loop real sockets, the real clock, the journal's thread and the log."""

import time
from dataclasses import replace
from math import ceil
from pathlib import Path

import msgspec
import zmq

from common import messages as m
from common.curve import ServerCurve
from common.logging import DropLog, QuietLog, get_logger
from common.wire import VersionError
from scheduler_svc.api_key_file import KeyFileWatch
from scheduler_svc.core.actions import Peer, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.event_loop import EventLoop
from scheduler_svc.core.fleet.hello_check import MAX_LANES
from scheduler_svc.core.observability.status_report import IoCounts
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.recovery import RESUME_WITHIN_S, Legacy, Loaded
from scheduler_svc.server.curve_auth import KeyReader
from scheduler_svc.server.frontend_processes import FrontendProcesses
from scheduler_svc.server.journal import Journal
from scheduler_svc.server.kv_events import KvEventOptions, KvEventPublisher
from scheduler_svc.server.process_use import ProcessUse
from scheduler_svc.server.router import Router
from scheduler_svc.server.store_watch import StoreWatch
from scheduler_svc.store_options import StoreOptions

SETTLE_MS = 10  # between looks at the journal while the process closes
# Of the largest legal StepResult: a token and its log-probabilities for each lane, those of prompts, pooled results.
MAX_EXECUTOR_MESSAGE_BYTES = 2**12 + 4 * (
    MAX_LANES * (1 + 2 * m.MAX_LOGPROBS) + 2 * m.MAX_PLAN_PROMPT_LOGPROBS + m.MAX_PLAN_POOLED_FLOATS
)

log = get_logger(__name__)


class CoreProcess:
    """The core of the scheduler service, on real sockets.

    Args:
        executor_endpoint, frontend_endpoint: to bind.
        config: of the core; what depends on the clock and the journal is filled in here.
        journal: opened and not started; None runs without.
        curve: keys of this service, and of the executors that may connect; None asks for no keys.
        processes: those beside this one; None where frontends are not ours.
        kv_events: where routers are told what is cached; None tells nobody. Goes with `announced_salt` of the config.
        api_keys_file: frontends use it; here it is only watched.
        store: frontends use it; here it is only measured. None, or without a folder: there is none.

    Attributes:
        core: for reading.
        kv_events: who tells them, for reading.
    """

    def __init__(
        self,
        executor_endpoint: str,
        frontend_endpoint: str,
        config: CoreConfig,
        journal: Journal | None = None,
        curve: ServerCurve | None = None,
        processes: FrontendProcesses | None = None,
        kv_events: KvEventOptions | None = None,
        api_keys_file: Path | None = None,
        store: StoreOptions | None = None,
    ) -> None:
        now = time.monotonic()
        loaded = Loaded([], 0.0, time.time() - now) if journal is None else journal.load()
        config = replace(
            config,
            first_epoch=int((now + loaded.wall_offset_s) * 1e3),  # no life begins so many executors, or sequences,
            first_arrival=int((now + loaded.wall_offset_s) * 1e6),  # a second that the next one would begin below
            journal=JournalState.OFF if journal is None else JournalState.OK,
            first_batch=loaded.next_number,
            wall_offset_s=loaded.wall_offset_s,
        )
        self.core = Core(config, now, self._io_counts)
        links = ("executors", "frontends", *(["routers"] if kv_events is not None else []))
        self._drops = {link: DropLog(log, link) for link in links}
        self._executors: Router[m.ExecutorToScheduler] = Router(
            executor_endpoint,
            m.ExecutorToScheduler,
            self._drops["executors"],
            self._wrong_version,
            curve=curve,
            max_message_bytes=MAX_EXECUTOR_MESSAGE_BYTES,
        )
        self._fronts: Router[m.FrontendToCore] = Router(
            frontend_endpoint, m.FrontendToCore, self._drops["frontends"], trusts_all=True
        )
        self._poller = zmq.Poller()
        for router in (self._executors, self._fronts):
            self._poller.register(router.fileno(), zmq.POLLIN)
        self.kv_events: KvEventPublisher | None = None
        if kv_events is not None and self.core.scheduler.cache_events is not None:
            self.kv_events = KvEventPublisher(kv_events, self.core.scheduler.cache_events, self._drops["routers"])
            self.kv_events.register(self._poller)
        self._api_keys = KeyFileWatch(api_keys_file) if api_keys_file is not None else None
        self._key_reader = KeyReader(self._api_keys.reload, "API keys") if self._api_keys is not None else None
        self._names = {client_id: name for name, client_id in (config.client_ids or {"": ""}).items()}
        self._store = None
        if store is not None and store.folder is not None:
            self._store = StoreWatch(store.folder, store.limit_bytes, self._client_names)
        self._journal = journal
        self._processes = processes
        self._process_use = ProcessUse(dict if processes is None else processes.named)
        routers = (self._executors, self._fronts)
        clocks = time.monotonic, time.thread_time
        kill = None if processes is None else processes.end
        self._event_loop = EventLoop(self.core, *routers, journal, *clocks, _LogWriter(), kill)
        if journal is not None:
            self._open_journal(journal, loaded, now)

    @property
    def executor_endpoint(self) -> str:
        """Where executors connect to (with the port that was picked, if it was 0)."""
        return self._executors.endpoint

    def turn(self) -> None:
        """Wait for something to happen (at most a tick) and do all that follows from it."""
        has_unread = self._executors.has_unread or self._fronts.has_unread
        has_unread = has_unread or (self.kv_events is not None and self.kv_events.has_more)
        self._poller.poll(0 if has_unread else ceil(1000 * self._event_loop.max_wait_s))
        self._event_loop.turn()
        if self.kv_events is not None:
            self.kv_events.turn()

    def crashed(self) -> None:
        """A turn has raised an error of ours: write to the journal that this life has crashed, and nothing else."""
        log.exception("core failed")
        if self._journal is not None:
            self._journal.write(self.core.crashed())
            self._journal.close()  # when that is written; the sockets end with the process

    def close(self) -> None:
        """Tell the executors, write what the journal lacks, and close the sockets."""
        self._event_loop.carry_out(self.core.shut_down(time.monotonic()))
        if self._journal is not None:
            while not self._event_loop.settle():
                self._journal.wait(SETTLE_MS / 1000)
            self._journal.close()
        self._executors.close()
        self._fronts.close()
        if self.kv_events is not None:
            self.kv_events.close()
        if self._key_reader is not None:
            self._key_reader.stop()
        if self._store is not None:
            self._store.stop()

    def _wrong_version(self, peer: Peer, address: str, error: VersionError) -> None:
        """Tell an executor of another version, whose Hello cannot be read, why it may not join."""
        actions = self.core.executor_of_other_version(peer, address, str(error))
        self._event_loop.carry_out(actions)

    def _open_journal(self, journal: Journal, loaded: Loaded, now: float) -> None:
        """Take up what an earlier life has left, unless that is too long ago, and begin the journal anew with it."""
        legacy = Legacy.of(loaded)
        if legacy.damage:
            facts = {"records_damaged": legacy.num_damaged, "requests_cut": ",".join(legacy.cut)}
            journal.set_aside(legacy.damage, [] if legacy.num_too_old else loaded.batches, **facts)
        if legacy.num_too_old:
            ages = {"age_s": loaded.age_s, "limit_s": RESUME_WITHIN_S}
            log.warning("requests of the journal are too old", requests=legacy.num_too_old, **ages)
        self._event_loop.carry_out(self.core.restore(legacy.requests, now, legacy.life, legacy.shares))
        journal.start()
        self._poller.register(journal.fileno(), zmq.POLLIN)
        journal.write(self.core.new_journal(now))

    def _client_names(self) -> dict[str, str]:
        """Return the names of API keys by the ids of their clients: of the start, and of the file as it is now."""
        keys = self._api_keys.keys if self._api_keys is not None else ()
        return self._names | {key.client_id: key.name for key in keys}

    def _store_status(self) -> m.StoreStatus | None:
        status = None if self._store is None else self._store.status
        if status is None or self._processes is None:
            return status
        return msgspec.structs.replace(status, worker=self._processes.worker_state)

    def _io_counts(self) -> IoCounts:
        return IoCounts(
            messages_dropped={link: drops.count for link, drops in self._drops.items()},
            journal_bytes=0 if self._journal is None else self._journal.num_bytes,
            process_failures={} if self._processes is None else self._processes.num_failures,
            collectors=(self._process_use,),
            store=self._store_status(),
            store_unreadable="" if self._store is None else self._store.failure,
            keys_unreadable={
                "clients": self._api_keys.failure if self._api_keys is not None else "",
                "executors": self._executors.keys_failure,
            },
        )


class _LogWriter:
    """Writes the lines of the core."""

    def __init__(self) -> None:
        self._seldom: dict[str, QuietLog] = {}

    def __call__(self, line: WriteLog) -> None:
        if line.is_seldom:
            self._seldom.setdefault(line.event, QuietLog(log, line.event)).happened(**line.facts)
        else:
            getattr(log, line.level)(line.event, **line.facts)
