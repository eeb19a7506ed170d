"""One HTTP request while it runs: deltas in, pieces of text and log-probabilities out; streaming or not, one path."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self

from msgspec import UNSET, Raw, UnsetType

from common import messages as m
from common.errors import RequestRejected, WireError
from common.logging import get_logger
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.choice import Choice, Piece, text_rules
from scheduler_svc.frontend.answers.delta_parts import MAX_BYTES_AT_ONCE, Deltas, parts_of
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.logprobs import LogprobsJson
from scheduler_svc.frontend.answers.message_text import joined_calls
from scheduler_svc.frontend.answers.openai_objects import CompletionTokensDetails, PromptTokensDetails, Usage
from scheduler_svc.frontend.answers.prompt_part import Prompt, PromptPart
from scheduler_svc.frontend.errors import ClientGone
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.parsing.message import CallPart, MessageRules
from scheduler_svc.frontend.text.tokenizer import Tokenizer

log = get_logger(__name__)


class WholeChoice(NamedTuple):
    """One choice of an answer that is not streamed; logprobs are None if the request asked for none, those of the
    prompt are UNSET. Thought and calls are those of a chat's message, beside its text."""

    choice: int
    text: str
    finish_reason: str
    logprobs: Raw | None
    prompt_logprobs: Raw | UnsetType = UNSET
    thought: str = ""
    calls: tuple[CallPart, ...] = ()


@dataclass(frozen=True)
class AnswerSpec:
    """What is asked of a Generation.

    Attributes:
        answer_id: id of the answer, as the client sees it.
        num_prompt_tokens: sum over all prompts.
        position: what the client has already.
        prompts: of `prompts_of`.
    """

    answer_id: str
    context: AnswerContext
    num_prompt_tokens: int
    position: Position
    prompts: Sequence[Prompt] = ()


class Generation:
    """An answer while it is generated. Use it in a `with`: at its end the core is told which sequences have no reader.

    Args:
        most_bytes: that are read before others have a turn, as of `parts_of`.

    Attributes:
        model: the model that computed the newest tokens; empty before the first.
    """

    def __init__(
        self, queue: DeltaQueue, tokenizer: Tokenizer, spec: AnswerSpec, *, most_bytes: int = MAX_BYTES_AT_ONCE
    ) -> None:
        self.spec = spec
        self._most_bytes = most_bytes
        self.model = ""
        self._queue = queue
        self._n = spec.context.n
        rules = text_rules(spec.context, tokenizer)
        self._prompts = [self._prompt_part(prompt, tokenizer) for prompt in range(spec.context.num_prompts)]
        self._choices = [
            Choice(number, rules, spec.context, tokenizer, delivered, self._prompts[number // self._n])
            for number, delivered in enumerate(spec.position.choices)
        ]
        self._num_unfinished = len(self._choices)
        self._reasons: list[str | None] = [None] * len(self._choices)
        self._num_cached = [0] * spec.context.num_prompts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, (asyncio.CancelledError, ClientGone)):
            self._queue.leave()
        else:
            self._queue.close()
        log.debug("answer ended", request=self.spec.answer_id, usage=self.usage, unfinished=self._num_unfinished)

    @property
    def goes_on(self) -> bool:
        """Whether only this connection to the core was lost: a client that comes back can read on."""
        return self._queue.is_resumable and self._queue.has_failed

    @property
    def rate_limits(self) -> m.RateLimits | None:
        """What its client has left of its limits; None if it has none, or the core has not said so yet."""
        return self._queue.rate_limits

    async def accepted(self) -> None:
        """Return when the core has accepted all of a new request, if it does."""
        await self._queue.accepted()

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What the client does not have yet, turn by turn, until all choices have ended. A choice has at most one piece
        in a turn, unless another model continued it, or its thought ended.

        Raises:
            RequestRejected: the core refused or failed the request, or the connection to the core broke.
        """
        context = self.spec.context
        if self.spec.position.is_end:
            return
        divided = partial(
            parts_of,
            num_prompt_logprobs=context.num_prompt_logprobs,
            are_parsed=context.message != MessageRules(),
            most_bytes=self._most_bytes,
        )
        while self._num_unfinished:
            for part in divided(await self._queue.get()):
                pieces, failure = self.read(part)
                if pieces:
                    yield self._with_usage(pieces) if context.has_chunk_usage else pieces
                if failure is not None:
                    raise failure
                await asyncio.sleep(0)

    def read(self, deltas: Deltas) -> tuple[list[Piece], RequestRejected | None]:
        """The pieces of these deltas that the client does not have, and why the answer ends here, if it failed."""
        touched: dict[int, None] = {}
        failure = None
        for number, delta in deltas:
            choice = self._choices[number]
            if choice.text.has_ended:
                continue  # its stop string was found earlier in these deltas
            touched[number] = None
            prompt, sequence = divmod(number, self._n)
            if sequence == 0:  # the other sequences find what the first one computed, which saved the client nothing
                self._num_cached[prompt] = max(self._num_cached[prompt], delta.num_cached_tokens)
            part = self._prompts[prompt]
            if delta.prompt_logprob_ids:
                if part is None or sequence != 0:
                    raise WireError(f"nobody asked sequence {sequence} for its prompt's log-probabilities")
                part.read(delta)
                touched |= dict.fromkeys(range(number, number + self._n))  # those that waited for it
            if delta.model:
                self.model = delta.model
            finish_reason, failed = choice.read(delta)
            failure = failure or failed
            if finish_reason is not None:
                self._num_unfinished -= 1
                self._reasons[number] = finish_reason
                self._queue.end(number)
                if sequence == 0 and part is not None and not part.is_complete:
                    message = "log-probabilities of the prompt are missing"
                    failure = failure or RequestRejected(message, "internal_error")
        return [piece for number in touched for piece in self._choices[number].take()], failure

    async def whole(self) -> list[WholeChoice]:
        """Every choice, complete and in order. Raises as `pieces` does."""
        reasons = ["stop"] * len(self._choices)
        texts: list[list[str]] = [[] for _ in self._choices]
        thoughts: list[list[str]] = [[] for _ in self._choices]
        calls: list[list[CallPart]] = [[] for _ in self._choices]
        form: Literal["completion", "chat"] = "completion" if self.spec.context.kind == "completion" else "chat"
        logprobs = [LogprobsJson(form) for _ in self._choices]
        async for pieces in self.pieces():
            for piece in pieces:
                reasons[piece.choice] = piece.finish_reason or "stop"
                texts[piece.choice].append(piece.text)
                thoughts[piece.choice].append(piece.thought)
                calls[piece.choice] += piece.calls
                if piece.echoed is not None:
                    logprobs[piece.choice] = piece.echoed.copy()
                if piece.logprobs is not None:
                    logprobs[piece.choice].add(piece.logprobs)
        has_logprobs, has_listed = self.spec.context.logprobs > 0, self.spec.context.prompt_logprobs > 0
        listed = [prompt.listed() if prompt and has_listed else UNSET for prompt in self._prompts]
        choices = []
        for choice, reason in enumerate(reasons):
            await asyncio.sleep(0)  # what is put together here may be megabytes
            log_probabilities = logprobs[choice].json() if has_logprobs else None
            text, prompt = "".join(texts[choice]), listed[choice // self._n]
            thought = "".join(thoughts[choice])
            whole_calls = joined_calls(calls[choice])
            choices.append(WholeChoice(choice, text, reason, log_probabilities, prompt, thought, whole_calls))
        return choices

    @property
    def finish_reasons(self) -> Sequence[str | None]:
        """Why each choice ended; None for one that has not, or has failed."""
        return self._reasons

    @property
    def has_tokens(self) -> bool:
        """Whether any choice has one."""
        return any(choice.text.num_tokens for choice in self._choices)

    @property
    def num_tokens(self) -> int:
        """Of all choices so far."""
        return sum(choice.text.num_tokens for choice in self._choices)

    @property
    def usage(self) -> Usage:
        """Tokens so far. A prompt counts once however many sequences it has."""
        prompt, completion = self.spec.num_prompt_tokens, self.num_tokens
        details: CompletionTokensDetails | UnsetType = UNSET
        if self.spec.context.message.thought != "none":
            details = CompletionTokensDetails(sum(choice.num_thought_tokens for choice in self._choices))
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._num_cached)),
            completion_tokens_details=details,
        )

    def _with_usage(self, pieces: list[Piece]) -> list[Piece]:
        """The same, each with the usage so far."""
        usage = self.usage
        return [piece._replace(usage=usage) for piece in pieces]

    def _prompt_part(self, number: int, tokenizer: Tokenizer) -> PromptPart | None:
        """What is shown of a prompt; None for nothing."""
        if not self.spec.prompts:
            return None
        choices = self.spec.position.choices[number * self._n : (number + 1) * self._n]
        num_waiting = sum(not choice.has_opened for choice in choices)
        return PromptPart(self.spec.context, self.spec.prompts[number], tokenizer, num_waiting=num_waiting)
