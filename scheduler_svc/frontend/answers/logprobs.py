"""Log-probabilities of an answer's tokens: from the core's columns to OpenAI's objects.

A token's entry depends on the tokens up to it alone, and not on how they were grouped. So entries in the chunks of a
stream, one after the other, are those of the whole answer, also where another frontend goes on.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from common import messages as m
from common.errors import WireError
from common.wire import array_from, int32_array
from scheduler_svc.frontend.answers.openai_objects import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
    to_json,
)
from scheduler_svc.frontend.text.detokenizer import Detokenizer
from scheduler_svc.frontend.text.token_texts import TokenTexts

LEAST = -9999.0  # OpenAI's and vLLM's number for -inf, which JSON cannot say


class Entry(NamedTuple):
    """One token's log-probabilities.

    Attributes:
        logprob: as a chat says it.
        text_offset: characters of the answer's text before the token's own ones.
    """

    logprob: TokenLogprob
    text_offset: int


class LogprobReader:
    """Reads one sequence's log-probabilities.

    Args:
        count: `SamplingParams.logprobs` of the request.
        texts: what tokens are called.
        detokenizer: of its own; it says where in the text tokens begin.
        num_delivered: tokens whose entries the client has; they are not given again.
        offset: characters of the answer's text before its first token.
    """

    def __init__(
        self, count: int, texts: TokenTexts, detokenizer: Detokenizer, num_delivered: int = 0, offset: int = 0
    ) -> None:
        self._count = count
        self._texts = texts
        self._detokenizer = detokenizer
        self._num_delivered = num_delivered
        self._num_read = 0
        self._offset = offset
        self._entries: list[Entry] = []

    def read(self, delta: m.TokenDelta, num_counted: int) -> None:
        """Take a delta's first tokens, those that count.

        Raises:
            WireError: the delta's columns do not fit each other.
        """
        token_ids, ids, values = self._columns(delta)
        num_old = min(max(self._num_delivered - self._num_read, 0), num_counted)
        self._num_read += num_counted
        self._offset += len(self._detokenizer.feed(token_ids[:num_old].tolist()))
        for token_id, row_ids, row in zip(
            *(column[num_old:num_counted].tolist() for column in (token_ids, ids, values)), strict=True
        ):
            self._entries.append(Entry(token_logprob(self._texts, row_ids, row), self._offset))
            self._offset += len(self._detokenizer.feed((token_id,)))

    def take(self, num_tokens: int) -> list[Entry]:
        """The entries since the last call, of the sequence's first so many tokens."""
        num_left = max(self._num_read - num_tokens, 0)
        entries = self._entries
        if not num_left:
            self._entries = []
            return entries
        self._entries = entries[-num_left:]
        return entries[:-num_left]

    def _columns(self, delta: m.TokenDelta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int32 [tokens], int32 [tokens, count] and float64 [tokens, count]."""
        token_ids = int32_array("token_ids", delta.token_ids)
        ids = int32_array("logprob_ids", delta.logprob_ids)
        values = clamped("logprobs", delta.logprobs)
        if not len(ids) == len(values) == len(token_ids) * self._count:
            have = f"{len(ids)} logprob_ids and {len(values)} logprobs"
            raise WireError(f"{len(token_ids)} tokens have {have}, not {self._count} each")
        shape = len(token_ids), self._count
        return token_ids, ids.reshape(shape), values.reshape(shape)


def clamped(field: str, data: bytes) -> npt.NDArray[np.float64]:
    """float64, from float32: log-probabilities as JSON can say them. Raises WireError if the length does not fit."""
    return np.fmax(array_from(field, data, "<f4").astype(np.float64), LEAST)


def token_logprob(texts: TokenTexts, ids: Sequence[int], values: Sequence[float]) -> TokenLogprob:
    """A token by its name: the first id is its own, those of the likeliest follow."""
    top = [TopLogprob(*texts.of(token_id), value) for token_id, value in zip(ids[1:], values[1:], strict=True)]
    return TokenLogprob(*texts.of(ids[0]), values[0], top)


class LogprobsJson:
    """Log-probabilities of a whole answer, written as they come: written at once, those of a long one would hold the
    event loop.

    Args:
        kind: of the answer.
    """

    def __init__(self, kind: Literal["completion", "chat"]) -> None:
        self._kind = kind
        self._convert = chat_logprobs if kind == "chat" else completion_logprobs
        self._fields: dict[str, list[bytes]] = {}

    def copy(self) -> "LogprobsJson":
        """One that goes on by itself."""
        copy = LogprobsJson(self._kind)
        copy._fields = {name: list(parts) for name, parts in self._fields.items()}
        return copy

    def add(self, entries: Sequence[Entry]) -> None:
        """Those of the next tokens."""
        self.add_object(self._convert(entries))

    def add_object(self, logprobs: CompletionLogprobs | ChatLogprobs) -> None:
        """The same, converted."""
        for name, value in msgspec.structs.asdict(logprobs).items():
            if not isinstance(value, list):
                self._fields[name] = [to_json(value)]
                continue
            parts = self._fields.setdefault(name, [b"[", b"]"])
            if value:
                parts[-1:] = [b"," if len(parts) > 2 else b"", to_json(value)[1:-1], b"]"]

    def json(self) -> Raw:
        """All of them as one object, put together in one go."""
        parts = [b"{"]
        for name, value in self._fields.items():
            parts += [b"," if len(parts) > 1 else b"", b'"%b":' % name.encode(), *value]
        return Raw(b"".join([*parts, b"}"]))


def chat_logprobs(entries: Sequence[Entry]) -> ChatLogprobs:
    """As /v1/chat/completions has them."""
    return ChatLogprobs([entry.logprob for entry in entries])


def completion_logprobs(entries: Sequence[Entry]) -> CompletionLogprobs:
    """As /v1/completions has them."""
    return CompletionLogprobs(
        tokens=[entry.logprob.token for entry in entries],
        token_logprobs=[entry.logprob.logprob for entry in entries],
        top_logprobs=[_by_text(entry.logprob) for entry in entries],
        text_offset=[entry.text_offset for entry in entries],
    )


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """The token itself and the likeliest ones. Of several with one text the likeliest counts: clients compare a token
    with the greatest of these to see whether the model would have chosen it."""
    by_text: dict[str, float] = {}
    for top in entry.top_logprobs:
        by_text.setdefault(top.token, top.logprob)
    by_text.setdefault(entry.token, entry.logprob)
    return by_text
