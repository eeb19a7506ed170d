"""What a plan may still have beside the sequences that decode. Pure."""

from collections.abc import Callable

from common.messages import MAX_PLAN_POOLED_FLOATS, MAX_PLAN_PROMPT_LOGPROBS
from common.plan import ExecutorLimits
from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.sequence import NO_POSITION, Sequence

MAX_START_BYTES = 2**24  # of a plan, for constraints of sequences that it samples for the first time
MAX_STARTED_GRAMMARS = 4  # of a plan, likewise: an executor may have to compile each, for up to 2 s, before it answers


class PlanBudget:
    """Tokens of prompts, what is said of lanes with constraints, log-probabilities of prompts, and pooled results.

    A plan says something of one sequence, however large, asks for one log-probability of a prompt at least, and has
    room for any pooled result: so the first sequence always goes on.

    Args:
        limits: of the executor.
        num_decodes: rows of sequences that decode.
        is_shared: whether prompts of several clients want rows: each may have half of what is left then. What none of
            them takes is for `extend`.
    """

    max_start_bytes = MAX_START_BYTES
    max_prompt_logprobs = MAX_PLAN_PROMPT_LOGPROBS

    def __init__(self, limits: ExecutorLimits, num_decodes: int = 0, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        self._num_tokens = limits.max_batch_tokens - num_decodes
        self._hidden_size = limits.hidden_size
        self._num_pooled = MAX_PLAN_POOLED_FLOATS
        self._start_bytes = self.max_start_bytes
        self._is_new = True
        self._grammars: set[str] = set()
        self._num_targets = 0
        self._most_logprobs = 0  # of a target

    def tokens_for(self, sequence: Sequence, num_computed: int) -> int:
        """Tokens that the next row may have, if it is this sequence's; 0 if it has to wait for the next plan.

        Args:
            num_computed: positions of the sequence that are computed.
        """
        if not self._may_start(sequence) or sequence.pooled_size(self._hidden_size) > self._num_pooled:
            return 0
        wanted_from = sequence.wanted_from(num_computed)
        num_tokens = -(-self._num_tokens // 2) if self._is_shared else self._num_tokens
        if wanted_from == NO_POSITION:
            return num_tokens
        most = max(self._most_logprobs, sequence.num_prompt_logprobs)
        num_targets = max(0, self.max_prompt_logprobs // most - self._num_targets)
        is_enough = sequence.num_prompt - 1 - wanted_from <= num_targets
        return num_tokens if is_enough else min(num_tokens, num_targets)

    def take(self, row: PromptRow) -> None:
        """The plan has this row."""
        self._num_tokens -= row.grant.count
        if row.wanted:
            self._num_targets += len(row.wanted)
            self._most_logprobs = max(self._most_logprobs, row.sequence.num_prompt_logprobs)
        if row.is_pooled:
            self._num_pooled -= row.sequence.pooled_size(self._hidden_size)
        asked = row.sequence.params.constraints
        if row.samples and asked is not None:
            self._start_bytes -= row.sequence.start_bytes
            self._is_new = False
            if asked.grammar:
                self._grammars.add(asked.grammar)

    def extend(self, rows: list[PromptRow], extended: Callable[[PromptRow, int], PromptRow]) -> None:
        """Give what is left to these rows, to the last one first: half of what was there before it was not enough.

        Args:
            extended: a row with up to so many tokens more.
        """
        for i in reversed(range(len(rows) if self._is_shared else 0)):
            row = rows[i]
            if not (row.is_last or row.sequence.num_prompt_logprobs) and self.tokens_for(row.sequence, row.end):
                rows[i] = extended(row, self._num_tokens)
                self._num_tokens += row.grant.count
                self.take(rows[i])

    def _may_start(self, sequence: Sequence) -> bool:
        """Whether the plan may sample a sequence for the first time."""
        if self._is_new or (asked := sequence.params.constraints) is None:
            return True
        num_grammars = len(self._grammars | {asked.grammar} - {""})
        return sequence.start_bytes <= self._start_bytes and num_grammars <= MAX_STARTED_GRAMMARS
