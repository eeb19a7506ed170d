"""From a checked request to what the core is asked to do: token ids, sampling parameters, and where to stop."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from common import messages as m
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.parsing.message import MessageRules
from scheduler_svc.frontend.requests.constraints import check_grammar_size, constraints_of, with_grammar
from scheduler_svc.frontend.requests.limits import (
    check_can_end,
    check_characters,
    check_echo,
    check_length,
    check_logprobs,
    check_min_tokens,
    check_token_ids,
)
from scheduler_svc.frontend.requests.schemas import CompletionRequest, GenerationRequest
from scheduler_svc.frontend.requests.structured import AskedGrammar, asked_grammar
from scheduler_svc.frontend.text.tokenizer import Tokenizer

MAX_CHOICES = 1024  # prompts times n


@dataclass(frozen=True)
class TokenizedRequest:
    """One HTTP request with its prompts as token ids and its parameters complete, ready for the core.

    Attributes:
        request_id: id of the answer, and of the core's requests.
        prompts, params: token ids of each prompt, and how tokens are sampled for it.
        stop: stop strings; only frontends look for them.
        stream: whether the client wants its answer in pieces.
        is_resumable: whether the request continues for a while when its client's connection breaks.
        may_shorten: whether the client asked for no `max_tokens`.
        grammar: what its texts have to be, to be compiled first; None if they may be anything.
        echo: whether each text begins with its prompt.
        is_prompt_only: whether the client asked for no token: the core is asked for one, which is not shown.
        message: how each text is taken apart.
    """

    request_id: str
    prompts: list[list[int]]
    params: list[m.SamplingParams]
    n: int
    stop: tuple[str, ...]
    stream: bool
    is_resumable: bool
    cache_salt: str
    priority: int
    timeout_s: float | None
    may_shorten: bool = False
    grammar: AskedGrammar | None = None
    echo: bool = False
    is_prompt_only: bool = False
    message: MessageRules = field(default_factory=MessageRules)

    def compiled(self, grammar: str) -> "TokenizedRequest":
        """The request with its grammar, as llguidance reads it. Raises ApiError (400) if it is too long."""
        check_grammar_size(grammar, len(self.prompts))
        return replace(self, params=[with_grammar(params, grammar) for params in self.params], grammar=None)

    def submits(self, client: ApiClient, context: bytes) -> list[m.Submit]:
        """One message for each prompt. Raises ApiError for a priority that this client may not have (403), and for more
        sequences than it may have open (400).

        Args:
            context: what another frontend needs to continue the answer; the first prompt carries it for all.
        """
        assert self.grammar is None, "it was not compiled"
        check_priority(self.priority, client)
        check_num_sequences(len(self.prompts) * self.n, "prompts times n", client)
        cache_salt = salt_of(self.cache_salt, client)
        submits = [
            m.Submit(
                request_id=core_request_id(client.id, self.request_id, i),
                prompt=np.asarray(prompt, dtype="<i4").tobytes(),
                params=params,
                n=self.n,
                # Stop strings are found, and the rest is not computed, only if tokens come as they are made.
                stream=self.stream or bool(self.stop),
                cache_salt=cache_salt,
                priority=self.priority,
                timeout_s=self.timeout_s,
                client=client.id,
                client_limit=client.max_open_requests,
                client_name=client.name,
                weight=client.weight,
                address=client.address,
                context=context if i == 0 else b"",
                is_resumable=self.is_resumable,
                may_shorten=self.may_shorten,
            )
            for i, (prompt, params) in enumerate(zip(self.prompts, self.params, strict=True))
        ]
        return charged(submits, client)


def charged(submits: Sequence[m.Submit], client: ApiClient) -> list[m.Submit]:
    """The requests for all prompts of an HTTP request, the first of which pays for all, by the limits of its client."""
    charge = m.Charge(
        tokens=sum(submit.most_tokens for submit in submits),
        requests_per_minute=client.requests_per_minute,
        tokens_per_minute=client.tokens_per_minute,
    )
    return [msgspec.structs.replace(submits[0], charge=charge), *submits[1:]]


def check_priority(priority: int, client: ApiClient) -> None:
    """Raise ApiError (403) for a priority that this client may not have."""
    if priority < client.min_priority:
        message = f"'priority' is {priority}, the lowest value of this API key is {client.min_priority}."
        raise ApiError(403, message, code="priority_not_allowed", param="priority")


def check_num_sequences(number: int, what: str, client: ApiClient) -> None:
    """Raise ApiError (400) for more sequences than this client may have open: to send them again would never help.

    Args:
        what: one sequence is, for the error.
    """
    limit = client.max_open_requests
    if limit and number > limit:
        message = f"The request has {number} sequences ({what}), and this API key may have {limit} open at once."
        raise ApiError(400, message, code="invalid_value")


def salt_of(cache_salt: str, client: ApiClient) -> str:
    """The core's salt for that of a request. A prefix that is found in the cache shows in the time and in
    `cached_tokens`, so who shares it is told apart."""
    return f"{client.cache_domain}/{cache_salt}" if client.cache_domain else cache_salt


def core_request_id(client: str, request_id: str, prompt: int) -> str:
    """The core's id for one prompt of a request. No client can name a request that came with another API key."""
    name = f"{request_id}-{prompt}"
    return f"{client}/{name}" if client else name


def tokenize_completion(body: CompletionRequest, tokenizer: Tokenizer, max_model_len: int) -> TokenizedRequest:
    """A /v1/completions request, tokenized.

    Args:
        max_model_len: positions that a sequence may have, 0 while that is not known.

    Raises:
        ApiError, RequestRejected: the request cannot be served.
    """
    if len(body.prompt) * body.n > MAX_CHOICES:
        raise ApiError(
            400, f"{len(body.prompt)} prompts with n={body.n} are more than {MAX_CHOICES} choices.", param="n"
        )
    texts = [prompt for prompt in body.prompt if isinstance(prompt, str)]
    check_characters(max(map(len, texts), default=0), tokenizer, max_model_len, "prompt")
    encoded = iter(tokenizer.encode(texts, add_special_tokens=body.add_special_tokens))
    prompts = [next(encoded) if isinstance(prompt, str) else prompt for prompt in body.prompt]
    for prompt in prompts:
        check_token_ids("prompt", prompt, tokenizer.vocab_size)
    if not all(prompts):
        raise ApiError(400, "The prompt is empty.", code="invalid_value", param="prompt")
    check_length(max(map(len, prompts)), body.max_tokens, max_model_len, "prompt")
    check_min_tokens(body.min_tokens, body.max_tokens)
    num_logprobs = 0 if body.logprobs is None else 1 + body.logprobs
    num_echoed, num_listed = num_logprobs if body.echo else 0, body.num_listed_prompt_logprobs
    asked = m.SamplingParams(
        max_tokens=max(body.max_tokens, 1), logprobs=num_logprobs, prompt_logprobs=max(num_echoed, num_listed)
    )
    if body.echo:
        check_echo(prompts, body.n, tokenizer)
    num_shown_prompt_logprobs = (sum(map(len, prompts)) - len(prompts)) * (num_echoed + num_listed) * body.n
    check_logprobs(asked, len(prompts) * body.n, num_shown_prompt_logprobs)
    grammar = asked_grammar(body.response_format, body.structured_outputs, body)
    job = complete("cmpl-", body, prompts, asked, tokenizer, tokenizer.eos_token_ids, grammar)
    return replace(job, echo=body.echo, is_prompt_only=body.max_tokens == 0)


def complete(
    id_prefix: str,
    body: GenerationRequest,
    prompts: list[list[int]],
    asked: m.SamplingParams,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int],
    grammar: AskedGrammar | None,
) -> TokenizedRequest:
    """The request with its parameters complete.

    Args:
        asked: those that each endpoint names in its own way.
        eos_token_ids: tokens that end the answer unless the request ignores them.
    """
    check_token_ids("stop_token_ids", body.stop_token_ids, tokenizer.vocab_size)
    eos = () if body.ignore_eos else eos_token_ids
    stop_token_ids = tuple(dict.fromkeys([*eos, *body.stop_token_ids]))
    if grammar is not None:
        check_can_end(stop_token_ids, ignores_eos=body.ignore_eos)
    recommended = msgspec.structs.asdict(tokenizer.sampling_defaults)
    del recommended["repetition_penalty"]  # a constraint
    said = {name: value for name in recommended if (value := getattr(body, name)) is not None}
    params = msgspec.structs.replace(
        asked,
        **(recommended | said),
        seed=(body.seed or 0) & (2**63 - 1),
        stop_token_ids=stop_token_ids,
        constraints=constraints_of(body, tokenizer, stop_token_ids, len(prompts)),
    )
    # With a seed each prompt of a list draws as it would alone; without one, equal prompts must not answer alike.
    seeds = [secrets.randbits(63) if body.seed is None else params.seed for _ in prompts]
    return TokenizedRequest(
        request_id=body.request_id or id_prefix + secrets.token_hex(12),
        prompts=prompts,
        params=[msgspec.structs.replace(params, seed=seed) for seed in seeds],
        n=body.n,
        stop=tuple(body.stop),
        stream=body.stream,
        is_resumable=body.resumable,
        cache_salt=body.cache_salt,
        priority=body.priority,
        timeout_s=body.timeout_s,
        grammar=grammar,
    )
