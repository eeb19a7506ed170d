"""What a frontend may ask the core. Every question raises RequestRejected if the core does not answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from common import messages as m
from scheduler_svc.frontend.link.queries import Query, Reply


class Questions(ABC):
    """The questions; how they travel is the link's."""

    @abstractmethod
    async def ask(self, query: Callable[..., Query], expected: type[Reply]) -> Reply:
        """The core's answer to the query that this makes of an id."""

    async def status(self) -> m.StatusReport:
        """The service as `GET /status` shows it."""
        return (await self.ask(m.StatusQuery, m.Status)).report

    async def drain(self, executor: str, *, finish: bool) -> m.DrainReply:
        """Let an executor leave."""
        return await self.ask(partial(m.DrainExecutor, executor=executor, finish=finish), m.DrainReply)

    async def life(self, request_id: str) -> m.Life:
        """What became of a request, named as the core names it."""
        return await self.ask(partial(m.LifeQuery, request_id=request_id), m.Life)

    async def block_holders(self, epoch: int, block: int) -> tuple[m.BlockHolder, ...]:
        """Which sequences have a block of an executor now."""
        return (await self.ask(partial(m.BlockQuery, epoch=epoch, block=block), m.BlockHolders)).holders
