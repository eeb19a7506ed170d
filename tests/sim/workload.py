"""What clients ask: small requests that share prefixes, with everything that a Submit can say."""

from array import array
from dataclasses import dataclass
from random import Random

import msgspec

from common import messages as m
from tests.sim.models import POISON, VOCAB_SIZE

LONGEST_PROMPT = 20
PREFIXES = [[7, 3, 9, 9, 1, 4, 4, 2, 8, 5], [7, 3, 9, 2, 2, 2], [5, 6, 5, 6, 5, 6, 5, 6]]
CONSTRAINTS = [
    m.Constraints(presence_penalty=1.5, min_tokens=3),
    m.Constraints(grammar="of no language"),
    m.Constraints(bias_token_ids=array("i", [4, 2]).tobytes(), biases=array("f", [1.0, -100.0]).tobytes()),
]
GRAMMARS = [m.Constraints(grammar=f"of language {number}") for number in range(6)]  # more than a plan may start
CLIENT_LIMITS = {"": 0, "alice": 2, "bob": 0, "carol": 0}
WEIGHTS = {"": 1.0, "alice": 1.0, "bob": 2.0, "carol": 0.25}
ADDRESSES = ["", "192.0.2.1", "2001:db8::/64"]


@dataclass(frozen=True)
class Shares:
    """How many of the requests are of a kind.

    Attributes:
        grammars: have one, beside a few among all others.
        pooled: want a result of their prompt instead of tokens.
    """

    grammars: float = 0.0
    pooled: float = 0.0


class Workload:
    """Makes requests.

    Args:
        max_tokens: of an answer, at most.
        sizes: of pools that differ, in positions, the largest first; empty if no request asks for a certain one.
        shares: of requests of special kinds.
    """

    def __init__(self, rng: Random, max_tokens: int, sizes: list[int], shares: Shares) -> None:
        self._rng = rng
        self._max_tokens = max_tokens
        self._sizes = sizes
        self._shares = shares
        self._num_requests = 0

    def request(self) -> m.Submit:
        """One like any other."""
        rng = self._rng
        prompt = [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randint(1, 6))]
        if rng.random() < 0.6:
            prompt = rng.choice(PREFIXES) + prompt * rng.randint(0, 2)
        client = rng.choice(["", "", "", "alice", "bob", "carol"])
        submit = self._submit(
            f"r{self._count()}",
            prompt[:LONGEST_PROMPT],
            n=rng.choice([1, 1, 1, 1, 2, 3]),
            stream=rng.random() < 0.8,
            cache_salt=rng.choice(["", "", "", "salt"]),
            priority=rng.choice([0, 0, 0, 1, -1, 100]),
            timeout_s=rng.uniform(0.02, 3.0) if rng.random() < 0.1 else None,
            client=client,
            client_limit=CLIENT_LIMITS[client],
            weight=WEIGHTS[client],
            address="" if client else rng.choice(ADDRESSES),
        )
        submit = self._for_a_pool(submit) if self._sizes else submit
        shares = self._shares
        if shares.pooled and rng.random() < shares.pooled:
            return self._pooled(submit)
        return self._with_grammar(submit) if shares.grammars and rng.random() < shares.grammars else submit

    def again(self, submit: m.Submit) -> m.Submit:
        """The same, as a new request."""
        kind = submit.request_id.rstrip("0123456789")
        request_id = f"{kind}{self._count()}"
        return msgspec.structs.replace(submit, request_id=request_id, context=request_id.encode())

    def poison(self) -> m.Submit:
        """One that kills whatever computes it."""
        prompt = [POISON, *(self._rng.randrange(1, VOCAB_SIZE) for _ in range(5))]
        return self._submit(f"poison{self._count()}", prompt)

    def odd(self) -> m.Submit:
        """One that no executor can compute."""
        if self._rng.random() < 0.5:
            return self._submit(f"odd{self._count()}", [VOCAB_SIZE + 7])
        return self._submit(f"odd{self._count()}", [1, 2, 3], max_tokens=10_000)

    def _for_a_pool(self, submit: m.Submit) -> m.Submit:
        """One that leaves its `max_tokens` open, one that only the largest pool holds, or the same."""
        rng, params, num_prompt = self._rng, submit.params, len(submit.prompt) // 4
        kind = rng.choice(["default", "default", "large", "large", "small"])
        if kind == "small":
            return submit
        if rng.random() < 0.7:  # most answers end by themselves
            params = msgspec.structs.replace(params, stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), 20)))
        if kind == "default":  # the frontend puts in what it knows of the fleet
            params = msgspec.structs.replace(params, max_tokens=rng.choice([max(self._sizes), 1]))
            return msgspec.structs.replace(submit, params=params, may_shorten=True)
        largest, *others = self._sizes
        length = rng.randint(max([size for size in others if size < largest], default=largest - 1) + 1, largest)
        params = msgspec.structs.replace(params, max_tokens=max(1, length - num_prompt))
        return msgspec.structs.replace(submit, params=params)

    def _pooled(self, submit: m.Submit) -> m.Submit:
        """One result of the prompt instead."""
        token_ids = tuple(
            self._rng.choices(range(VOCAB_SIZE), k=self._rng.choice([0, 0, 1, 2, m.MAX_POOLED_TOKEN_IDS]))
        )
        pooling: m.Pooling = "logits" if token_ids else "hidden"
        params = m.SamplingParams(max_tokens=1, pooling=pooling, pooled_token_ids=token_ids)
        return msgspec.structs.replace(submit, params=params, n=1, may_shorten=False)

    def _with_grammar(self, submit: m.Submit) -> m.Submit:
        params = msgspec.structs.replace(submit.params, constraints=self._rng.choice(GRAMMARS))
        return msgspec.structs.replace(submit, params=params)

    def _count(self) -> int:
        self._num_requests += 1
        return self._num_requests

    def _submit(self, request_id: str, prompt: list[int], *, max_tokens: int = 0, **fields: object) -> m.Submit:
        rng = self._rng
        params = m.SamplingParams(
            max_tokens=max_tokens or rng.randint(1, self._max_tokens),
            temperature=rng.choice([0.0, 0.0, 1.0]),
            seed=rng.randrange(100),
            stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), 20)) if rng.random() < 0.3 else (),
            logprobs=rng.choice([0, 0, 0, 1, 6]),
            prompt_logprobs=rng.choice([0, 0, 0, 1, 3]),
            constraints=rng.choice([None, None, *CONSTRAINTS]),
        )
        context = request_id.encode()
        return m.Submit(
            request_id=request_id, prompt=array("i", prompt).tobytes(), params=params, context=context, **fields
        )
