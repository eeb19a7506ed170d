"""A sequence: one stream of tokens, as the scheduler knows it. Pure data; no socket, clock or log."""

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from common.constraints import constraint_arrays
from common.messages import MAX_PRIORITY, FinishReason, SamplingParams, Submit
from common.wire import IntArray

NO_POSITION = 2**31 - 1  # behind every position


class State(Enum):
    """Where a sequence is. A preempted one, and one whose executor was lost, is WAITING again.

    A COMPLETING one has all its tokens planned and holds no lane and no block any more; the last tokens, or its pooled
    result, are in flight.
    """

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETING = "completing"
    FINISHED = "finished"


class Share(NamedTuple):
    """Where a request stands among those of all clients (`scheduling/fair_shares.py`).

    Attributes:
        account: name of its client's account; all that come without a key and an address have one.
        weight: of the client.
        cost: tokens that each of its sequences is expected to take.
        start: virtual time at which its first sequence starts.
        place: of that one in the order of service: the start, moved by the priority. Lower ones go first.
    """

    account: str = ""
    weight: float = 1.0
    cost: float = 0.0
    start: float = 0.0
    place: int = 0

    @property
    def step(self) -> float:
        """How much later each sequence starts than the one before."""
        return self.cost / self.weight


NO_SHARE = Share()


@dataclass(frozen=True, slots=True)
class Generated:
    """What a sequence has generated, and its prompt's log-probabilities.

    Attributes:
        token_ids: int32.
        logprob_ids, logprobs: int32 and float32 [tokens, `params.logprobs`], as in `StepResult`.
        prompt_logprob_ids, prompt_logprobs: int32 and float32 [covered positions, `params.prompt_logprobs`], likewise.
    """

    token_ids: bytes = b""
    logprob_ids: bytes = b""
    logprobs: bytes = b""
    prompt_logprob_ids: bytes = b""
    prompt_logprobs: bytes = b""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a sequence had in an earlier life of the scheduler.

    Attributes:
        model: what computed its answer.
        num_cached: prompt tokens that the prefix cache held when it was first admitted; None if it never was.
        ended: how it ended; None if it is open.
    """

    output: Generated = Generated()
    model: str = ""
    num_cached: int | None = None
    ended: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """Blocks in which a sequence left K and V that the index does not lead to: no other sequence can find them.

    They are free, and still the sequence's as long as they have these uids.

    Attributes:
        origin: of the index of the pool that they are in (`ExecutorState`).
        first: place of the first one in the sequence's table.
        blocks, uids: their ids, and what names their content.
        num_valid: of the sequence's positions, from 0 on, those that answered plans have written, as far as the blocks
            go.
    """

    origin: int
    first: int
    blocks: "array[int]"
    uids: tuple[int, ...]
    num_valid: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """Where a row had no numbers: either the sequence is why, or the executor, or what its prefix cache held.

    Attributes:
        epoch, executor: its epoch and name.
        origin: of the index of its pool (`ExecutorState`).
    """

    epoch: int
    executor: str
    origin: int


@dataclass(frozen=True, slots=True)
class Lateness:
    """Where the mask of a row was late: the sequence is admitted there again after a pause.

    Attributes:
        epoch: of the executor.
        num_tokens: that the sequence had.
        count: of late rows one after the other, with so many tokens.
        until_step: number of the executor's plan that ends the pause.
    """

    epoch: int
    num_tokens: int
    count: int
    until_step: int


@dataclass(slots=True, eq=False)
class Sequence:
    """One stream of tokens. While it runs, the counts that change with each step are in its lane (`lanes.py`).

    Attributes:
        request_id, index: which request it belongs to, and which of its n answers it is.
        client: who asked for it: the name of its account, or the request's id if nothing is known.
        arrival: place in the order of arrival, which no two sequences share, not even in two lives of the scheduler.
        share, place: where its request stands among those of all clients, and its own place in the order of service:
            fixed when the request was accepted.
        tokens: int32 array, prompt first. All known tokens while it waits and once it has ended; while it runs,
            those known when it was admitted.
        num_prompt: how many of them are the prompt.
        largest_token: among its tokens, as far as `tokens` has them, and those that its parameters name.
        num_inflight: tokens that plans in flight will still bring to it after it has left its lane; its pooled result
            counts as one.
        num_void: of those, tokens that will be dropped, because a row before theirs brought none.
        num_written: its first positions whose K and V an answered plan had written on some executor, as far as that is
            known outside of its lane. To compute one of them is to compute it again.
        num_cached_prompt: prompt tokens found in the prefix cache at the first admission, and not computed again for
            their logits.
        logprob_ids, logprobs: int32 and float32 arrays [generated tokens, `params.logprobs`], of the tokens that have
            arrived, also while it runs.
        prompt_logprob_ids, prompt_logprobs: int32 and float32 arrays [`num_covered`, `num_prompt_logprobs`], likewise:
            of the prompt's tokens from the second on.
        pooled: float32, its pooled result, once it has ended with that.
        strikes: failures in a row (of a step, or of the whole executor) that it had a part in; a token that arrives
            ends the row.
        failed_on: name of the executor that failed last with it.
        doubt: where a row of it had no numbers, so that it is computed once more without the prefix cache; None if it
            is not.
        lateness: where the last mask was late that was; None if none was.
        model: what computed its answer so far, or computes its beginning; a sequence with an answer goes on with this
            model as long as an executor has it.
        placed: epoch of the executor that it waits for, 0 while that is open.
        tail: what it left in a pool when that lost its executor, and may take back there.
        awaited: epoch whose pool it waits for, because it left much there; 0 for none.
        epoch, lane: where it runs (0 and -1 while it does not; a completing one has no lane).
        may_shorten: whether `max_tokens` is a default, and may become less.
        yields: whether it sits out while prompts of others are computed (`scheduling/yielding.py`).
        num_taken: how often it gave its lane to one that does not yield.
        is_journaled: whether the journal follows it: what it is told waits until it is on disk. The request manager
            decides that.
        takes_any_library: whether executors may mask its tokens by another library, or version, than its grammar was
            compiled with, because none with the same has been there for long.
        deadline: when it is to be ended at the latest, in the caller's seconds; None if never.
    """

    request_id: str
    index: int
    arrival: int
    tokens: "array[int]"
    num_prompt: int
    largest_token: int
    params: SamplingParams
    cache_salt: str = ""
    client: str = ""
    share: Share = NO_SHARE
    place: int = 0
    may_shorten: bool = False
    yields: bool = False
    num_taken: int = 0
    is_journaled: bool = False
    takes_any_library: bool = False
    deadline: float | None = None
    state: State = State.WAITING
    num_inflight: int = 0
    num_void: int = 0
    num_written: int = 0
    num_cached_prompt: int | None = None
    logprob_ids: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    prompt_logprob_ids: "array[int]" = field(default_factory=lambda: array("i"))
    prompt_logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    pooled: bytes = b""
    strikes: int = 0
    failed_on: str = ""
    doubt: Doubt | None = None
    lateness: Lateness | None = None
    model: str = ""
    placed: int = 0
    tail: Tail | None = None
    awaited: int = 0
    epoch: int = 0
    lane: int = -1

    @property
    def num_output(self) -> int:
        """Tokens generated, as far as `tokens` has them."""
        return len(self.tokens) - self.num_prompt

    @property
    def start(self) -> float:
        """Virtual time at which it starts."""
        return self.share.start + self.index * self.share.step

    @property
    def cost(self) -> int:
        """Tokens that it is expected to take."""
        return int(self.share.cost)

    @property
    def num_served(self) -> int:
        """Tokens that had to be computed for it, once it has ended; what was computed again does not count."""
        num_cached = self.num_cached_prompt
        return 0 if num_cached is None else self.num_prompt - num_cached + self.num_output

    @property
    def has_answer(self) -> bool:
        """Whether any of what it was asked for has come: tokens, as far as `tokens` has them, or log-probabilities of
        its prompt."""
        return self.num_output > 0 or bool(self.prompt_logprobs)

    @property
    def num_prompt_logprobs(self) -> int:
        """Log-probabilities that it wants of each token of its prompt: of a request's sequences the first does."""
        return 0 if self.index else self.params.prompt_logprobs

    @property
    def num_covered(self) -> int:
        """Positions of the prompt, from 0 on, whose logits have told the log-probabilities of the next token."""
        width = self.num_prompt_logprobs
        return len(self.prompt_logprobs) // width if width else 0

    def take_up(self, earlier: Earlier) -> None:
        """It had this in an earlier life of the scheduler."""
        output = earlier.output
        self.model, self.num_cached_prompt = earlier.model, earlier.num_cached
        self.tokens.frombytes(output.token_ids)
        self.logprob_ids.frombytes(output.logprob_ids)
        self.logprobs.frombytes(output.logprobs)
        self.prompt_logprob_ids.frombytes(output.prompt_logprob_ids)
        self.prompt_logprobs.frombytes(output.prompt_logprobs)
        self.largest_token = max(self.largest_token, *self.tokens)
        self.num_written = len(self.tokens) - 1 if output.token_ids else 0

    def wanted_from(self, num_computed: int) -> int:
        """The first position whose logits are still to tell how likely the prompt's next token is, once so many are
        computed; NO_POSITION if none is."""
        if not self.num_prompt_logprobs:
            return NO_POSITION
        first = max(num_computed, self.num_covered)
        return first if first < self.num_prompt - 1 else NO_POSITION

    @property
    def start_bytes(self) -> int:
        """About how many bytes a plan takes to tell an executor of its constraints; 0 without constraints."""
        asked = self.params.constraints
        if asked is None:
            return 0
        lists = (asked.bias_token_ids, asked.biases, asked.allowed_token_ids, *asked.bad_words)
        return 4 * len(self.tokens) + sum(map(len, lists)) + 4 * len(asked.grammar)

    @property
    def is_pooled(self) -> bool:
        """Whether it wants one result of its prompt, and no tokens."""
        return self.params.pooling != "none"

    def pooled_size(self, hidden_size: int) -> int:
        """Floats of its pooled result; 0 if it wants tokens."""
        return len(self.params.pooled_token_ids) or (hidden_size if self.is_pooled else 0)

    @property
    def has_grammar(self) -> bool:
        """Whether its text has to match a grammar."""
        return self.params.constraints is not None and bool(self.params.constraints.grammar)

    @property
    def seed(self) -> int:
        """Seed of the sequence's draws."""
        return (self.params.seed + self.index) % 2**64

    @property
    def max_length(self) -> int:
        """Length at which it ends, because it has `max_tokens`; a pooled result is no token."""
        return self.num_prompt if self.is_pooled else self.num_prompt + self.params.max_tokens

    @property
    def num_positions(self) -> int:
        """Positions whose K and V it has at its full length: none for its last token, after which nothing is
        computed."""
        return self.max_length - (not self.is_pooled)

    @property
    def rank(self) -> tuple[int, int]:
        """Which sequence goes first: the one with the earlier place, then the earlier arrival. It never changes, so a
        preempted sequence comes back before all that are behind it."""
        return self.place, self.arrival


def largest_token(submit: Submit, prompt: IntArray) -> int:
    """The largest token id that a request names, in its prompt, its constraints or its `pooled_token_ids`. Raises
    WireError if the constraints are malformed."""
    constraints = submit.params.constraints
    named = -1 if constraints is None else constraint_arrays(constraints).largest_token
    return max(int(prompt.max()), named, *submit.params.pooled_token_ids)


def new_sequences(
    submit: Submit, prompt: IntArray, largest: int, arrival: int, deadline: float | None, share: Share = NO_SHARE
) -> list[Sequence]:
    """The n sequences of a request; number i draws with `seed + i`.

    Args:
        prompt: the Submit's prompt, int32 [tokens].
        largest: the largest token id that it names (`largest_token`).
        arrival: of the first; the others follow it.
        deadline: of all of them.
        share: of the request.
    """
    return [
        Sequence(
            request_id=submit.request_id,
            index=i,
            arrival=arrival + i,
            tokens=array("i", prompt.tobytes()),
            num_prompt=len(prompt),
            largest_token=largest,
            params=submit.params,
            cache_salt=submit.cache_salt,
            client=share.account or submit.request_id,
            share=share,
            place=share.place + int(i * share.step),
            may_shorten=submit.may_shorten and submit.params.pooling == "none",
            yields=submit.priority == MAX_PRIORITY,
            deadline=deadline,
        )
        for i in range(submit.n)
    ]
