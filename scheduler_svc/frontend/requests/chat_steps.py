"""Chats between their two steps: what is to be rendered goes to the template's process, and its text comes back.

A function that makes something of a chat is a generator: it yields the conversation, is sent its text, and returns what
it has made. So it holds neither the event loop nor a thread while another process works.
"""

import asyncio
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from scheduler_svc.frontend.client_turns import ClientTurns
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.text.template_program import Ending
from scheduler_svc.frontend.text.tokenizer import Tokenizer

Result = TypeVar("Result")


class Conversation(NamedTuple):
    """What `Tokenizer.render_chat` takes."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]
    ending: Ending


ChatSteps = Generator[Conversation, str, Result]


class ChatRenderer:
    """Takes chats through their steps. One is rendered at a time, and clients take turns: one whose chats take as long
    as they may delays another by `RENDER_MAY_TAKE_S` and the start of a process."""

    def __init__(self, tokenizer: Tokenizer, long_work: LongWork) -> None:
        self._tokenizer = tokenizer
        self._long_work = long_work
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chat template")
        self._turns = ClientTurns()

    async def finish(self, steps: ChatSteps[Result], size: int, client: str) -> Result:
        """What a chat becomes. Raises what its steps raise, and RequestRejected if it cannot be rendered.

        Args:
            size: of it, in characters or so.
            client: id of the API key that it came with, empty without keys.
        """
        done = await self._long_work.run(client, size, partial(_next, steps, None))
        while isinstance(done, Conversation):
            text = await self._render(done, client)
            # A template can make much of a few messages.
            done = await self._long_work.run(client, max(size, len(text)), partial(_next, steps, text))
        return done

    async def _render(self, conversation: Conversation, client: str) -> str:
        async with self._turns.take(client):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._tokenizer.render_chat, *conversation)


def _next(steps: ChatSteps[Result], text: str | None) -> Conversation | Result:
    try:
        return steps.send(cast(str, text))
    except StopIteration as stop:
        return cast(Result, stop.value)
