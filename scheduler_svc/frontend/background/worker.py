"""What the background worker does: it runs the responses and batches that the store has open, or it is told of."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from common.errors import BatonError
from common.logging import get_logger
from scheduler_svc.frontend.answers.responses.events import Outcome
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.background.batches import Batches
from scheduler_svc.frontend.background.pace import RESTS, Rests
from scheduler_svc.frontend.background.patient_store import PatientStore
from scheduler_svc.frontend.background.response_run import RETRY_S, ResponseRun
from scheduler_svc.frontend.background.traced_work import traced
from scheduler_svc.frontend.background.turns import MOST, OF_OWNER, Name, Turns
from scheduler_svc.frontend.errors import internal_error
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.responses.background_work import BackgroundWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend.tracing.tracing import Tracing
from scheduler_svc.store import responses
from scheduler_svc.store.database import data_version
from scheduler_svc.store.errors import NotFound
from scheduler_svc.store.records import OPEN_RESPONSE, OpenResponse
from scheduler_svc.store.store_thread import SERVICE, StoreThread

PAGE = 100
CANCEL_TIMEOUT_S = 5.0

log = get_logger(__name__)


@dataclass(frozen=True)
class Tempo:
    """How many responses run, and how soon something is tried again.

    Attributes:
        most: responses that are open at once.
        rests: after refusals of the core.
        turn_s: between two looks whether a rest is over.
        retry_s: from one connection to the core to the next, for one response.
        rescan_s: between two looks at the store, for what a frontend could not tell.
    """

    most: int = MOST
    rests: Rests = RESTS
    turn_s: float = 0.25
    retry_s: float = RETRY_S
    rescan_s: float = 5.0


USUAL = Tempo()


class OpenPlace:
    """A response that waits or runs here.

    Attributes:
        run: None while it waits.
        is_cancelled: whether it was cancelled while it waited.
        has_changed: set when it runs, or has ended.
    """

    def __init__(self) -> None:
        self.run: ResponseRun | None = None
        self.is_cancelled = False
        self.has_changed = asyncio.Event()


class Worker:
    """Runs responses in the background, and batches. An owner is the id of an API key, empty without keys.

    Args:
        keys: say whose work may go on. That of others waits: whether a key is revoked, the store says.
        tracing: makes spans of responses; None makes none.
        tempo: of responses; batches have their own.

    Attributes:
        batches: that are open.
    """

    def __init__(
        self,
        link: CoreLink,
        tokenizer: Tokenizer,
        store: StoreThread,
        batches: Batches,
        keys: ApiKeys,
        tracing: Tracing | None = None,
        tempo: Tempo = USUAL,
    ) -> None:
        self.batches = batches
        self._tempo = tempo
        self._keys = keys
        self._tracing = tracing
        self._link = link
        self._tokenizer = tokenizer
        self._patient = PatientStore(store)
        self._places: dict[Name, OpenPlace] = {}
        self._turns = Turns(tempo.most, rests=tempo.rests)
        self._may_begin = asyncio.Event()  # something may
        self._has_news = asyncio.Event()  # the store has
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    @property
    def is_idle(self) -> bool:
        """Whether no response waits or runs here."""
        return not self._places

    async def run(self) -> None:
        """Take up what is open, and run what comes, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_store())
                tasks.create_task(self._give_turns())
                tasks.create_task(self.batches.run())
        finally:
            running = list(self._tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def stop(self) -> None:
        """Begin nothing more, and let all that runs go on without this worker: its readers are to ask again."""
        self._is_stopped = True
        for place in self._places.values():
            if place.run is not None:
                place.run.break_off()

    def look(self) -> None:
        """Look at the store now: the key of somebody was revoked."""
        self._has_news.set()
        self.batches.look()

    def start(self, owner: str, response_id: str) -> None:
        """Run a response that is in the store; it may run already."""
        name = owner, response_id
        if name not in self._places:
            self._places[name] = OpenPlace()
            self._turns.add(name)
            self._may_begin.set()

    async def cancel(self, owner: str, response_id: str) -> None:
        """End a response. Returns when the store has its end, unless that takes long."""
        place = self._places.get((owner, response_id))
        with contextlib.suppress(TimeoutError, NotFound):
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                if place is not None and place.run is not None:
                    place.run.cancel()
                    await place.run.is_kept.wait()
                    return
                if place is not None:
                    place.is_cancelled = True  # it may be on its way out of the store, where it was open a moment ago
                await self._patient.ask(owner, responses.cancel, owner, response_id, self._patient.now())

    async def running(self, owner: str, response_id: str, wait_s: float) -> ResponseRun | None:
        """A response that runs, or does within so long; None if it does not."""
        place = self._places.get((owner, response_id))
        if place is None:
            return None
        if place.run is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(place.has_changed.wait(), wait_s)
        return place.run

    async def _watch_store(self) -> None:
        """Take up what is open there: what an earlier worker has left, and what this one was not told of."""
        seen, is_first = -1, True
        while True:
            version = await self._patient.ask(SERVICE, data_version)
            if version != seen:
                num = await self._take_up()
                if is_first and num:
                    log.info("going on with responses in the background", responses=num)
                seen, is_first = version, False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_news.wait(), self._tempo.rescan_s)
            self._has_news.clear()

    async def _take_up(self) -> int:
        """Start all that is open, and end what is not any more, as its frontend could not tell. Returns how many are
        open."""
        before = [(name, place.run) for name, place in self._places.items() if place.run is not None]
        found: set[Name] = set()
        page: list[OpenResponse] = []
        while not found or len(page) == PAGE:
            last = page[-1] if page else None
            page = await self._patient.ask(
                SERVICE, responses.open_background, self._patient.now(), after=last, limit=PAGE
            )
            for record in page:
                found.add((record.owner, record.response_id))
                self.start(record.owner, record.response_id)
            if not page:
                break
        for name, run in before:
            if name not in found and run.outcome is None:
                run.cancel()  # cancelled, deleted or expired
        return len(found)

    async def _give_turns(self) -> None:
        """Begin with whatever may begin."""
        while True:
            while not self._is_stopped and (name := self._turns.next(time.monotonic())) is not None:
                task = asyncio.create_task(self._run(name, self._places[name]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self._may_begin.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._may_begin.wait(), self._tempo.turn_s if self._turns.is_waiting else None)

    async def _run(self, name: Name, place: OpenPlace) -> None:
        """Run one whose turn it is."""
        refusal = ""
        try:
            refusal = await self._carry_out(name, place)
        except BatonError as error:
            log.error("response cannot be run", response=name[1], reason=str(error))
            await self._keep(name, Outcome.failed("server_error", str(error)), b"")
        except Exception:
            log.exception("internal error", response=name[1])
            await self._keep(name, Outcome.failed("server_error", internal_error().message), b"")
        finally:
            if place.run is not None:
                place.run.is_kept.set()
                place.run = None
            if refusal:
                self._turns.refused(name, refusal, time.monotonic())
                place.has_changed.clear()
            else:
                self._turns.ended(name)
                del self._places[name]
                place.has_changed.set()
            self._may_begin.set()

    async def _carry_out(self, name: Name, place: OpenPlace) -> str:
        """Run one to its end. Returns the code with which the core, or this service, had no room for it; empty if it is
        over here.

        Raises:
            BatonError: another version of Baton has written what is to be done.
        """
        client = self._keys.of_id(name[0])
        if client is None:
            status = await self._patient.ask(name[0], responses.get_status, *name, self._patient.now())
            return OF_OWNER if status in OPEN_RESPONSE else ""
        encoded = await self._patient.ask(name[0], responses.begin, *name, self._patient.now())
        if not encoded or place.is_cancelled:
            return ""
        work = BackgroundWork.decode(encoded).sent_for(client)
        run = ResponseRun(self._link, self._tokenizer, work, lambda: self._taken(name), self._tempo.retry_s)
        if self._is_stopped:
            return ""
        place.run = run
        place.has_changed.set()
        with traced(self._tracing, client, work, run):
            outcome = await run.run()
        if outcome is not None:
            await self._keep(name, outcome, run.record)
        return run.refusal

    def _taken(self, name: Name) -> None:
        self._turns.taken(name)
        self._may_begin.set()

    async def _keep(self, name: Name, outcome: Outcome, tokens: bytes) -> None:
        """Write what a response has come to."""
        await self._patient.ask(
            name[0],
            responses.finish,
            *name,
            self._patient.now(),
            status=outcome.status,
            output_items=outcome.output,
            tail=outcome.tail,
            tokens=tokens,
        )
