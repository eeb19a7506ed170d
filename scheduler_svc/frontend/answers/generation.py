"""One HTTP request while it runs: deltas in, pieces of text and log-probabilities out; streaming or not, one path."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from common import messages as m
from common.errors import RequestRejected
from common.logging import get_logger
from common.wire import int32_array
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import Delivered, Position
from scheduler_svc.frontend.answers.logprobs import Entry, LogprobReader, LogprobsJson, delta_bytes
from scheduler_svc.frontend.answers.openai_objects import PromptTokensDetails, Usage
from scheduler_svc.frontend.errors import ClientGone
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.text.detokenizer import Detokenizer
from scheduler_svc.frontend.text.sequence_text import SequenceText, TextRules
from scheduler_svc.frontend.text.stop_strings import StopStrings
from scheduler_svc.frontend.text.tokenizer import Tokenizer

log = get_logger(__name__)

Deltas = Sequence[tuple[int, m.TokenDelta]]  # each with its choice
# Of ids, of tokens and of log-probabilities: 8 ms with stop strings, and 50 ms if these and the tokens are long.
MAX_BYTES_AT_ONCE = 4 * 2048


class Piece(NamedTuple):
    """New text of one choice.

    Attributes:
        finish_reason: why the choice ended with it, if it did.
        num_tokens: number of the choice's tokens up to the end of this text.
        model: the model that computed it, as in `TokenDelta.model`.
        logprobs: of the tokens that came since the choice's last piece; None if the request asked for none.
    """

    choice: int
    text: str
    finish_reason: str | None
    num_tokens: int
    model: str
    logprobs: list[Entry] | None = None


class WholeChoice(NamedTuple):
    """One choice of an answer that is not streamed; logprobs are None if the request asked for none."""

    choice: int
    text: str
    finish_reason: str
    logprobs: msgspec.Raw | None


@dataclass(frozen=True)
class AnswerSpec:
    """What is asked of a Generation.

    Attributes:
        answer_id: id of the answer, as the client sees it.
        num_prompt_tokens: sum over all prompts.
        position: what the client has already.
    """

    answer_id: str
    context: AnswerContext
    num_prompt_tokens: int
    position: Position


class Generation:
    """An answer while it is generated. Use it in a `with`: at its end the core is told which sequences have no reader.

    Attributes:
        model: the model that computed the newest tokens; empty before the first.
    """

    def __init__(self, queue: DeltaQueue, tokenizer: Tokenizer, spec: AnswerSpec) -> None:
        self.spec = spec
        self.model = ""
        self._queue = queue
        self._n = spec.context.n
        rules = _text_rules(spec.context, tokenizer)
        self._choices = [_Choice(rules, spec.context.logprobs, tokenizer, choice) for choice in spec.position.choices]
        self._num_unfinished = len(self._choices)
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

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What the client does not have yet, turn by turn, until all choices have ended. A choice has at most one piece
        in a turn, unless another model continued it.

        Raises:
            RequestRejected: the core refused or failed the request, or the connection to the core broke.
        """
        while self._num_unfinished:
            for part in _parts(await self._queue.get()):
                pieces, failure = self._read(part)
                if pieces:
                    yield pieces
                if failure is not None:
                    raise failure
                await asyncio.sleep(0)

    async def whole(self) -> list[WholeChoice]:
        """Every choice, complete and in order. Raises as `pieces` does."""
        reasons = ["stop"] * len(self._choices)
        texts: list[list[str]] = [[] for _ in self._choices]
        logprobs = [LogprobsJson(self.spec.context.kind) for _ in self._choices]
        async for pieces in self.pieces():
            for piece in pieces:
                reasons[piece.choice] = piece.finish_reason or "stop"
                texts[piece.choice].append(piece.text)
                if piece.logprobs is not None:
                    logprobs[piece.choice].add(piece.logprobs)
        has_logprobs = self.spec.context.logprobs > 0
        return [
            WholeChoice(choice, "".join(texts[choice]), reason, logprobs[choice].json() if has_logprobs else None)
            for choice, reason in enumerate(reasons)
        ]

    @property
    def usage(self) -> Usage:
        """Tokens so far. A prompt counts once however many sequences it has."""
        prompt = self.spec.num_prompt_tokens
        completion = sum(choice.text.num_tokens for choice in self._choices)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._num_cached)),
        )

    def _read(self, deltas: Deltas) -> tuple[list[Piece], RequestRejected | None]:
        """The pieces of these deltas that the client does not have, and why the answer ends here, if it failed."""
        pieces: dict[int, list[Piece]] = {}
        failure = None
        for number, delta in deltas:
            choice = self._choices[number]
            if choice.text.has_ended:
                continue  # its stop string was found earlier in these deltas
            prompt, sequence = divmod(number, self._n)
            if sequence == 0:  # the other sequences find what the first one computed, which saved the client nothing
                self._num_cached[prompt] = max(self._num_cached[prompt], delta.num_cached_tokens)
            if delta.model:
                self.model = choice.model = delta.model
            text, finish_reason, failed = choice.read(delta)
            failure = failure or failed
            if finish_reason is not None:
                self._num_unfinished -= 1
                self._queue.end(number)
            if (text or finish_reason) and not choice.is_delivered:
                logprobs = None if choice.logprobs is None else choice.logprobs.take()
                piece = Piece(number, text, finish_reason, choice.text.num_tokens, choice.model, logprobs)
                pieces[number] = _joined(pieces.get(number, []), piece)
        return [piece for choice_pieces in pieces.values() for piece in choice_pieces], failure


class _Choice:
    """One sequence of the answer.

    Attributes:
        text, logprobs: what its tokens become; no logprobs if the client wants none, or has them all.
        model: the model that computed its newest tokens.
        is_delivered: the client has all of it; its tokens are counted for the usage only.
    """

    def __init__(self, rules: TextRules, num_logprobs: int, tokenizer: Tokenizer, delivered: Delivered) -> None:
        self.text = SequenceText(rules, delivered.num_tokens)
        self.logprobs: LogprobReader | None = None
        self.model = ""
        self.is_delivered = delivered.has_ended
        if num_logprobs and not self.is_delivered:
            offsets = Detokenizer(rules.token_bytes)
            self.logprobs = LogprobReader(num_logprobs, tokenizer.token_texts, offsets, delivered.num_tokens)

    def read(self, delta: m.TokenDelta) -> tuple[str, str | None, RequestRejected | None]:
        """New text, why the choice ended if it did, and the failure if it failed."""
        failure = _failure(delta)
        token_ids = int32_array("token_ids", delta.token_ids).tolist()
        num_tokens = self.text.num_tokens
        text, finish_reason = self.text.feed(token_ids, None if failure else delta.finish_reason)
        if self.logprobs is not None:
            self.logprobs.read(delta, self.text.num_tokens - num_tokens)
        if failure is None or self.text.has_ended:  # the core was asked to cancel what comes after a stop string
            return text, finish_reason, None
        if self.is_delivered:  # it ended without a failure, and the client knows
            self.text.has_ended = True
            return "", delta.finish_reason, None
        return text, None, failure


def _text_rules(context: AnswerContext, tokenizer: Tokenizer) -> TextRules:
    shows_stop = context.include_stop_str_in_output
    return TextRules(
        tokenizer.token_bytes if context.skip_special_tokens else tokenizer.all_token_bytes,
        StopStrings(context.stop, are_shown=shows_stop) if context.stop else None,
        context.min_tokens,
        shows_stop,
    )


def _parts(deltas: Deltas) -> list[Deltas]:
    """The deltas in parts that keep no other stream waiting: after an attach they may be whole answers."""
    if sum(delta_bytes(delta) for _, delta in deltas) <= MAX_BYTES_AT_ONCE:
        return [deltas]
    parts: list[list[tuple[int, m.TokenDelta]]] = [[]]
    num_bytes = 0
    for choice, delta in deltas:
        for part in _delta_parts(delta):
            if parts[-1] and num_bytes + delta_bytes(part) > MAX_BYTES_AT_ONCE:
                parts.append([])
                num_bytes = 0
            parts[-1].append((choice, part))
            num_bytes += delta_bytes(part)
    return list(parts)


def _delta_parts(delta: m.TokenDelta) -> list[m.TokenDelta]:
    if delta_bytes(delta) <= MAX_BYTES_AT_ONCE:
        return [delta]
    count = len(delta.logprob_ids) // (len(delta.token_ids) or 4)  # log-probabilities of a token
    size = max(MAX_BYTES_AT_ONCE // 4 // (1 + count), 1) * 4
    starts = range(0, max(len(delta.token_ids), 1), size)
    return [
        msgspec.structs.replace(
            delta,
            token_ids=delta.token_ids[start : start + size],
            logprob_ids=delta.logprob_ids[start * count : (start + size) * count],
            logprobs=delta.logprobs[start * count : (start + size) * count],
            finish_reason=delta.finish_reason if start == starts[-1] else None,
        )
        for start in starts
    ]


def _failure(delta: m.TokenDelta) -> RequestRejected | None:
    match delta.finish_reason:
        case "error":
            return RequestRejected(delta.error or "the request failed", delta.code or "internal_error")
        case "cancelled":
            return RequestRejected("the request was cancelled", "cancelled")
        case _:
            return None


def _joined(pieces: list[Piece], piece: Piece) -> list[Piece]:
    """A choice's pieces with one more; neighbours from one model are joined."""
    if not pieces or pieces[-1].model != piece.model:
        return [*pieces, piece]
    logprobs = None if piece.logprobs is None else [*(pieces[-1].logprobs or ()), *piece.logprobs]
    return [*pieces[:-1], piece._replace(text=pieces[-1].text + piece.text, logprobs=logprobs)]
