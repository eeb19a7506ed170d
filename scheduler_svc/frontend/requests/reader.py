"""From a body's bytes to what the core is asked: checked, tokenized, its grammar compiled. No HTTP in here."""

from collections.abc import Callable, Generator, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.grammars.checker_process import CheckerProcess
from scheduler_svc.frontend.grammars.compiler import GrammarCompiler
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.body import Parsed, parse_noting
from scheduler_svc.frontend.requests.chat_steps import ChatRenderer, ChatSteps
from scheduler_svc.frontend.requests.ignored import IgnoredFields, place_of
from scheduler_svc.frontend.requests.served import check_model
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions

Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")
Tokenize = Callable[[Body, Tokenizer, int], TokenizedRequest | ChatSteps[TokenizedRequest]]


LEFT_OUT = "baton.left_out"  # in the ASGI scope of a request: names of the parts that were left out of it


class _OfModel(Protocol):
    """A body that names a model."""

    model: str


class RequestReader:
    """Reads the requests of one frontend. What is long is worked on in threads, as nothing may hold up every stream for
    it; chats are rendered, and grammars compiled, by other processes.

    Args:
        link: says how long the model's sequences may be, and counts fields that are ignored.
        long_work: the threads, which others have work for, too.

    Attributes:
        tokenizer: of the served model.
        options: say what of a request is ignored instead of refused.
    """

    def __init__(self, link: CoreLink, tokenizer: Tokenizer, options: FrontendOptions, long_work: LongWork) -> None:
        self.tokenizer = tokenizer
        self._link = link
        self.options = options
        self._long_work = long_work
        self._grammars = GrammarCompiler(CheckerProcess(tokenizer.folder, tokenizer.eos_token_ids))
        self._chats = ChatRenderer(tokenizer, long_work)
        self._ignored = IgnoredFields()

    async def read(
        self,
        raw: bytes,
        schema: type[Body],
        tokenize: Tokenize[Body],
        client: ApiClient,
        scope: MutableMapping[str, Any] | None = None,
    ) -> tuple[Body, TokenizedRequest]:
        """`parse` and `tokenize` in one."""
        body = await self.parse(raw, schema, client, scope=scope)
        return body, await self.tokenize(body, tokenize, len(raw), client)

    async def parse(
        self,
        raw: bytes,
        schema: type[Body],
        client: ApiClient,
        names: Sequence[str] | None = None,
        scope: MutableMapping[str, Any] | None = None,
    ) -> Body:
        """A body as its schema has it. Raises ApiError for what it is not, or if it asks for another model.

        Args:
            client: who sent it; ignored fields are logged once for each client.
            names: of the model that it may ask for; None for those of the served model.
            scope: of its HTTP request, which is told what was left out of it; None if it has none.
        """
        served = self.options.served_model_name if names is None else names

        def work() -> Parsed[Body]:
            parsed = parse_noting(raw, schema, self.options)
            of_model: _OfModel = parsed.body  # type: ignore[assignment]  # each of these schemas has it
            check_model(of_model.model, served)
            return parsed

        body, ignored, left_out = await self._long_work.run(client.id, len(raw), work)
        if left_out and scope is not None:
            scope[LEFT_OUT] = left_out
        self._ignored.log(client.name, ignored)
        for name in ignored:
            self._link.counts.ignored(place_of(name))
        return body

    async def tokenize(
        self,
        body: Body,
        tokenize: Tokenize[Body],
        size: int,
        client: ApiClient,
    ) -> TokenizedRequest:
        """What the core is asked for a body. Raises ApiError and RequestRejected as `tokenize` does, and for a grammar
        that is refused.

        Args:
            tokenize: takes the body, the tokenizer, and the positions that a sequence may have, 0 while that is not
                known.
            size: of what is tokenized, in characters or so.
        """
        max_model_len = self._link.fleet.max_model_len
        tokenized = await self._long_work.run(client.id, size, lambda: tokenize(body, self.tokenizer, max_model_len))
        if isinstance(tokenized, Generator):
            tokenized = await self.finish(tokenized, size, client)
        if (asked := tokenized.grammar) is None:
            return tokenized
        return tokenized.compiled(await self._grammars.compile(asked.spec, asked.param, client.id))

    async def finish(self, steps: ChatSteps[Result], size: int, client: ApiClient) -> Result:
        """What a chat of this size becomes (`ChatRenderer.finish`)."""
        return await self._chats.finish(steps, size, client.id)

    async def long_work(self, owner: str, size: int, work: Callable[[], Result]) -> Result:
        """Do other work on something of this size where it holds nothing up."""
        return await self._long_work.run(owner, size, work)
