"""What one sequence has for its reader: tokens and their log-probabilities, gathered until they are told. Pure."""

from array import array
from dataclasses import dataclass, field

from common.messages import TokenDelta
from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.journal_records import Ending, Progress
from scheduler_svc.core.sequence import Sequence


@dataclass(slots=True)
class TokenRun:
    """Tokens in a row that one model computed.

    Attributes:
        logprob_ids, logprobs: int32 and float32 [tokens, the request's `logprobs`], as in `StepResult`.
    """

    model: str
    tokens: "array[int]"
    logprob_ids: bytearray
    logprobs: bytearray

    def split(self, num_tokens: int) -> tuple["TokenRun", "TokenRun"]:
        """So many of its tokens, which are not all, and the others."""
        at = len(self.logprob_ids) // len(self.tokens) * num_tokens
        first = TokenRun(self.model, self.tokens[:num_tokens], self.logprob_ids[:at], self.logprobs[:at])
        others = TokenRun(self.model, self.tokens[num_tokens:], self.logprob_ids[at:], self.logprobs[at:])
        return first, others


@dataclass(slots=True, eq=False)
class TokenStream:
    """What one sequence has for its reader.

    Attributes:
        held: nothing is told before the sequence's end.
        queued: whether the stream stands in its peer's queue.
        tokens, model: not told yet, and what computed them.
        logprob_ids, logprobs: of these tokens; empty if the request asked for none.
        earlier: what earlier models computed, not told yet.
        told_model: what the reader was told last.
        has_logprobs: whether the request asked for any.
        token_bytes: of each token in a message, with its log-probabilities.
    """

    peer: Peer
    sequence: Sequence
    held: bool = False
    queued: bool = False
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    model: str = ""
    logprob_ids: bytearray = field(default_factory=bytearray)
    logprobs: bytearray = field(default_factory=bytearray)
    earlier: list[TokenRun] = field(default_factory=list)
    told_model: str = ""
    num_cached: int = 0
    ending: Ending | None = None
    has_logprobs: bool = field(init=False)
    token_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        num_logprobs = self.sequence.params.logprobs
        self.has_logprobs = num_logprobs > 0
        self.token_bytes = 4 + 8 * num_logprobs

    @classmethod
    def after(cls, peer: Peer, sequence: Sequence, told: Progress) -> "TokenStream":
        """Everything from the first token on, of a sequence that is so far."""
        return cls(
            peer,
            sequence,
            tokens=array("i", told.token_ids),
            model=told.model,
            logprob_ids=bytearray(told.logprob_ids),
            logprobs=bytearray(told.logprobs),
            num_cached=told.num_cached or 0,
            ending=told.ending,
        )

    @property
    def num_waiting(self) -> int:
        """Tokens that are not told yet."""
        return len(self.tokens) + sum(len(run.tokens) for run in self.earlier)

    def change_model(self, model: str) -> None:
        """Tokens from now on are another model's."""
        if self.tokens:
            self.earlier.append(self._present)
            self.tokens, self.logprob_ids, self.logprobs = array("i"), bytearray(), bytearray()
        self.model = model

    def tell_all(self) -> list[TokenDelta]:
        """Everything that is to be told."""
        deltas, told = self._tell(self.earlier)
        deltas.append(self.last_delta(told))
        return deltas

    def last_delta(self, told_model: str) -> TokenDelta:
        """What is to be told of the tokens of the present model, to a reader that was told this model last."""
        ending = self.ending
        return TokenDelta(
            request_id=self.sequence.request_id,
            index=self.sequence.index,
            token_ids=self.tokens.tobytes(),
            finish_reason=None if ending is None else ending.reason,
            error="" if ending is None else ending.error,
            code="" if ending is None else ending.code,
            num_cached_tokens=self.num_cached,
            model="" if self.model == told_model else self.model,
            logprob_ids=bytes(self.logprob_ids) if self.has_logprobs else b"",
            logprobs=bytes(self.logprobs) if self.has_logprobs else b"",
        )

    def told_all(self) -> None:
        """What `tell_all` gave is on its way."""
        self.told_model, self.tokens = self.model, array("i")
        if self.has_logprobs:
            self.logprob_ids, self.logprobs = bytearray(), bytearray()
        if self.earlier:
            self.earlier = []

    def tell_some(self, max_tokens: int) -> list[TokenDelta]:
        """The first of so many tokens, which are not all."""
        return self._tell(self._split(max_tokens)[0])[0]

    def told_some(self, num_tokens: int) -> None:
        """What `tell_some` gave is on its way."""
        told, left = self._split(num_tokens)
        *self.earlier, present = left
        self.told_model, self.tokens = told[-1].model, present.tokens
        self.logprob_ids, self.logprobs = present.logprob_ids, present.logprobs

    @property
    def _present(self) -> TokenRun:
        return TokenRun(self.model, self.tokens, self.logprob_ids, self.logprobs)

    def _split(self, num_tokens: int) -> tuple[list[TokenRun], list[TokenRun]]:
        """Runs with the first tokens, and runs with the others; the last of those is the present model's."""
        first: list[TokenRun] = []
        others = [*self.earlier, self._present]
        while num_tokens:
            run = others[0]
            if len(run.tokens) > num_tokens:
                part, others[0] = run.split(num_tokens)
                first.append(part)
                break
            first.append(run)
            num_tokens -= len(run.tokens)
            del others[0]
        return first, others

    def _tell(self, runs: list[TokenRun]) -> tuple[list[TokenDelta], str]:
        """Deltas of these runs, and the model that was told last then."""
        deltas, told = [], self.told_model
        for run in runs:
            deltas.append(
                TokenDelta(
                    request_id=self.sequence.request_id,
                    index=self.sequence.index,
                    token_ids=run.tokens.tobytes(),
                    num_cached_tokens=self.num_cached,
                    model="" if run.model == told else run.model,
                    logprob_ids=bytes(run.logprob_ids),
                    logprobs=bytes(run.logprobs),
                )
            )
            told = run.model
        return deltas, told
