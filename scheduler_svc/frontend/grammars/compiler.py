"""Grammars of requests, compiled by a process beside the frontend that may die of them or be killed."""

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import msgspec

from scheduler_svc.frontend.client_turns import ClientTurns
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.checker_process import CheckerProcess
from scheduler_svc.frontend.grammars.spec import Checked, GrammarSpec
from scheduler_svc.frontend.helper_process import HelperUnavailable

MAX_WAITING = 16
MAX_REMEMBERED_CHARS = 2**23
MAX_REASON_CHARS = 600


class GrammarCompiler:
    """Compiles one grammar at a time, and remembers what became of those that were asked for lately.

    Args:
        process: compiles; it is ended by `close`.
        max_waiting: compilations of a client.
        max_remembered_chars: of all that is remembered.
    """

    def __init__(
        self,
        process: CheckerProcess,
        *,
        max_waiting: int = MAX_WAITING,
        max_remembered_chars: int = MAX_REMEMBERED_CHARS,
    ) -> None:
        self._process = process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._turns = ClientTurns(max_waiting, "Too many grammars are being compiled.")
        self._max_remembered_chars = max_remembered_chars
        self._known: OrderedDict[bytes, Checked] = OrderedDict()
        self._known_chars = 0

    async def compile(self, spec: GrammarSpec, param: str, client: str) -> str:
        """The grammar in llguidance's own format.

        Args:
            client: id of the API key that it came with, empty without keys.
            param: the request's parameter that has the spec; errors name it.

        Raises:
            ApiError: (400) the grammar is refused; (503) too many of the client wait, or the process does not start.
        """
        name = hashlib.blake2b(msgspec.msgpack.encode(spec)).digest()
        checked = self._known.get(name)
        if checked is None:
            async with self._turns.take(client):
                checked = self._known.get(name)  # another request may have asked for the same meanwhile
                if checked is None:
                    checked = await self._check(spec, param)
                    self._remember(name, checked)
        else:
            self._known.move_to_end(name)
        if checked.reason:
            raise _refusal(param, checked.reason)
        return checked.grammar

    def close(self) -> None:
        """End the process."""
        self._thread.shutdown()
        self._process.close()

    async def _check(self, spec: GrammarSpec, param: str) -> Checked:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._process.check, spec)
        except TimeoutError:  # not remembered: on a machine with less to do it may take less
            raise _refusal(param, f"compiling it takes more than {self._process.compile_may_take_s:g} s") from None
        except HelperUnavailable as error:
            message = "Grammars cannot be compiled now; the server's log says more."
            raise ApiError(503, message, code="unavailable", retry=True) from error

    def _remember(self, name: bytes, checked: Checked) -> None:
        self._known[name] = checked
        self._known_chars += _size(checked)
        while self._known_chars > self._max_remembered_chars:
            self._known_chars -= _size(self._known.popitem(last=False)[1])


def _refusal(param: str, reason: str) -> ApiError:
    """The error for a grammar, on one line: reasons quote the grammar with an arrow below the place."""
    reason = " ".join(reason.split())[:MAX_REASON_CHARS].rstrip(".")
    return ApiError(400, f"Invalid value for '{param}': {reason}.", code="invalid_grammar", param=param)


def _size(checked: Checked) -> int:
    return 512 + len(checked.grammar) + len(checked.reason)
