"""What one sequence has for its reader: tokens and log-probabilities, gathered until they are told. Pure."""

from array import array
from dataclasses import dataclass, field, replace

from msgspec import structs

from common.messages import TokenDelta
from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.journal_records import Ending, Progress
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd


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

    @property
    def num_bytes(self) -> int:
        """In a message."""
        return 4 * len(self.tokens) + len(self.logprob_ids) + len(self.logprobs)

    def split(self, max_bytes: int) -> tuple["TokenRun", "TokenRun"]:
        """The first tokens that have no more bytes than that, which are not all, and the others."""
        num_tokens = max_bytes // (self.num_bytes // len(self.tokens))
        at = len(self.logprob_ids) // len(self.tokens) * num_tokens
        first = TokenRun(self.model, self.tokens[:num_tokens], self.logprob_ids[:at], self.logprobs[:at])
        others = TokenRun(self.model, self.tokens[num_tokens:], self.logprob_ids[at:], self.logprobs[at:])
        return first, others


@dataclass(slots=True)
class PromptRun:
    """Log-probabilities of a prompt's tokens in a row.

    Runs that were split share their columns: a long prompt has megabytes, which several messages tell.

    Attributes:
        width: log-probabilities of each.
        ids, values: int32 and float32 [prompt tokens, width], as in `StepResult`.
        begin, end: the run's bytes of either column.
    """

    width: int
    ids: bytearray = field(default_factory=bytearray)
    values: bytearray = field(default_factory=bytearray)
    begin: int = 0
    end: int = 0

    @property
    def num_bytes(self) -> int:
        """In a message."""
        return 2 * (self.end - self.begin)

    def add(self, ids: bytes, values: bytes) -> None:
        """Those of the next tokens; only to a run that ends where its columns do."""
        self.ids += ids
        self.values += values
        self.end = len(self.ids)

    def columns(self) -> tuple[bytes, bytes]:
        """The run's part of `ids` and `values`."""
        with memoryview(self.ids) as ids, memoryview(self.values) as values:
            return bytes(ids[self.begin : self.end]), bytes(values[self.begin : self.end])

    def split(self, max_bytes: int) -> tuple["PromptRun", "PromptRun"]:
        """Those of the first tokens that have no more bytes than that, which are not all, and the others."""
        at = self.begin + max_bytes // (8 * self.width) * 4 * self.width
        return replace(self, end=at), replace(self, begin=at)


Run = PromptRun | TokenRun


@dataclass(slots=True, eq=False)
class TokenStream:
    """What one sequence has for its reader.

    Attributes:
        held: nothing is told before the sequence's end.
        queued: whether the stream stands in its peer's queue.
        tokens, model: not told yet, and what computed them.
        logprob_ids, logprobs: of these tokens; empty if the request asked for none.
        earlier: what is to be told before these tokens: log-probabilities of the prompt, and then what earlier models
            computed.
        told_model: what the reader was told last.
        pooled: the sequence's pooled result, which comes with its end.
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
    earlier: list[Run] = field(default_factory=list)
    told_model: str = ""
    num_cached: int = 0
    ending: Ending | None = None
    pooled: bytes = b""
    has_logprobs: bool = field(init=False)
    token_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        num_logprobs = self.sequence.params.logprobs
        self.has_logprobs = num_logprobs > 0
        self.token_bytes = 4 + 8 * num_logprobs

    @classmethod
    def after(cls, peer: Peer, sequence: Sequence, told: Progress) -> "TokenStream":
        """Everything from the first token on, of a sequence that is so far."""
        stream = cls(
            peer,
            sequence,
            tokens=array("i", told.token_ids),
            model=told.model,
            logprob_ids=bytearray(told.logprob_ids),
            logprobs=bytearray(told.logprobs),
            num_cached=told.num_cached or 0,
            ending=told.ending,
            pooled=b"" if told.ending is None else sequence.pooled,
        )
        if told.prompt_logprob_ids:
            stream.add_prompt(told.prompt_logprob_ids, told.prompt_logprobs)
        return stream

    @property
    def num_bytes(self) -> int:
        """Of what is not told yet, in a message."""
        present = len(self.tokens) * self.token_bytes + len(self.pooled)
        return present + sum(run.num_bytes for run in self.earlier)

    def end(self, end: SequenceEnd) -> None:
        """The sequence has ended."""
        sequence = end.sequence
        self.ending, self.num_cached = Ending.of(end), sequence.num_cached_prompt or 0
        if sequence.pooled:
            self.pooled, self.model = sequence.pooled, sequence.model

    def add_prompt(self, ids: bytes, values: bytes) -> None:
        """Log-probabilities of the prompt, which come before its first token, follow those that came before."""
        if not self.earlier:
            self.earlier.append(PromptRun(self.sequence.num_prompt_logprobs))
        run = self.earlier[-1]
        assert isinstance(run, PromptRun), "log-probabilities of a prompt come after tokens"
        run.add(ids, values)

    def change_model(self, model: str) -> None:
        """Tokens from now on are another model's."""
        if self.tokens:
            self.earlier.append(self._present)
            self.tokens, self.logprob_ids, self.logprobs = array("i"), bytearray(), bytearray()
        self.model = model

    def tell_all(self) -> list[TokenDelta]:
        """Everything that is to be told."""
        deltas, told = self._tell(self.earlier)
        if self.tokens or self.ending is not None:
            deltas.append(self.last_delta(told))
        return deltas

    def last_delta(self, told_model: str) -> TokenDelta:
        """What is to be told of the tokens of the present model, to a reader that was told this model last."""
        delta = TokenDelta(
            request_id=self.sequence.request_id,
            index=self.sequence.index,
            token_ids=self.tokens.tobytes(),
            num_cached_tokens=self.num_cached,
            model="" if self.model == told_model else self.model,
        )
        if self.has_logprobs:
            delta = structs.replace(delta, logprob_ids=bytes(self.logprob_ids), logprobs=bytes(self.logprobs))
        if (ending := self.ending) is not None:
            facts = {"finish_reason": ending.reason, "error": ending.error, "code": ending.code}
            delta = structs.replace(delta, pooled=self.pooled, **facts)
        return delta

    def told_all(self) -> None:
        """What `tell_all` gave is on its way."""
        if self.tokens:  # or the model is not named yet
            self.told_model, self.tokens = self.model, array("i")
        if self.has_logprobs:
            self.logprob_ids, self.logprobs = bytearray(), bytearray()
        if self.earlier:
            self.earlier = []

    def tell_some(self, max_bytes: int) -> list[TokenDelta]:
        """The first of what is to be told that has no more bytes than that, which is not all."""
        return self._tell(self._split(max_bytes)[0])[0]

    def told_some(self, max_bytes: int) -> None:
        """What `tell_some` gave is on its way; what has come since is behind it."""
        told, left = self._split(max_bytes)
        *self.earlier, present = left
        assert isinstance(present, TokenRun)
        self.told_model = next((run.model for run in reversed(told) if isinstance(run, TokenRun)), self.told_model)
        self.tokens = present.tokens
        self.logprob_ids, self.logprobs = present.logprob_ids, present.logprobs

    @property
    def _present(self) -> TokenRun:
        return TokenRun(self.model, self.tokens, self.logprob_ids, self.logprobs)

    def _split(self, max_bytes: int) -> tuple[list[Run], list[Run]]:
        """Runs with the first of so many bytes, and runs with the others; the last of those is the present model's."""
        first: list[Run] = []
        others: list[Run] = [*self.earlier, self._present]
        while (num_bytes := others[0].num_bytes) <= max_bytes:
            first.append(others.pop(0))
            max_bytes -= num_bytes
        part, others[0] = others[0].split(max_bytes)
        return [*first, part] if part.num_bytes else first, others

    def _tell(self, runs: list[Run]) -> tuple[list[TokenDelta], str]:
        """Deltas of these runs, and the model that was told last then."""
        deltas, told = [], self.told_model
        for run in runs:
            if isinstance(run, PromptRun):
                deltas.append(self._prompt_delta(run))
                continue
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

    def _prompt_delta(self, run: PromptRun) -> TokenDelta:
        ids, values = run.columns()
        return TokenDelta(
            request_id=self.sequence.request_id,
            index=self.sequence.index,
            token_ids=b"",
            num_cached_tokens=self.num_cached,
            prompt_logprob_ids=ids,
            prompt_logprobs=values,
        )
