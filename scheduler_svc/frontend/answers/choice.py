"""One choice of an answer: its deltas in, pieces of its text and log-probabilities out."""

from typing import NamedTuple

import msgspec

from common import messages as m
from common.errors import RequestRejected
from common.wire import int32_array
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import Delivered
from scheduler_svc.frontend.answers.failure import failure_of
from scheduler_svc.frontend.answers.logprobs import Entry, LogprobReader, LogprobsJson
from scheduler_svc.frontend.answers.message_text import MessageText, joined_calls
from scheduler_svc.frontend.answers.openai_objects import Usage
from scheduler_svc.frontend.answers.prompt_part import PromptPart
from scheduler_svc.frontend.parsing.message import CallPart, MessageRules
from scheduler_svc.frontend.text.detokenizer import Detokenizer
from scheduler_svc.frontend.text.sequence_text import SequenceText, TextRules
from scheduler_svc.frontend.text.stop_strings import StopStrings
from scheduler_svc.frontend.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """What is new of one choice.

    Attributes:
        text: of the content.
        finish_reason: why the choice ended with it, if it did.
        num_tokens: number of the choice's tokens up to the end of this text.
        model: the model that computed it, as in `TokenDelta.model`.
        thought: what the model thought before it answered.
        calls: of tools; a part of each at most.
        logprobs: of the tokens that came since the choice's last piece; None if the request asked for none.
        echoed: of the prompt's tokens, which come before those; None if the text does not begin with the prompt's.
        usage: of the whole answer so far, if each chunk has it.
        stop_string: that ended the choice with this piece; empty if none did.
        has_cut_call: whether the finish reason is "length" because arguments of a call are no JSON, and not for the
            number of tokens.
    """

    choice: int
    text: str
    finish_reason: str | None
    num_tokens: int
    model: str
    thought: str = ""
    calls: tuple[CallPart, ...] = ()
    logprobs: list[Entry] | None = None
    echoed: LogprobsJson | None = None
    usage: Usage | None = None
    stop_string: str = ""
    has_cut_call: bool = False


class Choice:
    """One sequence of the answer.

    Args:
        rules: `text_rules` of the answer.
        delivered: what the client has of it.
        prompt: what it shows of its prompt; None for nothing.

    Attributes:
        text: what its tokens become.
    """

    def __init__(
        self,
        number: int,
        rules: TextRules,
        context: AnswerContext,
        tokenizer: Tokenizer,
        delivered: Delivered,
        prompt: PromptPart | None,
    ) -> None:
        self._message: MessageText | None = None
        if context.message == MessageRules():
            self.text = SequenceText(rules, delivered.num_tokens)
        else:
            self._message = MessageText(rules, context.message, delivered.num_tokens)
            self.text = self._message.text
        self._hides_thought = context.hides_thought
        self._number = number
        self._model = ""
        self._is_delivered = delivered.has_ended
        self._is_prompt_only = context.is_prompt_only
        self._is_numbered = context.is_numbered
        self._awaited = None if delivered.has_opened else prompt  # its first piece has that, too
        self._pieces: list[Piece] = []  # the client does not have them
        self._logprobs: LogprobReader | None = None
        if context.logprobs and not self._is_delivered:
            offsets = Detokenizer(rules.token_bytes)
            offset = 0 if prompt is None else prompt.num_characters
            self._logprobs = LogprobReader(
                context.logprobs, tokenizer.token_texts, offsets, delivered.num_tokens, offset
            )

    @property
    def num_thought_tokens(self) -> int:
        """Tokens of the thought, with its tags."""
        return 0 if self._message is None else self._message.num_thought_tokens

    def read(self, delta: m.TokenDelta) -> tuple[str | None, RequestRejected | None]:
        """Take the delta's tokens. Returns why the choice ended if it did, and the failure if it failed."""
        if self._is_prompt_only:
            delta = _without_token(delta)
        self._model = delta.model or self._model
        failure = failure_of(delta)
        num_tokens = self.text.num_tokens
        token_ids = int32_array("token_ids", delta.token_ids).tolist()
        reason = None if failure else delta.finish_reason
        read = self._read_singly if self._is_numbered else self._read
        pieces, finish_reason = read(token_ids, reason)
        if self._logprobs is not None:
            self._logprobs.read(delta, self.text.num_tokens - num_tokens)
            if self._hides_thought:
                self._logprobs.take(self.num_thought_tokens)
        if pieces and not self._is_delivered:
            self._add(pieces)
        if failure is None or self.text.has_ended:  # the core was asked to cancel what comes after a stop string
            return finish_reason, None
        if self._is_delivered:  # it ended without a failure, and the client knows
            self.text.has_ended = True
            return delta.finish_reason, None
        return None, failure

    def take(self) -> list[Piece]:
        """The pieces since the last call; none before all has come that the choice shows of its prompt."""
        if self._pieces and self._awaited is not None:
            if not self._awaited.is_complete:
                return []
            first = self._pieces[0]
            text, echoed = self._awaited.take()
            self._pieces[0] = first._replace(text=text + first.text, echoed=echoed)
            self._awaited = None
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read(self, token_ids: list[int], finish_reason: str | None) -> tuple[list[Piece], str | None]:
        """What tokens add, without log-probabilities, and why the choice ended if it did."""
        if self._message is not None:
            return self._parsed(self._message, token_ids, finish_reason)
        text, reason = self.text.feed(token_ids, finish_reason)
        if not (text or reason):
            return [], None
        piece = Piece(self._number, text, reason, self.text.num_tokens, self._model, stop_string=self.text.stop_string)
        return [piece], reason

    def _read_singly(self, token_ids: list[int], finish_reason: str | None) -> tuple[list[Piece], str | None]:
        """The same with pieces of single tokens. What an end adds is apart from the last token, unless that is a stop
        token: whether the two come together is a matter of timing."""
        singly = [token_ids[i : i + 1] for i in range(len(token_ids))]
        if finish_reason != "stop" or not singly:
            singly.append([])
        pieces: list[Piece] = []
        ended: str | None = None
        for i, tokens in enumerate(singly):
            if ended is None and (tokens or finish_reason is not None):
                added, ended = self._read(tokens, finish_reason if i == len(singly) - 1 else None)
                pieces += added
        return pieces, ended

    def _parsed(
        self, message: MessageText, token_ids: list[int], finish_reason: str | None
    ) -> tuple[list[Piece], str | None]:
        """The same where the text is taken apart."""
        additions, reason = message.feed(token_ids, finish_reason)
        has_cut_call = reason == "stop" and message.has_cut_call
        if reason == "stop" and message.has_calls:
            reason = "length" if has_cut_call else "tool_calls"
        pieces = []
        for part, num_tokens in additions:
            thought = "" if self._hides_thought else part.thought
            if thought or part.content or part.calls:
                pieces.append(Piece(self._number, part.content, None, num_tokens, self._model, thought, part.calls))
        if reason is not None:
            last = pieces.pop() if pieces else Piece(self._number, "", None, 0, self._model)
            ending = last._replace(finish_reason=reason, num_tokens=self.text.num_tokens)
            pieces.append(ending._replace(stop_string=self.text.stop_string, has_cut_call=has_cut_call))
        return pieces, reason

    def _add(self, pieces: list[Piece]) -> None:
        if self._logprobs is not None:
            pieces = [piece._replace(logprobs=self._logprobs.take(piece.num_tokens)) for piece in pieces]
        if self._is_numbered:
            self._pieces += pieces
            return
        for piece in pieces:
            self._pieces = _joined(self._pieces, piece) if self._pieces else [piece]


def text_rules(context: AnswerContext, tokenizer: Tokenizer) -> TextRules:
    """What the texts of an answer are made of."""
    shows_stop = context.include_stop_str_in_output
    token_bytes = tokenizer.token_bytes if context.message == MessageRules() else tokenizer.message_token_bytes
    return TextRules(
        token_bytes if context.skip_special_tokens else tokenizer.all_token_bytes,
        StopStrings(context.stop, are_shown=shows_stop) if context.stop else None,
        context.min_tokens,
        shows_stop,
    )


def _without_token(delta: m.TokenDelta) -> m.TokenDelta:
    """A delta of an answer that shows no generated token: it ends as one does that has all tokens it may have."""
    reason = "length" if delta.finish_reason == "stop" else delta.finish_reason
    return msgspec.structs.replace(delta, token_ids=b"", logprob_ids=b"", logprobs=b"", finish_reason=reason)


def _joined(pieces: list[Piece], piece: Piece) -> list[Piece]:
    """A choice's pieces with one more; neighbours from one model are joined, if they are both of the thought or both
    not: some clients read one of the two in a chunk."""
    if not pieces or pieces[-1].model != piece.model or bool(pieces[-1].thought) != bool(piece.thought):
        return [*pieces, piece]
    last = pieces[-1]
    logprobs = None if piece.logprobs is None else [*(last.logprobs or ()), *piece.logprobs]
    calls = joined_calls((*last.calls, *piece.calls)) if last.calls else piece.calls
    text, thought = last.text + piece.text, last.thought + piece.thought
    return [*pieces[:-1], piece._replace(text=text, logprobs=logprobs, thought=thought, calls=calls)]
