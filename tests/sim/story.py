"""What a client has of one sequence, and whether it is what a model says. Everything exactly once, and in order."""

from array import array
from dataclasses import dataclass

import msgspec

from common import messages as m
from tests.sim.models import VOCAB_SIZE, history_of, result_of, token_after, undisturbed
from tests.sim.pool_book import PoolBook
from tests.support.oracle import constraint_salt, expected_prompt_logprobs, extend, logprobs_of


@dataclass(slots=True)
class Heard:
    """How much of a sequence one connection has brought: tokens, and log-probabilities of the prompt."""

    num_tokens: int = 0
    num_prompt_logprobs: int = 0


class Story:
    """One sequence, through all the connections over which its client heard of it.

    Args:
        models: that there are in this run.
        pools: tell what became of a `max_tokens` that the client left open.

    Attributes:
        tokens: all that the client has.
        num_prompt_logprobs: likewise, of its prompt.
        ending: the last delta, None while the sequence goes on.
    """

    def __init__(self, submit: m.Submit, index: int, models: list[str], pools: PoolBook) -> None:
        self.tokens: list[int] = []
        self.ending: m.TokenDelta | None = None
        self._submit = submit
        self._name = f"{submit.request_id}[{index}]"
        self._prompt = memoryview(submit.prompt).cast("i").tolist()
        self._seed = submit.params.seed + index if submit.params.temperature else 0
        self._salt = constraint_salt(submit.params.constraints, len(self._prompt))
        self._models = models
        self._pools = pools
        self._key = (submit.request_id, index)
        self._num_logprobs = submit.params.logprobs
        self._logprobs: list[tuple[list[int], list[float]]] = []
        self._history = history_of(self._prompt)
        self.num_prompt_logprobs = 0
        width = 0 if index else submit.params.prompt_logprobs
        self._prompt_logprobs = expected_prompt_logprobs(self._prompt, width, VOCAB_SIZE)

    @property
    def _max_tokens(self) -> int:
        params = self._submit.params
        return self._pools.accepted[self._submit.request_id] if self._submit.may_shorten else params.max_tokens

    def forget(self) -> None:
        """What was told did not survive the scheduler, and may be told otherwise now."""
        self.tokens, self.ending, self._logprobs = [], None, []
        self._history = history_of(self._prompt)
        self.num_prompt_logprobs = 0

    def hear(self, heard: Heard, delta: m.TokenDelta, model: str) -> None:
        """Take in a delta of one connection.

        Args:
            heard: what that connection has brought before; this is counted.
            model: that computed the delta's tokens; empty if it may have been several.
        """
        self._hear_prompt(heard, delta)
        told, position = array("i", delta.token_ids), heard.num_tokens
        entries = self._entries(delta, len(told))
        for token, logprobs in zip(told, entries, strict=True):
            if position < len(self.tokens):
                assert token == self.tokens[position], f"{self._name}: token {position} is told differently now"
                assert logprobs == self._logprobs[position], f"{self._name}: log-probabilities {position} differ now"
            else:
                assert logprobs == logprobs_of(token, self._num_logprobs, self._history, VOCAB_SIZE), self._name
                self._append(token, model)
                self._logprobs.append(logprobs)
            position += 1
        heard.num_tokens = position
        if delta.finish_reason is not None:
            self._end(heard, delta)
        self._hear_result(delta, model)

    def _hear_result(self, delta: m.TokenDelta, model: str) -> None:
        """A pooled result: with the end, and no token."""
        params = self._submit.params
        if params.pooling == "none" or delta.finish_reason != "stop":
            assert not delta.pooled, f"{self._name} has a result that it should not have"
            return
        results = [result_of(self._prompt, params, each) for each in ([model] if model else self._models)]
        assert delta.pooled in results, f"{self._name} has another result than its prompt's"
        assert not self.tokens, f"{self._name} has a result, and tokens"

    def _hear_prompt(self, heard: Heard, delta: m.TokenDelta) -> None:
        """Log-probabilities of the prompt: all of them before the first token, each once."""
        ids, values = array("i", delta.prompt_logprob_ids).tolist(), array("f", delta.prompt_logprobs).tolist()
        if ids:
            begin, end = heard.num_prompt_logprobs, heard.num_prompt_logprobs + len(ids)
            assert not heard.num_tokens, f"{self._name}: log-probabilities of the prompt come after tokens"
            assert (ids, values) == tuple(column[begin:end] for column in self._prompt_logprobs), self._name
            assert end <= self.num_prompt_logprobs or self.ending is None, f"{self._name} goes on after its end"
            heard.num_prompt_logprobs = end
            self.num_prompt_logprobs = max(self.num_prompt_logprobs, end)
        is_whole = heard.num_prompt_logprobs == len(self._prompt_logprobs[0])
        assert is_whole or not delta.token_ids, f"{self._name}: tokens come before the prompt's log-probabilities"

    def _entries(self, delta: m.TokenDelta, num_tokens: int) -> list[tuple[list[int], list[float]]]:
        """Ids and values that come with each token of a delta."""
        count = self._num_logprobs
        ids, values = array("i", delta.logprob_ids).tolist(), array("f", delta.logprobs).tolist()
        assert len(ids) == len(values) == count * num_tokens, f"{self._name}: {len(ids)} log-probabilities"
        return [(ids[i * count : (i + 1) * count], values[i * count : (i + 1) * count]) for i in range(num_tokens)]

    def _append(self, token: int, model: str) -> None:
        params = self._submit.params
        assert self.ending is None, f"{self._name} goes on after its end"
        assert len(self.tokens) < self._max_tokens, f"{self._name} has more than {self._max_tokens} tokens"
        assert not (self.tokens and self.tokens[-1] in params.stop_token_ids), f"{self._name} goes on after a stop"
        models, seed = [model] if model else self._models, self._seed ^ self._salt
        said = {each: token_after(self._history, seed, each) for each in models}
        assert token in said.values(), f"{self._name}: token {len(self.tokens)} is {token}, not {said}"
        self.tokens.append(token)
        self._history = extend(self._history, token)

    def _end(self, heard: Heard, delta: m.TokenDelta) -> None:
        found, had = (heard.num_tokens, heard.num_prompt_logprobs), (len(self.tokens), self.num_prompt_logprobs)
        assert found == had, f"{self._name} ended with {found} tokens and log-probabilities of its prompt, it had {had}"
        assert 0 <= delta.num_cached_tokens <= len(self._prompt)
        before, self.ending = self.ending, delta
        is_pooled = self._submit.params.pooling != "none"
        if before is not None and not is_pooled:  # results are computed again after a restart
            told, now = (before.finish_reason, before.code), (delta.finish_reason, delta.code)
            assert told == now, f"{self._name} had ended as {told}, now as {now}"
        params = self._submit.params
        is_stopped = bool(self.tokens) and self.tokens[-1] in params.stop_token_ids
        match delta.finish_reason:
            case "stop":
                assert is_stopped or is_pooled, f"{self._name} ended without its stop token"
            case "length":
                allowed = {self._max_tokens, *self._pools.shortened.get(self._key, ())}
                assert not is_pooled, f"{self._name} is pooled and ended by its length"
                assert len(self.tokens) in allowed, f"{self._name} has {len(self.tokens)} tokens of {allowed}"
                assert not is_stopped
        if delta.finish_reason in ("stop", "length") and len(self._models) == 1 and not is_pooled:
            params = msgspec.structs.replace(params, max_tokens=len(self.tokens))
            assert self.tokens == undisturbed(self._prompt, params, self._seed, self._models[0])
